"""Runs from the ledger with what a page shows of them, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import sqlalchemy as sa

from mileage._errors import UsageError
from mileage.ledger import queries
from mileage.ledger.rows import Episode
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store

MOST_RUNS = 2_000
"""More runs than this are no report anybody reads."""


def select(store: Store, selections: Iterable[str]) -> list[RecordedRun]:
    """The runs that the selections name, in their order, each once."""
    found: dict[str, RecordedRun] = {}
    for text in selections:
        found.update((run.run_id, run) for run in store.read(queries.select_records, text))
    if len(found) > MOST_RUNS:
        raise UsageError(f"a report takes at most {MOST_RUNS:,} runs, not {len(found):,}: select fewer")
    return list(found.values())


def loaded(store: Store, runs: Sequence[RecordedRun], *, episodes: bool = True) -> list[RecordedRun]:
    """The same runs with checkpoints, phases, and the episodes that their success was judged by."""
    return store.read(_loaded, runs, episodes)


def _loaded(connection: sa.Connection, runs: Sequence[RecordedRun], episodes: bool) -> list[RecordedRun]:
    found = queries.with_phases(connection, queries.with_parents(connection, runs))
    ids = [run.run_id for run in found]
    checkpoints = queries.rows_by_run(connection, "checkpoint", ids, "run_id", "seq")
    profiles = queries.rows_by_run(connection, "profile", ids, "seq")
    kpis = queries.rows_by_run(connection, "kpi", ids, "seq")
    samples = queries.rows_by_run(connection, "sample", list(kpis), "order")
    played = _judged(connection, found) if episodes else {}
    filled = [
        replace(
            run,
            checkpoints=tuple(checkpoints.get(run.run_id, ())),
            profiles=tuple(profiles.get(run.run_id, ())),
            kpis=tuple(kpis.get(run.run_id, ())),
            samples=tuple(samples.get(run.run_id, ())),
            episodes=tuple(played.get(run.run_id, ())),
        )
        for run in found
    ]
    if len(filled) == 1:
        history = queries.phase_history(connection, filled[0].run_id)
        return [replace(filled[0], phase_history=tuple(history))]
    return filled


def _judged(connection: sa.Connection, runs: Sequence[RecordedRun]) -> dict[str, list[Episode]]:
    """The episodes of the first checkpoint that met the target, otherwise of the last that has some."""
    met = {run.run_id: run.end.target_seq for run in runs if run.end is not None and run.end.target_seq is not None}
    others = [run.run_id for run in runs if run.run_id not in met]
    return queries.judged_episodes(connection, met | queries.last_examined(connection, others))
