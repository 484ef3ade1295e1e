"""Queries of the ledger, and the words that select runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import sqlalchemy as sa

from mileage.errors import UnknownNameError, UsageError
from mileage.ledger import schema
from mileage.ledger.rows import (
    ROW_TYPES,
    BuildKpi,
    BuildSample,
    Checkpoint,
    ClosedBy,
    End,
    Episode,
    Note,
    Phase,
    Profile,
    Row,
    Run,
)
from mileage.ledger.runs import RUNNING, Before, RecordedRun, Sighting

# --- Which runs are meant: `20260901-1422`, `my-name`, `algorithm=ppo,env_id=CartPole-v1,state=reached` ---
_INTEGERS = ("seed", "batch_size", "step_budget", "instances")
_TEXTS = (
    "name", "algorithm", "env_id", "framework", "panel_id", "target", "host", "instance", "git_revision", "machine_id",
    "launched_by", "parent_run_id", "mileage_version",
)  # fmt: skip
FIELDS = (*_TEXTS, *_INTEGERS, "state")
_LARGEST = 2**63 - 1
_ID_PREFIX = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")


@dataclass(frozen=True)
class Selector:
    """A set of runs: all conditions hold."""

    fields: tuple[tuple[str, str | int], ...] = ()
    run_ids: tuple[str, ...] = ()
    """Run ids or the beginnings of run ids; any of them."""
    name: str | None = None

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Read a run id (or the beginning of one), several with commas, or `field=value` with commas."""
        if not text.strip():
            raise UsageError("an empty selection: give a run id, a name or field=value")
        parts = [part.strip() for part in text.split(",")]
        if all(_ID_PREFIX.fullmatch(part) for part in parts):
            return cls(run_ids=tuple(parts))
        if all("=" in part for part in parts):
            return cls(fields=tuple(_field(part) for part in parts))
        return cls(name=text)


def _field(part: str) -> tuple[str, str | int]:
    name, value = (side.strip() for side in part.split("=", 1))
    if name not in FIELDS:
        raise UnknownNameError("field of a run", name, FIELDS)
    if name not in _INTEGERS:
        return name, value
    try:
        number = int(value)
    except ValueError:
        raise UsageError(f"{name} is a whole number, so it cannot be {value[:80]!r}") from None
    if not -_LARGEST <= number <= _LARGEST:
        raise UsageError(f"{name} is a whole number that a database can hold, so it cannot be {value[:80]!r}")
    return name, number


Made = TypeVar("Made")
Item = TypeVar("Item")


def _rows(connection: sa.Connection, make: Callable[..., Made], table: sa.Table, run_id: str, *by: str) -> list[Made]:
    """What one table has of a run, in the order of the columns `by`."""
    statement = sa.select(table).where(table.c.run_id == run_id).order_by(*(table.c[name] for name in by))
    return [make(*row) for row in connection.execute(statement)]


def rows_of(connection: sa.Connection, run_id: str) -> list[Row]:
    """All rows of a run of every kind, its own row first and its end last."""
    found: list[Row] = []
    for kind, table in schema.TABLES.items():
        rows = connection.execute(sa.select(table).where(table.c.run_id == run_id))
        found += [ROW_TYPES[kind](*row) for row in rows]
    return found


def count_rows(connection: sa.Connection, run_id: str) -> int:
    """How many rows a run has, its own row and notes on it not counted."""
    tables = (table for kind, table in schema.TABLES.items() if kind not in ("run", "note"))
    counts = (sa.select(sa.func.count()).select_from(table).where(table.c.run_id == run_id) for table in tables)
    return sum(connection.execute(count).scalar() or 0 for count in counts)


def run(connection: sa.Connection, run_id: str) -> Run | None:
    """The run called `run_id`."""
    row = connection.execute(sa.select(schema.run).where(schema.run.c.run_id == run_id)).one_or_none()
    return Run(*row) if row else None


def has_run(connection: sa.Connection, run_id: str) -> bool:
    """Whether there is a run called `run_id`."""
    return connection.execute(sa.select(schema.run.c.run_id).where(schema.run.c.run_id == run_id)).first() is not None


def ends(connection: sa.Connection, run_id: str) -> list[End]:
    """The end rows of a run; the one that counts comes first."""
    return sorted(_rows(connection, End, schema.end, run_id), key=lambda end: end.closed_by != ClosedBy.SELF)


def open_runs(connection: sa.Connection) -> list[Run]:
    """The runs without an end."""
    ended = sa.select(schema.end.c.run_id).where(schema.end.c.run_id == schema.run.c.run_id).exists()
    return [Run(*row) for row in connection.execute(sa.select(schema.run).where(~ended))]


def last_beat(connection: sa.Connection, run_id: str) -> tuple[float, float] | None:
    """When the run last gave a sign of life, and its wall-clock then."""
    beat = schema.heartbeat.c
    row = connection.execute(sa.select(beat.beat_at, beat.wall_seconds).where(beat.run_id == run_id)).one_or_none()
    return (row[0], row[1]) if row else None


def checkpoints(connection: sa.Connection, run_id: str) -> list[Checkpoint]:
    """All checkpoints of a run in order."""
    return _rows(connection, Checkpoint, schema.checkpoint, run_id, "seq")


def latest_phases(connection: sa.Connection, run_id: str) -> list[Phase]:
    """The last totals of each phase of a run."""
    return phases_of(connection, [run_id]).get(run_id, [])


def phases_of(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, list[Phase]]:
    """The last phase totals of each run."""
    table = schema.phase
    found: dict[str, list[Phase]] = {}
    for chunk in _chunks(run_ids):
        newest = (
            sa.select(table.c.run_id, sa.func.max(table.c.seq).label("seq"))
            .where(table.c.run_id.in_(chunk))
            .group_by(table.c.run_id)
            .subquery()
        )
        statement = sa.select(table).join(newest, (table.c.run_id == newest.c.run_id) & (table.c.seq == newest.c.seq))
        for row in connection.execute(statement):
            phase = Phase(*row)
            found.setdefault(phase.run_id, []).append(phase)
    return found


def rows_by_run(connection: sa.Connection, kind: str, run_ids: Sequence[str], *by: str) -> dict[str, list[Any]]:
    """What one kind of row says of each of several runs, in the order of the columns `by`."""
    table, make = schema.TABLES[kind], ROW_TYPES[kind]
    found: dict[str, list[Any]] = {}
    for chunk in _chunks(run_ids):
        statement = sa.select(table).where(table.c.run_id.in_(chunk)).order_by(*(table.c[name] for name in by))
        for row in connection.execute(statement):
            found.setdefault(row[0], []).append(make(*row))
    return found


def judged_episodes(connection: sa.Connection, seqs: Mapping[str, int]) -> dict[str, list[Episode]]:
    """The held-out episodes of one checkpoint of each run, by `seq`."""
    table = schema.episode
    found: dict[str, list[Episode]] = {}
    for chunk in _chunks(list(seqs.items()), 200):
        statement = sa.select(table).where(sa.tuple_(table.c.run_id, table.c.seq).in_(chunk)).order_by(table.c.episode)
        for row in connection.execute(statement):
            found.setdefault(row[0], []).append(Episode(*row))
    return found


def last_examined(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, int]:
    """`seq` of the last checkpoint of each run whose held-out episodes are there."""
    table = schema.episode
    found: dict[str, int] = {}
    for chunk in _chunks(run_ids):
        last = sa.select(table.c.run_id, sa.func.max(table.c.seq)).where(table.c.run_id.in_(chunk))
        found.update((row[0], row[1]) for row in connection.execute(last.group_by(table.c.run_id)))
    return found


def phase_history(connection: sa.Connection, run_id: str) -> list[Phase]:
    """All phase totals of a run, in the order in which they were taken."""
    return _rows(connection, Phase, schema.phase, run_id, "seq")


def episodes(connection: sa.Connection, run_id: str, seq: int | None = None) -> list[Episode]:
    """The evaluation episodes of a run, or of its checkpoint `seq`."""
    table = schema.episode
    statement = sa.select(table).where(table.c.run_id == run_id).order_by(table.c.seq, table.c.episode)
    if seq is not None:
        statement = statement.where(table.c.seq == seq)
    return [Episode(*row) for row in connection.execute(statement)]


def profiles(connection: sa.Connection, run_id: str) -> list[Profile]:
    """The profiler summaries of a run."""
    return _rows(connection, Profile, schema.profile, run_id, "seq")


def samples(connection: sa.Connection, run_id: str) -> list[BuildSample]:
    """The timed builds of a build benchmark, in order."""
    return _rows(connection, BuildSample, schema.sample, run_id, "order")


def kpis(connection: sa.Connection, run_id: str) -> list[BuildKpi]:
    """What a build benchmark found, mode by mode."""
    return _rows(connection, BuildKpi, schema.kpi, run_id, "seq")


def notes_of(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, list[Note]]:
    """What was said about each run, in order."""
    table = schema.note
    found: dict[str, list[Note]] = {}
    for chunk in _chunks(run_ids):
        rows = connection.execute(
            sa.select(table).where(table.c.run_id.in_(chunk)).order_by(table.c.noted_at, table.c.note_id)
        )
        for row in rows:
            found.setdefault(row.run_id, []).append(Note(*row))
    return found


def sightings(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, Sighting]:
    """How far runs that go on were at their last sign of life."""
    found: dict[str, Sighting] = {}
    for run_id in run_ids:
        beat = last_beat(connection, run_id)
        table = schema.checkpoint
        newest = sa.select(table).where(table.c.run_id == run_id).order_by(table.c.seq.desc())
        last = connection.execute(newest.limit(1)).one_or_none()
        judged = connection.execute(newest.where(table.c.mean_return.is_not(None)).limit(1)).one_or_none()
        wall = max(beat[1] if beat else 0.0, last.wall_seconds if last else 0.0)
        found[run_id] = Sighting(
            wall,
            last.step if last else 0,
            judged.success_rate if judged else None,
            judged.mean_return if judged else None,
        )
    return found


def with_notes(connection: sa.Connection, runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The same runs with what was said about them and, of those that go on, how far they are."""
    notes = notes_of(connection, [run.run_id for run in runs])
    seen = sightings(connection, [run.run_id for run in runs if run.end is None])
    return [
        replace(run, notes=tuple(notes.get(run.run_id, ())), last_seen=seen.get(run.run_id))
        if run.run_id in notes or run.end is None
        else run
        for run in runs
    ]


def records(
    connection: sa.Connection,
    selector: Selector | None = None,
    *,
    limit: int | None = None,
    newest_first: bool = True,
    only: Sequence[str] | None = None,
) -> list[RecordedRun]:
    """The selected runs with their ends and no other rows, by launch time; `only` are ids to choose from."""
    own, presumed, of_run = schema.end.alias("own"), schema.end.alias("presumed"), schema.run.c.run_id
    state = sa.func.coalesce(own.c.state, presumed.c.state, RUNNING)
    by_itself = own.c.run_id.is_not(None)  # a run's own end counts as a whole, absent figures included
    statement = (
        sa.select(schema.run, *(sa.case((by_itself, own.c[c.name]), else_=presumed.c[c.name]) for c in schema.end.c))
        .outerjoin(own, (own.c.run_id == of_run) & (own.c.closed_by == ClosedBy.SELF.value))
        .outerjoin(presumed, (presumed.c.run_id == of_run) & (presumed.c.closed_by == ClosedBy.OPENER.value))
    )
    if selector is not None:
        statement = statement.where(*_conditions(selector, state))
    if only is not None:
        statement = statement.where(of_run.in_(only))
    order = (schema.run.c.launched_at, schema.run.c.run_id)
    statement = statement.order_by(*(column.desc() if newest_first else column for column in order))
    if limit is not None:
        statement = statement.limit(limit)
    width = len(Run._fields)
    found = [
        RecordedRun(Run(*row[:width]), End(*row[width:]) if row[width] is not None else None)
        for row in connection.execute(statement)
    ]
    return with_notes(connection, found)


def _conditions(selector: Selector, state: Any) -> list[Any]:
    conditions: list[Any] = []
    for name, value in selector.fields:
        column = state if name == "state" else schema.run.c[name]
        conditions.append(column == value)
    if selector.run_ids:
        column = schema.run.c.run_id
        conditions.append(sa.or_(*(column.startswith(prefix, autoescape=True) for prefix in selector.run_ids)))
    if selector.name is not None:
        conditions.append(schema.run.c.name == selector.name)
    return conditions


def selected(connection: sa.Connection, text: str) -> list[RecordedRun]:
    """The runs that `text` selects, in launch order; a plain word is a run id or else a name."""
    selector = Selector.parse(text)
    found = records(connection, selector, newest_first=False)
    return found or (records(connection, Selector(name=text), newest_first=False) if selector.run_ids else [])


def select_records(connection: sa.Connection, text: str) -> list[RecordedRun]:
    """What `selected` finds; UsageError if that is nothing."""
    found = selected(connection, text)
    if not found:
        raise UsageError(f"no run matches {text[:200]!r}: see `mileage ledger list`")
    return found


def with_phases(connection: sa.Connection, runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The same runs with their last phase totals, and with all of them where a run went on after its target."""
    rows = phases_of(connection, [run.run_id for run in runs])
    on = [run.run_id for run in runs if run.end and (run.end.wall_to_target or math.inf) < run.end.wall_seconds]
    history: dict[str, list[Phase]] = {}
    for chunk in _chunks(on):
        for row in connection.execute(sa.select(schema.phase).where(schema.phase.c.run_id.in_(chunk))):
            history.setdefault(row.run_id, []).append(Phase(*row))
    return [
        replace(run, phase_rows=tuple(rows.get(run.run_id, ())), phase_history=tuple(history.get(run.run_id, ())))
        for run in runs
    ]


def with_parents(connection: sa.Connection, runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The same runs, those that resume another with what the runs before them have used."""
    known: dict[str, RecordedRun] = {}

    def before(run: RecordedRun) -> Before:
        found, parent_id = Before(), run.run.parent_run_id
        while parent_id is not None and parent_id not in (run.run_id, *found.run_ids):
            if parent_id not in known:
                known.update((each.run_id, each) for each in records(connection, Selector(run_ids=(parent_id,))))
            parent = known.get(parent_id)
            if parent is None or parent.end is None:
                return replace(found, missing=parent_id)
            found, parent_id = found.after(parent), parent.run.parent_run_id
        return found

    resumed = ((run, None if run.run.parent_run_id is None else before(run)) for run in runs)
    return [
        run if used is None else replace(run, before=used, steps_before=int(used.used["env_steps"]))
        for run, used in resumed
    ]


def with_evaluations(connection: sa.Connection, runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The same runs with their checkpoints and the episodes they were evaluated by."""
    return [
        replace(
            run,
            checkpoints=tuple(checkpoints(connection, run.run_id)),
            episodes=tuple(episodes(connection, run.run_id)),
        )
        for run in runs
    ]


def complete(connection: sa.Connection, recorded: RecordedRun, *, episodes_too: bool = True) -> RecordedRun:
    """The same run with all its rows; the episodes, which are most of them, can be left out."""
    run_id = recorded.run_id
    return replace(
        recorded,
        checkpoints=tuple(checkpoints(connection, run_id)),
        phase_rows=tuple(latest_phases(connection, run_id)),
        episodes=tuple(episodes(connection, run_id)) if episodes_too else (),
        profiles=tuple(profiles(connection, run_id)),
        samples=tuple(samples(connection, run_id)),
        kpis=tuple(kpis(connection, run_id)),
    )


def complete_runs(connection: sa.Connection, text: str | None) -> list[RecordedRun]:
    """The runs that `text` selects, all of them for None, in launch order and with all their rows."""
    found = records(connection, newest_first=False) if text is None else select_records(connection, text)
    return [complete(connection, recorded) for recorded in found]


def only_record(connection: sa.Connection, text: str) -> RecordedRun:
    """The one run that `text` selects."""
    found = select_records(connection, text)
    if len(found) > 1:
        raise UsageError(f"{text[:200]!r} matches {len(found)} runs: give a run id from `mileage ledger list`")
    return found[0]


def _chunks(items: Sequence[Item], size: int = 500) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


# --- Runs for an export: one after the other, and the rows of each as they are asked for ---
ROWS_AT_A_TIME = 2_000


@dataclass(frozen=True)
class RunStream:
    """One run and a way to its rows."""

    recorded: RecordedRun
    """The run, its end, its notes and its last phase totals."""
    rows: Callable[[str], Iterator[Any]]
    """The rows of a kind (`checkpoint`, `episode`, …), in order; may be called again."""

    @classmethod
    def of(cls, recorded: RecordedRun) -> RunStream:
        """A run whose rows are in memory."""
        held: dict[str, tuple[Any, ...]] = {
            "checkpoint": recorded.checkpoints,
            "phase": recorded.phase_rows,
            "episode": recorded.episodes,
            "profile": recorded.profiles,
            "sample": recorded.samples,
            "kpi": recorded.kpis,
            "note": recorded.notes,
        }
        return cls(recorded, lambda kind: iter(held[kind]))


def streams(connection: sa.Connection, text: str | None) -> Iterator[RunStream]:
    """The runs that `text` selects, all of them for None, in launch order."""
    runs = records(connection, newest_first=False) if text is None else select_records(connection, text)
    for recorded in runs:
        whole = with_notes(connection, with_phases(connection, [recorded]))[0]
        yield RunStream(whole, _reader(connection, whole))


def _reader(connection: sa.Connection, recorded: RecordedRun) -> Callable[[str], Iterator[Any]]:
    def rows(kind: str) -> Iterator[Any]:
        if kind == "phase":
            return iter(recorded.phase_rows)
        if kind == "note":
            return iter(recorded.notes)
        table = schema.TABLES[kind]
        order = [table.c[key] for key in schema.KEYS[kind]]
        statement = sa.select(table).where(table.c.run_id == recorded.run_id).order_by(*order)
        found = connection.execution_options(yield_per=ROWS_AT_A_TIME).execute(statement)
        return (ROW_TYPES[kind](*row) for row in found)

    return rows
