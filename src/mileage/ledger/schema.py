"""The tables of the ledger, as they are after all migrations."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from mileage.ledger.rows import ROW_TYPES

HEAD = max(path.name[1:5] for path in (Path(__file__).parent / "migrations" / "versions").glob("v*.py"))
"""The newest migration, by the names of the scripts."""

metadata = sa.MetaData()

KEYS: dict[str, tuple[str, ...]] = {
    "run": ("run_id",),
    "checkpoint": ("run_id", "seq"),
    "phase": ("run_id", "seq", "phase"),
    "episode": ("run_id", "seq", "episode"),
    "profile": ("run_id", "seq"),
    "sample": ("run_id", "order"),
    "kpi": ("run_id", "seq"),
    "note": ("run_id", "note_id"),
    "end": ("run_id", "closed_by"),
}
"""Primary keys: what makes delivering a row twice the same as delivering it once."""

TABLE_NAMES: dict[str, str] = {
    "run": "ledger_run",
    "checkpoint": "ledger_checkpoint",
    "phase": "ledger_phase",
    "episode": "ledger_episode",
    "profile": "ledger_profile",
    "sample": "rl_sample",
    "kpi": "rl_kpi",
    "note": "ledger_note",
    "end": "ledger_end",
}

_TYPES: dict[type, Any] = {str: sa.Text, int: sa.BigInteger, float: sa.Double, bool: sa.Boolean}


def _columns(hints: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[sa.Column[Any]]:
    for name, hint in hints.items():
        optional = isinstance(hint, types.UnionType)
        plain = next(t for t in typing.get_args(hint) if t is not types.NoneType) if optional else hint
        yield sa.Column(name, _TYPES[plain](), nullable=optional, primary_key=name in keys, autoincrement=False)


def _table(kind: str) -> sa.Table:
    columns = _columns(typing.get_type_hints(ROW_TYPES[kind]), KEYS[kind])
    return sa.Table(TABLE_NAMES[kind], metadata, *columns, sqlite_with_rowid=False)


TABLES: dict[str, sa.Table] = {kind: _table(kind) for kind in ROW_TYPES}
run, checkpoint, phase, episode, profile, sample, kpi, note, end = TABLES.values()

heartbeat = sa.Table(
    "ledger_heartbeat",
    metadata,
    *_columns({"run_id": str, "beat_at": float, "wall_seconds": float}, ("run_id",)),
    sqlite_with_rowid=False,
)
"""The one table that is overwritten: the last sign of life of a run, no record of anything."""

history = sa.Table(
    "ledger_schema_history",
    metadata,
    *_columns({"version": str, "mileage_version": str, "applied_at": float}, ("version",)),
)
"""Which mileage brought the database to which schema version."""
