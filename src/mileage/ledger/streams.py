"""Runs for an export: one after the other, and the rows of each as they are asked for.

A ledger may hold more rows than memory: what an export holds at a time is one run's own row and a few thousand others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from mileage.ledger import queries, schema
from mileage.ledger.rows import ROW_TYPES
from mileage.ledger.runs import RecordedRun

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
    runs = queries.records(connection, newest_first=False) if text is None else queries.select_records(connection, text)
    for recorded in runs:
        whole = queries.with_notes(connection, queries.with_phases(connection, [recorded]))[0]
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
