"""Rows and fields that say what a clock and a disk have shown."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mileage.ledger.rows import Phase
from mileage.meter import PhaseTimes


def phase_rows(run_id: str, seq: int, times: PhaseTimes) -> list[Phase]:
    """A row for every phase so far, and for what went on beside them."""
    wall = times.wall_seconds
    rows = [
        Phase(run_id, seq, name, wall, seconds, times.entries.get(name, 0), False)
        for name, seconds in times.phases.items()
    ]
    for lane, phases in times.beside.items():
        rows += [Phase(run_id, seq, f"{lane}/{name}", wall, spent, 0, True) for name, spent in phases.items()]
    return rows


def file_hash(path: Path) -> str | None:
    """SHA-256 of a file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
