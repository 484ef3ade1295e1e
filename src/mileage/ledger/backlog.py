"""The rows of a run that are not in the database yet: those on disk, and those that the disk has not taken yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mileage.ledger import spool
from mileage.ledger.rows import Checkpoint, Episode, Phase, Row

_CHUNK_ROWS = 100
"""Rows written at a time: between two chunks other threads get their turn, and a disk that is full is asked for few."""
HANGS_AFTER_SECONDS = 1.0
"""A disk that has been at one chunk for so long is taken for one that takes nothing."""
SLOW_SECONDS = 0.02
"""A disk that takes longer for a chunk is slow,"""
SLOW_FOR_SECONDS = 5.0
"""and for so long nobody who trains waits for it again."""


class Pending(NamedTuple):
    """What was to be delivered at one moment."""

    rows: list[Row]
    on_disk_only: bool
    """Whether rows were dropped from memory and have to be read back from the spool file."""
    end: int
    """The number of the row that comes behind the last of them."""


class Backlog:
    """Rows on their way through the spool file. Rows are handed over in order, numbered, and only ever move on.

    One thread writes them to disk and another delivers them. Whoever hands rows over waits for neither, or only for a
    disk that has been quick until now.
    """

    def __init__(self, file: spool.Spool, memory_rows: int) -> None:
        self._spool = file
        self._limit = memory_rows
        self._lock = threading.Lock()
        """Held for moments alone: nobody waits for a disk or a database under it."""
        self._file_lock = threading.Lock()
        self._rows: list[Row] = []
        self._first = self._written = self._promised = 0
        """Numbers of rows: of the first in memory, and those behind the last on disk and the last being delivered."""
        self._writing_since: float | None = None
        self._slow_until = float("-inf")
        self._added_at = float("-inf")
        self.on_disk_only = False
        """Whether rows were dropped from memory and have to be read back from the spool file."""
        self._full = False
        self.lost = 0
        """Rows that had to be given up: no disk took them, and memory has a limit."""

    @property
    def empty(self) -> bool:
        """Whether everything has been delivered."""
        return not (self._rows or self.on_disk_only or self.lost)

    @property
    def unwritten(self) -> int:
        """Rows that are in memory alone."""
        with self._lock:
            return self._first + len(self._rows) - max(self._first, self._written)

    @property
    def stuck(self) -> bool:
        """Whether the disk takes nothing at the moment."""
        since = self._writing_since
        return self._full or (since is not None and time.monotonic() - since > HANGS_AFTER_SECONDS)

    @property
    def quick(self) -> bool:
        """Whether the disk has taken everything without delay of late."""
        return not self._full and self._writing_since is None and time.monotonic() >= self._slow_until

    def add(self, rows: Sequence[Row], now: float, apart: float) -> bool:
        """Take `rows`; return whether those before came longer ago than `apart`."""
        with self._lock:
            alone = now - self._added_at >= apart
            self._added_at = now
            self._rows += rows
        return alone

    def flush(self, patience: float = -1.0) -> str | None:
        """Write what memory holds to the spool file; return what the disk said if it took nothing.

        Another thread that is at it is waited for, for `patience` seconds if that is not negative.
        """
        if not self._file_lock.acquire(timeout=patience):
            return None
        try:
            return self._flush()
        finally:
            self._file_lock.release()

    def _flush(self) -> str | None:
        while True:
            with self._lock:
                start = max(self._first, self._written)
                batch = self._rows[start - self._first :][:_CHUNK_ROWS]
            if not batch:
                self._full = False
                return None
            began = self._writing_since = time.monotonic()
            try:
                self._spool.append(batch)
            except OSError as error:
                self._full = True
                self._thin()
                return str(error.strerror)
            finally:
                self._took(time.monotonic() - began)
            with self._lock:
                self._written = start + len(batch)

    def _took(self, seconds: float) -> None:
        """The disk was at a chunk for so long."""
        self._writing_since = None
        if seconds > SLOW_SECONDS:
            self._slow_until = time.monotonic() + SLOW_FOR_SECONDS

    def _thin(self) -> None:
        """Keep what waits in memory within its limit; how a run ended and what it reached goes last."""
        with self._lock:
            start = max(self._first, self._written, self._promised)
            waiting = self._rows[start - self._first :]
        if len(waiting) <= self._limit:
            return
        kept: list[Row] = [row for row in waiting if not isinstance(row, Episode | Phase)]
        if len(kept) > self._limit // 2:
            kept = [
                row for i, row in enumerate(kept) if i % 2 == 0 or not isinstance(row, Checkpoint) or row.target_met
            ]
        with self._lock:
            if max(self._first, self._promised) <= start:  # none of them has been promised to the database meanwhile
                place = start - self._first
                self._rows[place : place + len(waiting)] = kept
                self.lost += len(waiting) - len(kept)

    def pending(self) -> Pending:
        """What is to be delivered now: what is on disk, and the rest where the disk does not take it."""
        with self._lock:
            end = self._first + len(self._rows) if self.stuck else max(self._first, self._written)
            self._promised = end
            return Pending(self._rows[: end - self._first], self.on_disk_only, end)

    def each(self, pending: Pending) -> Iterator[Row]:
        """The rows of `pending` one at a time, from disk where memory has not all of them."""
        content = spool.read(*self._spool.paths) if pending.on_disk_only else None
        if content is not None:
            yield from content.each()
        yield from pending.rows

    def delivered(self, pending: Pending, spool_bytes: int) -> None:
        """`pending` is in the database; a spool file above `spool_bytes` is emptied once all of it is."""
        with self._lock:
            del self._rows[: pending.end - self._first]
            self._first = pending.end
            self._promised = 0
            if pending.on_disk_only:  # what was written since is in memory too
                self.on_disk_only = False
        if self._spool.size > spool_bytes and self._file_lock.acquire(blocking=False):
            try:
                with self._lock:
                    everything = not self._rows and not self.on_disk_only
                if everything:
                    self._spool.clear()
            finally:
                self._file_lock.release()

    def restore(self) -> None:
        """Put spool files that somebody removed back under their names."""
        with self._file_lock:
            self._spool.restore()

    def shed(self) -> None:
        """Let the spool file alone keep rows when they become too many for memory; none of them is promised now."""
        with self._lock:
            self._promised = 0
            written = self._written - self._first
            if written > self._limit:
                del self._rows[:written]
                self._first = self._written
                self.on_disk_only = True

    def again(self, rows: Sequence[Row]) -> None:
        """These were delivered to a database that is gone: they are to be delivered once more."""
        with self._lock:
            self._rows[:0] = rows
            self._first -= len(rows)
            self.on_disk_only = True
