"""An append-only file per run that rows are written to before they are delivered to the database.

The file is what survives: a killed process, a database server that is away, a process that ends before delivery. Rows
carry their run id and sequence number, so delivering a file twice changes nothing. The first line says which columns
each kind of row has, so that a later version can read what an earlier one left behind.

The file's modification time is the run's heartbeat on this host.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mileage.ledger.rows import FORMAT_VERSION, KIND_OF, ROW_TYPES, End, Row, Run, check_run_id

_encode = json.JSONEncoder(separators=(",", ":")).encode
SUFFIX = ".rows"


def spool_dir(url: str) -> Path:
    """Where the rows for the database at `url` wait: beside an SQLite file, otherwise in the user's state."""
    if url.startswith("sqlite:///"):
        return Path(url.removeprefix("sqlite:///") + ".spool")
    override = os.environ.get("MILEAGE_SPOOL")
    if override:
        base = Path(override)
    else:
        import platformdirs  # only for servers

        base = platformdirs.user_state_path("mileage") / "spool"
    address = url.rsplit("@", 1)[-1]  # without user and password, which may change
    return base / hashlib.sha256(address.encode()).hexdigest()[:16]


def encode(rows: Iterable[Row]) -> bytes:
    """`rows` as lines."""
    return "".join([_encode([KIND_OF[type(row)], row]) + "\n" for row in rows]).encode("ascii")


class Spool:
    """The spool file of one running run."""

    def __init__(self, directory: Path, run_id: str) -> None:
        self.path = directory / (check_run_id(run_id) + SUFFIX)
        directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = 0
        self._header = _header_line()

    @property
    def size(self) -> int:
        """Bytes written and not yet given back."""
        return self._size

    def append(self, rows: Iterable[Row]) -> None:
        """Write `rows` completely or not at all; an OSError (disk full) leaves the file as it was."""
        data = encode(rows)
        if self._size == 0:
            data = self._header + data
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def beat(self) -> None:
        """Say that the run is alive."""
        os.utime(self._fd)

    def clear(self) -> None:
        """Give the space back after everything has been delivered."""
        os.ftruncate(self._fd, 0)
        self._size = 0

    def close(self, *, remove: bool) -> None:
        """Close the file; `remove` it if all of it has been delivered."""
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)


@dataclass(frozen=True)
class SpoolContent:
    """What a spool file holds."""

    path: Path
    rows: list[Row]
    beat_at: float
    """Modification time: the last sign of life."""

    @property
    def run(self) -> Run | None:
        """The run row, unless it has been delivered and cleared."""
        return next((row for row in self.rows if isinstance(row, Run)), None)

    @property
    def complete(self) -> bool:
        """Whether the run wrote its end."""
        return any(isinstance(row, End) for row in self.rows)

    @property
    def run_id(self) -> str:
        """The run the file belongs to."""
        return self.path.name.removesuffix(SUFFIX)


def _header_line() -> bytes:
    columns = {kind: list(row_type._fields) for kind, row_type in ROW_TYPES.items()}
    return (_encode(["format", FORMAT_VERSION, columns]) + "\n").encode("ascii")


def read(path: Path) -> SpoolContent | None:
    """What `path` holds, without a torn last line; None if it is gone."""
    try:
        data = path.read_bytes()
        beat_at = path.stat().st_mtime
    except FileNotFoundError:
        return None
    columns: dict[str, list[str]] = {}
    rows: list[Row] = []
    for line in data.split(b"\n")[:-1]:  # what follows the last newline was never completely written
        try:
            record = json.loads(line)
            if record[0] == "format":
                columns = record[2]
                continue
            rows.append(_row(record[0], columns[record[0]], record[1]))
        except (ValueError, KeyError, IndexError, TypeError):
            continue  # a line damaged by a lost disk is a lost row, not a lost run
    return SpoolContent(path, rows, beat_at)


def _row(kind: str, columns: list[str], values: list[Any]) -> Row:
    row_type = ROW_TYPES[kind]
    by_name = dict(zip(columns, values, strict=True))
    row: Row = row_type(*(by_name.get(field) for field in row_type._fields))
    return row


def waiting(directory: Path) -> list[Path]:
    """The spool files in `directory`, in launch order."""
    with contextlib.suppress(OSError):
        return sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIX))
    return []
