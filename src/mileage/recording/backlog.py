"""The rows of a run that are not in the database yet: those on disk, and those that the disk has not taken yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mileage.ledger import spool
from mileage.ledger.rows import Checkpoint, Episode, Phase, Row

_CHUNK_ROWS = 250
"""Rows written at a time: between two chunks other threads get their turn, and a disk that is full is asked for few."""


class Pending(NamedTuple):
    """What was to be delivered at one moment."""

    rows: list[Row]
    on_disk_only: bool
    """Whether rows were dropped from memory and have to be read back from the spool file."""
    position: int
    """Size of the spool file at that moment."""


class Backlog:
    """Rows on their way through the spool file. Rows are handed over in order, and only ever move on."""

    def __init__(self, file: spool.Spool, memory_rows: int, beat: Callable[[], None]) -> None:
        self._spool = file
        self._limit = memory_rows
        self._beat = beat
        self._lock = threading.Lock()
        self._file_lock = threading.Lock()
        self._unflushed: list[Row] = []
        self._undelivered: list[Row] = []
        self.on_disk_only = False
        """Whether rows were dropped from memory and have to be read back from the spool file."""
        self.stuck = False
        """Whether the disk takes nothing at the moment."""
        self.lost = 0
        """Rows that had to be given up: no disk took them, and memory has a limit."""
        self._added_at = self.flushed_at = float("-inf")

    @property
    def empty(self) -> bool:
        """Whether everything has been delivered."""
        return not (self._unflushed or self._undelivered or self.on_disk_only or self.lost)

    @property
    def written(self) -> bool:
        """Whether everything is on disk."""
        return not self._unflushed

    @property
    def unwritten(self) -> int:
        """Rows that are in memory alone."""
        return len(self._unflushed)

    def add(self, rows: Sequence[Row], now: float, apart: float) -> bool:
        """Take `rows`; return whether those before came longer ago than `apart`."""
        with self._lock:
            alone = now - self._added_at >= apart
            self._added_at = now
            self._unflushed += rows
        return alone

    def flush(self) -> str | None:
        """Write what memory holds to the spool file; return what the disk said if it took nothing."""
        with self._file_lock:
            self.flushed_at = time.monotonic()
            while True:
                with self._lock:
                    batch = self._unflushed[:_CHUNK_ROWS]
                if not batch:
                    self.stuck = False
                    return None
                try:
                    self._spool.append(batch)
                    self._beat()
                except OSError as error:
                    self.stuck = True
                    self._thin()
                    return str(error.strerror)
                with self._lock:
                    del self._unflushed[: len(batch)]
                    self._undelivered += batch

    def _thin(self) -> None:
        """Keep what waits in memory within its limit; how a run ended and what it reached goes last."""
        with self._lock:
            before = len(self._unflushed)
            if before <= self._limit:
                return
            self._unflushed = [row for row in self._unflushed if not isinstance(row, Episode | Phase)]
            if len(self._unflushed) > self._limit // 2:
                self._unflushed = [
                    row
                    for i, row in enumerate(self._unflushed)
                    if i % 2 == 0 or not isinstance(row, Checkpoint) or row.target_met
                ]
            self.lost += before - len(self._unflushed)

    def pending(self) -> Pending:
        """What is to be delivered now."""
        with self._file_lock, self._lock:
            return Pending([*self._undelivered, *self._unflushed], self.on_disk_only, self._spool.size)

    def from_disk(self) -> list[Row]:
        """Every row that is still on disk or in memory."""
        content = spool.read(*self._spool.paths)
        with self._lock:
            return [*(content.rows if content else []), *self._undelivered, *self._unflushed]

    def delivered(self, pending: Pending, spool_bytes: int) -> None:
        """`pending` is in the database; a spool file above `spool_bytes` is emptied once all of it is."""
        with self._file_lock, self._lock:
            waiting = [*self._undelivered, *self._unflushed][len(pending.rows) :]
            flushed = max(len(self._undelivered) - len(pending.rows), 0)
            self._undelivered, self._unflushed = waiting[:flushed], waiting[flushed:]
            if pending.on_disk_only and self._spool.size == pending.position:
                self.on_disk_only = False
            everything = not self._undelivered and not self._unflushed and not self.on_disk_only
            if everything and self._spool.size > spool_bytes:
                self._spool.clear()

    def shed(self) -> None:
        """Let the spool file alone keep rows when they become too many for memory."""
        with self._lock:
            if len(self._undelivered) > self._limit:
                self._undelivered = []
                self.on_disk_only = True

    def again(self, rows: Sequence[Row]) -> None:
        """These were delivered to a database that is gone: they are to be delivered once more."""
        with self._lock:
            self._undelivered[:0] = rows
            self.on_disk_only = True
