"""Runs as flat rows: one per run, checkpoint, phase or episode."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Iterator

from mileage._errors import UsageError
from mileage._records import Record
from mileage.ledger.rows import ROW_TYPES, Checkpoint, End
from mileage.ledger.runs import RecordedRun
from mileage.ledger.streams import RunStream
from mileage.metrics import METRICS

JSON_FIELDS = ("config", "machine", "panel", "price", "reset_reasons", "claimed", "gpus", "summary")
TABLES: dict[str, str] = {
    "runs": "run",
    "checkpoints": "checkpoint",
    "phases": "phase",
    "episodes": "episode",
    "notes": "note",
}
"""The tables, and the kind of row that each has."""
_SAVED = {"policy_path": "path", "policy_sha256": "sha256", "policy_step": "step"}
"""Of the last checkpoint that was written to a file."""
_JUDGED = {"policy_success_rate": "success_rate", "policy_mean_return": "mean_return"}
"""Of the evaluation of that very policy: the last one at the same step."""


def stream_rows(runs: Iterable[RunStream], table: str) -> Iterator[Record]:
    """One flat row per run, checkpoint, phase or episode; each carries its run's id and name."""
    kind = table_kind(table)
    for stream in runs:
        recorded = stream.recorded
        if kind == "run":
            yield run_row(recorded) | policy_row(stream.rows("checkpoint"))
            continue
        for row in stream.rows(kind):
            yield {"run_id": recorded.run_id, "name": recorded.run.name, **row._asdict()}


def table_kind(table: str) -> str:
    """The kind of row that `table` has."""
    if table not in TABLES:
        raise UsageError(f"table {table!r} is not known: use one of {', '.join(TABLES)}")
    return TABLES[table]


def columns(table: str) -> dict[str, type]:
    """The names of a table's columns and what they hold: `str`, `int`, `float` or `bool`."""
    kind = table_kind(table)
    if kind != "run":
        return {"run_id": str, "name": str} | _plain_types(kind)
    derived = {metric.name: float for metric in METRICS if metric.name not in End._fields}
    policy = {ours: _plain_types("checkpoint")[theirs] for ours, theirs in (_SAVED | _JUDGED).items()}
    return {**_plain_types("run"), **_plain_types("end"), **derived, "voided": bool, **policy}


def _plain_types(kind: str) -> dict[str, type]:
    found = {}
    for name, hint in typing.get_type_hints(ROW_TYPES[kind]).items():
        allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        found[name] = next(each for each in allowed if each is not types.NoneType)
    return found


def run_row(recorded: RecordedRun) -> Record:
    """A run, its end and its metrics as one flat row; of a run that goes on, what it has used so far."""
    end = recorded.end._asdict() if recorded.end else dict.fromkeys(End._fields)
    known = recorded.end is not None or recorded.wall_seconds > 0
    derived = {
        metric.name: recorded.metric(metric.name) if known else None
        for metric in METRICS
        if end.get(metric.name) is None
    }
    return {
        **recorded.run._asdict(),
        **end,
        **derived,
        "run_id": recorded.run_id,
        "state": str(recorded.state),
        "voided": recorded.voided,
    }


def policy_row(checkpoints: Iterable[Checkpoint]) -> Record:
    """Where a run's policy is, the hash of the file, and what that policy scored on the panel."""
    saved: Checkpoint | None = None
    judged: Checkpoint | None = None
    for row in checkpoints:
        saved = row if row.path is not None else saved
        judged = row if row.mean_return is not None or row.success_rate is not None else judged
    same = judged if saved is not None and judged is not None and judged.step == saved.step else None
    return {name: None if saved is None else getattr(saved, field) for name, field in _SAVED.items()} | {
        name: None if same is None else getattr(same, field) for name, field in _JUDGED.items()
    }


def unpacked(row: Record) -> Record:
    """`row` with its JSON texts as values."""
    texts = {name: json.loads(row[name]) for name in JSON_FIELDS if isinstance(row.get(name), str)}
    return row | texts
