"""Pages of a long list: runs and recipes, filtered, sorted and counted by the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from mileage.errors import UnknownNameError
from mileage.ledger import queries, schema
from mileage.ledger.rows import ClosedBy, Run
from mileage.ledger.runs import RUNNING, RecordedRun

RECIPE = ("name", "framework", "algorithm", "env_id", "target", "panel_id", "step_rule", "config")
"""The columns that runs of one recipe share: everything but the seed, when and where."""
SORTS = ("launched", "name", "seed", "state", "steps", "wall", "to_target", "return", "cost")


@dataclass(frozen=True)
class Asked:
    """What part of the list is wanted."""

    search: str = ""
    """Words that the name, algorithm, environment or id holds, in any case."""
    state: str | None = None
    sort: str = "launched"
    ascending: bool = False
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True)
class Recipe:
    """Runs of one recipe, counted."""

    newest: Run
    runs: int
    reached: int
    running: int
    mean_to_target: float | None
    """Mean wall-clock to target of those that reached it, in seconds."""
    cost_usd: float
    """Of all that have ended."""
    mean_return: float | None
    """Mean over the runs of their last held-out return."""


def _ends() -> tuple[Any, Any, Any]:
    """The end that counts: a run's own, or that of whoever found it gone; and the state that follows."""
    own, presumed = schema.end.alias("own"), schema.end.alias("presumed")
    return own, presumed, sa.func.coalesce(own.c.state, presumed.c.state, RUNNING)


def _joined(own: Any, presumed: Any) -> Any:
    of_run = schema.run.c.run_id
    return schema.run.outerjoin(own, (own.c.run_id == of_run) & (own.c.closed_by == ClosedBy.SELF.value)).outerjoin(
        presumed, (presumed.c.run_id == of_run) & (presumed.c.closed_by == ClosedBy.OPENER.value)
    )


def _where(asked: Asked, state: Any) -> list[Any]:
    run, found = schema.run.c, []
    for word in asked.search.split()[:8]:
        columns = (run.name, run.algorithm, run.env_id, run.run_id, run.target)
        found.append(sa.or_(*(column.icontains(word, autoescape=True) for column in columns)))
    if asked.state is not None:
        found.append(state == asked.state)
    return found


def runs(connection: sa.Connection, asked: Asked) -> tuple[list[RecordedRun], int]:
    """One page of runs, and how many there are in all."""
    own, presumed, state = _ends()
    if asked.sort not in SORTS:
        raise UnknownNameError("column to sort by", asked.sort, SORTS)

    def either(name: str) -> Any:
        return sa.case((own.c.run_id.is_not(None), own.c[name]), else_=presumed.c[name])

    run = schema.run.c
    column = {
        "launched": run.launched_at,
        "name": run.name,
        "seed": run.seed,
        "state": state,
        "steps": either("env_steps"),
        "wall": either("wall_seconds"),
        "to_target": either("wall_to_target"),
        "return": either("mean_return"),
        "cost": either("cost_usd"),
    }[asked.sort]
    where, joined = _where(asked, state), _joined(own, presumed)
    # Those without the figure come last in either direction.
    order = (column.is_(None), column.asc() if asked.ascending else column.desc(), run.run_id.desc())
    ids = sa.select(run.run_id).select_from(joined).where(*where).order_by(*order).limit(asked.limit)
    chosen = [row[0] for row in connection.execute(ids.offset(asked.offset))]
    counted = sa.select(sa.func.count()).select_from(joined).where(*where)
    return by_ids(connection, chosen), connection.execute(counted).scalar_one()


def by_ids(connection: sa.Connection, run_ids: list[str]) -> list[RecordedRun]:
    """The runs with exactly these ids, in their order."""
    if not run_ids:
        return []
    found = {run.run_id: run for run in queries.records(connection, only=run_ids)}
    return [found[run_id] for run_id in run_ids if run_id in found]


def recipes(connection: sa.Connection, asked: Asked) -> tuple[list[Recipe], int]:
    """One page of recipes, the one with the newest run first, and how many there are in all."""
    own, presumed, state = _ends()
    columns = [schema.run.c[name] for name in RECIPE]
    end = {
        name: sa.case((own.c.run_id.is_not(None), own.c[name]), else_=presumed.c[name])
        for name in ("wall_to_target", "cost_usd", "mean_return")
    }
    newest = sa.func.max(schema.run.c.run_id)
    grouped = (
        sa.select(
            newest.label("newest"),
            sa.func.count().label("runs"),
            sa.func.count(end["wall_to_target"]),
            sa.func.sum(sa.case((state == RUNNING, 1), else_=0)),
            sa.func.avg(end["wall_to_target"]),
            sa.func.coalesce(sa.func.sum(end["cost_usd"]), 0.0),
            sa.func.avg(end["mean_return"]),
        )
        .select_from(_joined(own, presumed))
        .where(*_where(asked, state))
        .group_by(*columns)
    )
    rows = connection.execute(grouped.order_by(newest.desc()).limit(asked.limit).offset(asked.offset)).all()
    of_id = {run.run_id: run.run for run in by_ids(connection, [row[0] for row in rows])}
    total = connection.execute(sa.select(sa.func.count()).select_from(grouped.subquery())).scalar_one()
    return [Recipe(of_id[row[0]], *row[1:]) for row in rows], total


def of_recipe(connection: sa.Connection, run: Run, *, most: int = 1000) -> list[RecordedRun]:
    """The runs of the recipe that `run` belongs to, in launch order, the newest `most` of them."""
    same = [
        column.is_(None) if getattr(run, name) is None else column == getattr(run, name)
        for name in RECIPE
        for column in (schema.run.c[name],)
    ]
    ids = sa.select(schema.run.c.run_id).where(*same).order_by(schema.run.c.launched_at.desc()).limit(most)
    return by_ids(connection, [row[0] for row in connection.execute(ids)][::-1])


def version(connection: sa.Connection, run_id: str) -> tuple[int, int, bool]:
    """What changes when a run writes: its last checkpoint, its last phases, and whether it has ended."""
    last = sa.select(sa.func.coalesce(sa.func.max(schema.checkpoint.c.seq), 0)).where(
        schema.checkpoint.c.run_id == run_id
    )
    phase = sa.select(sa.func.coalesce(sa.func.max(schema.phase.c.seq), 0)).where(schema.phase.c.run_id == run_id)
    ended = sa.select(sa.func.count()).select_from(schema.end).where(schema.end.c.run_id == run_id)
    row = connection.execute(sa.select(last.scalar_subquery(), phase.scalar_subquery(), ended.scalar_subquery())).one()
    return row[0], row[1], bool(row[2])


def build_runs(connection: sa.Connection, most: int) -> list[str]:
    """Ids of the newest runs that are build benchmarks."""
    ids = sa.select(schema.kpi.c.run_id).distinct().order_by(schema.kpi.c.run_id.desc()).limit(most)
    return [row[0] for row in connection.execute(ids)]


def newest(connection: sa.Connection, most: int) -> list[Run]:
    """The runs that were launched last."""
    rows = connection.execute(sa.select(schema.run).order_by(schema.run.c.launched_at.desc()).limit(most))
    return [Run(*row) for row in rows]
