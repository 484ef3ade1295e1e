"""Runs from the ledger with what a page shows of them, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import sqlalchemy as sa

from mileage._errors import UsageError
from mileage.ledger import queries
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
    alone = len(found) == 1
    return [_filled(connection, run, episodes=episodes, alone=alone) for run in found]


def _filled(connection: sa.Connection, run: RecordedRun, *, episodes: bool, alone: bool) -> RecordedRun:
    run_id = run.run_id
    filled = replace(
        run,
        checkpoints=tuple(queries.checkpoints(connection, run_id)),
        profiles=tuple(queries.profiles(connection, run_id)),
        kpis=tuple(queries.kpis(connection, run_id)),
    )
    if alone:
        filled = replace(filled, phase_history=tuple(queries.phase_history(connection, run_id)))
    if filled.kpis:
        filled = replace(filled, samples=tuple(queries.samples(connection, run_id)))
    if episodes:
        judged = run.end.target_seq if run.end is not None else None
        seq = judged if judged is not None else queries.last_examined(connection, run_id)
        if seq is not None:
            filled = replace(filled, episodes=tuple(queries.episodes(connection, run_id, seq)))
    return filled
