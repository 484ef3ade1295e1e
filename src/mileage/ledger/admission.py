"""What is claimed and what is known: imports made again from their episodes.

A file of our own holds the episodes of every evaluation, so the figures of its checkpoints and of its end are made
again from them, and the panel is hashed again. Whatever does not come out the same, or has no episodes to come out of,
is kept as `claimed` and stands in no column of ours: a claim never reaches a target.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mileage.errors import UsageError
from mileage.ledger import queries, schema
from mileage.ledger.panels import Panel
from mileage.ledger.rows import (
    KIND_OF,
    Checkpoint,
    ClosedBy,
    End,
    EndState,
    Episode,
    Note,
    NoteKind,
    Phase,
    Row,
    Run,
    check_json,
)
from mileage.ledger.runs import evaluation_of, finite
from mileage.ledger.secrets import TEXT_FIELDS, scrubbed_row
from mileage.ledger.store import Store
from mileage.ledger.summary import Progress, cost_usd
from mileage.ledger.targets import Evaluation, Target, examined
from mileage.metrics import billable_seconds_of
from mileage.records import Record

CLAIMED_REASON = "claimed: no episodes of the panel show it"
CLAIMED_TIME = "claimed: its seconds are not those from its start to its end"
_FIGURES = ("success_rate", "mean_return", "target_value", "target_met")
# Sums of a hundred episodes differ in their last digits between machines.
_SAME = 1e-9
_SLACK = 1e-6
"""Seconds, and the share of them, by which clocks that were read one after the other may differ."""
_LATEST = 253_370_764_800.0
_CLOCK_SECONDS = 60.0
"""By how much the run's own clock and the system's, which people set, may differ at least."""


def checked(rows: Sequence[Row]) -> list[Row]:
    """The rows of one imported run, its figures made again from its episodes."""
    run = next(row for row in rows if isinstance(row, Run))
    _check_story(run, rows)
    panel = checked_panel(run)
    target = None if run.target is None else Target.parse(run.target)
    played: dict[int, list[Episode]] = {}
    for row in rows:
        if isinstance(row, Episode):
            played.setdefault(row.seq, []).append(row)
    again: list[Row] = [
        _checkpoint(run, row, panel, target, played.get(row.seq, [])) if isinstance(row, Checkpoint) else row
        for row in rows
    ]
    checkpoints = [row for row in again if isinstance(row, Checkpoint)]
    progress = Progress.of(sorted(checkpoints, key=lambda checkpoint: checkpoint.seq))
    return [_end(run, row, progress) if isinstance(row, End) else row for row in again]


def _check_story(run: Run, rows: Sequence[Row]) -> None:
    """UsageError if times, steps or prices of the rows cannot all be true."""
    where = f"of run {run.run_id} in the file"
    _check_price(run, where)
    for row in rows:
        check_seconds(row)
    checkpoints = sorted((row for row in rows if isinstance(row, Checkpoint)), key=lambda row: row.seq)
    told: list[Checkpoint | End] = [*checkpoints, *(row for row in rows if isinstance(row, End))]
    wall = 0.0
    for row in told:
        what = f"{'an end' if isinstance(row, End) else 'a checkpoint'} row {where}"
        # Whoever closed a run that had only been cut off did not see what came later.
        own = isinstance(row, Checkpoint) or row.closed_by == ClosedBy.SELF
        if own and row.wall_seconds < wall - _SLACK * (1.0 + wall):
            raise UsageError(f"wall_seconds of {what} is {row.wall_seconds:g} after {wall:g}")
        wall = row.wall_seconds if isinstance(row, Checkpoint) else wall
        if row.wall_seconds >= _LATEST:
            raise UsageError(f"wall_seconds of {what} is {row.wall_seconds:g}, which is no time that a run can take")
        parts = ("train_seconds", "eval_seconds", "init_seconds", "compile_seconds")
        for name in parts if isinstance(row, End) else parts[:2]:
            if getattr(row, name) > row.wall_seconds + _SLACK * (1.0 + row.wall_seconds):
                raise UsageError(f"{name} of {what} is {getattr(row, name):g} of {row.wall_seconds:g} s")
        if isinstance(row, End) and not own and row.state != EndState.CRASHED:
            raise UsageError(f"state of {what} must be crashed if another closed it, not {row.state[:80]!r}")
        if isinstance(row, Checkpoint) and row.step < 0:
            raise UsageError(f"step of a checkpoint row {where} must be 0 or more, not {row.step}")
    _check_phases(rows, where)
    moments = (run.launched_at, run.started_at, *(row.ended_at for row in rows if isinstance(row, End)))
    if not all(0.0 <= moment < _LATEST for moment in moments):
        raise UsageError(
            f"launched_at, started_at and ended_at {where} must be seconds since 1970, before the year 9999"
        )


def check_seconds(row: Row) -> None:
    """UsageError if a row's seconds are negative."""
    for name in row._fields:
        if name.endswith("_seconds") and (getattr(row, name) or 0.0) < 0:
            kind = KIND_OF[type(row)]
            raise UsageError(
                f"{name} of {'an' if kind == 'end' else 'a'} {kind} row must be 0 or more, not {getattr(row, name)}"
            )


def _check_phases(rows: Sequence[Row], where: str) -> None:
    """UsageError if exclusive phases take longer than their time, or are later than the end of a run that wrote one."""
    sums: dict[int, float] = {}
    last = next((row.wall_seconds for row in rows if isinstance(row, End) and row.closed_by == ClosedBy.SELF), math.inf)
    for row in rows:
        if isinstance(row, Phase):
            sums[row.seq] = sums.get(row.seq, 0.0) + (0.0 if row.beside else row.seconds)
            for what, seconds, most in (("sum", sums[row.seq], row.wall_seconds), ("time", row.wall_seconds, last)):
                if seconds > most + _SLACK * (1.0 + most):
                    raise UsageError(f"the {what} of phase rows {where} is {seconds:g} of {most:g} s")


def _check_price(run: Run, where: str) -> None:
    try:
        parts = json.loads(run.price or "{}").get("parts") or {}
        whole = sum(parts.values(), 0.0)
    except (ValueError, TypeError, AttributeError):
        raise UsageError(f"price {where} is not one: {run.price[:80]!r}") from None
    if parts and not _same((whole,), (run.price_usd_per_hour,)):
        raise UsageError(f"price_usd_per_hour {where} is {run.price_usd_per_hour:g}, but its parts make {whole:g}")


def checked_panel(run: Run) -> Panel | None:
    """The panel of an imported run; it must hash to the `panel_id` of the run and have its success definition."""
    if run.panel is None:
        if run.panel_id is not None and run.target is not None:
            raise UsageError(f"run {run.run_id} of the file names panel {run.panel_id[:16]} and does not have it")
        return None
    panel = Panel.from_json(run.panel)
    for field, here, there in (("panel_id", run.panel_id, panel.panel_id), ("success", run.success, panel.success)):
        if here != there:
            raise UsageError(f"{field} of run {run.run_id} in the file is {here!r}, but its panel gives {there!r}")
    return panel


def as_claim(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with its figures of an evaluation among what is claimed, and nowhere else."""
    figures = {name: getattr(checkpoint, name) for name in _FIGURES if getattr(checkpoint, name) is not None}
    if not figures:
        return checkpoint
    before: Any = json.loads(checkpoint.claimed) if checkpoint.claimed else {}
    claimed = check_json("claimed", {**figures, **(before if isinstance(before, dict) else {"figures": before})})
    return checkpoint._replace(success_rate=None, mean_return=None, target_value=None, target_met=None, claimed=claimed)


def _checkpoint(
    run: Run, row: Checkpoint, panel: Panel | None, target: Target | None, played: list[Episode]
) -> Checkpoint:
    row = row._replace(cost_usd=_unless_same(row.cost_usd, cost_usd(row.wall_seconds, run)))
    if all(getattr(row, name) is None for name in _FIGURES):
        return row
    evaluation = _played(panel, played)
    if evaluation is None:
        return as_claim(row)
    value = met = None
    if target is not None and (target.aggregate != "success_rate" or evaluation.successes is not None):
        value, met = finite(target.value(evaluation)), target.met(evaluation)
    again = (evaluation.success_rate, finite(evaluation.mean_return), value, met)
    return row if _same(again, (getattr(row, name) for name in _FIGURES)) else as_claim(row)


def _played(panel: Panel | None, played: list[Episode]) -> Evaluation | None:
    """The evaluation that the episodes make, if they are those of the panel."""
    if not played:
        return None
    evaluation = evaluation_of(sorted(played, key=lambda episode: episode.episode))
    if panel is None:
        return evaluation
    try:
        return examined(panel, evaluation)
    except UsageError:
        return None


def _end(run: Run, end: End, progress: Progress) -> End:
    again = {
        "billable_seconds": billable_seconds_of(end.wall_seconds, run.instances),
        "cost_usd": cost_usd(end.wall_seconds, run),
        "train_seconds": end.wall_seconds - end.eval_seconds,
        "env_steps": progress.env_steps,
        "checkpoints": progress.checkpoints,
        **progress.judged(),
    }
    made = end._replace(**{name: _unless_same(getattr(end, name), value) for name, value in again.items()})
    passed = end.ended_at - run.started_at
    if made.wall_to_target is not None and abs(passed - end.wall_seconds) > max(_CLOCK_SECONDS, 0.1 * passed):
        state = EndState.CLAIMED.value if end.state == EndState.REACHED else end.state
        nothing: Record = dict.fromkeys(("steps_to_target", "wall_to_target", "cost_to_target", "target_seq"))
        return made._replace(state=state, reason=CLAIMED_TIME, **nothing)
    if progress.first_reached is not None or (end.wall_to_target is None and end.state != EndState.REACHED):
        return made
    state = EndState.CLAIMED.value if end.state == EndState.REACHED else end.state
    return made._replace(state=state, reason=CLAIMED_REASON)


def _unless_same(there: Any, again: Any) -> Any:
    """What the file has if it is what came out again, to the last digits; otherwise what came out."""
    return there if _same((again,), (there,)) else again


def _same(again: Iterable[float | bool | None], there: Iterable[float | bool | None]) -> bool:
    return all(
        a is b or (a is not None and b is not None and math.isclose(a, b, rel_tol=_SAME, abs_tol=_SAME))
        for a, b in zip(again, there, strict=True)
    )


# --- Taking rows in from a file: all of them or none, and a word about what was done ---
@dataclass(frozen=True)
class Imported:
    """What an import did."""

    run_ids: list[str]
    """Every run of the files."""
    added: dict[str, int]
    """Rows that were not there before, by kind."""
    there: dict[str, int]
    """Rows that were there already, by kind."""
    claimed: int
    """Runs that only claim to have reached their target."""

    def sentence(self) -> str:
        """The same in one line."""
        runs, before = self.added.get("run", 0), self.there.get("run", 0)
        rows = ", ".join(f"{count:,} {kind} rows" for kind, count in self.added.items() if count and kind != "run")
        already = f"; {before:,} runs were there already" if before else ""
        claims = f"; {self.claimed:,} only claim to have reached their target" if self.claimed else ""
        return f"imported {runs:,} runs" + (f" with {rows}" if rows else "") + already + claims


def take_in(store: Store, rows: Sequence[Row]) -> Imported:
    """Deliver `rows`, all or none; UsageError if they contradict themselves or what the ledger has."""
    _check_among_themselves(rows)
    runs = [row for row in rows if isinstance(row, Run)]
    for run in runs:
        if run.parent_run_id == run.run_id:
            raise UsageError(f"run {run.run_id} of the file resumes itself: nothing was imported")
        _check_against(store.read(queries.run, run.run_id), run)
    given: dict[str, int] = {}
    for row in rows:
        given[KIND_OF[type(row)]] = given.get(KIND_OF[type(row)], 0) + 1
    added = store.deliver_together(rows)
    there = {kind: n - added.get(kind, 0) for kind, n in given.items()}
    claimed = sum(isinstance(row, End) and row.state == EndState.CLAIMED for row in rows)
    return Imported([run.run_id for run in runs], added, there, claimed)


def _check_among_themselves(rows: Sequence[Row]) -> None:
    seen: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        kind = KIND_OF[type(row)]
        key = (kind, *(getattr(row, name) for name in schema.KEYS[kind]))
        if seen.setdefault(key, row) != row:
            raise UsageError(f"the file has two different {kind} rows for {', '.join(map(str, key[1:]))}")
        if isinstance(row, End):
            _check_word("state", row.state, [state.value for state in EndState])
            _check_word("closed_by", row.closed_by, [who.value for who in ClosedBy])
        if isinstance(row, Note):
            _check_word("kind", row.kind, [kind.value for kind in NoteKind])
        check_seconds(row)


def _check_word(field: str, value: str, known: list[str]) -> None:
    if value not in known:
        raise UsageError(f"{field} must be one of {', '.join(known)}, not {value[:80]!r}")


def _check_against(there: Run | None, run: Run) -> None:
    """A run id stands for one run: the same one may come again, another one may not."""
    if there is None:
        return
    clean = scrubbed_row(run)
    free = {*TEXT_FIELDS["run"], "launched_by", "host", "git_revision", "name"}  # may have been redacted since
    for field, ours, theirs in zip(Run._fields, there, clean, strict=True):
        if field not in free and ours != theirs:
            raise UsageError(
                f"run {run.run_id} is in the ledger already with {field} {str(ours)[:80]!r}, not {str(theirs)[:80]!r}: "
                "nothing was imported"
            )
