"""Runs as flat rows: one per run, checkpoint, phase or episode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mileage._errors import UsageError
from mileage._records import Record
from mileage.ledger.rows import End
from mileage.ledger.runs import RecordedRun
from mileage.metrics import METRICS

JSON_FIELDS = ("config", "machine", "panel", "price", "reset_reasons", "claimed", "gpus", "summary")
TABLES = ("runs", "checkpoints", "phases", "episodes")


def table_rows(runs: Sequence[RecordedRun], table: str) -> list[Record]:
    """One flat row per run, checkpoint, phase or episode; each carries its run's id and name."""
    if table not in TABLES:
        raise UsageError(f"table {table!r} is not known: use one of {', '.join(TABLES)}")
    rows: list[Record] = []
    for recorded in runs:
        if table == "runs":
            rows.append(run_row(recorded))
            continue
        part: Sequence[Any] = getattr(recorded, "phase_rows" if table == "phases" else table)
        rows += [{"run_id": recorded.run_id, "name": recorded.run.name, **row._asdict()} for row in part]
    return rows


def run_row(recorded: RecordedRun) -> Record:
    """A run, its end and its metrics as one flat row."""
    end = recorded.end._asdict() if recorded.end else dict.fromkeys(End._fields)
    names = (metric.name for metric in METRICS if metric.name not in End._fields)
    derived = {name: recorded.metric(name) if recorded.end else None for name in names}
    return {**recorded.run._asdict(), **end, **derived, "run_id": recorded.run_id, "state": str(recorded.state)}


def unpacked(row: Record) -> Record:
    """`row` with its JSON texts as values."""
    texts = {name: json.loads(row[name]) for name in JSON_FIELDS if isinstance(row.get(name), str)}
    return row | texts
