"""The background writer of one run: rows go to the spool file first, then to the database in batches.

A row that comes alone is on disk when the call returns: the calling thread writes it to the spool file. When rows
come faster than one per `FLUSH_SECONDS`, it only puts them into a list, and the background thread writes them, so
that they are on disk within `LATEST_FLUSH_SECONDS` at a few microseconds each. The database, where a transaction
costs as much as a hundred rows, gets them once a second. Its library is imported by the background thread, while
training already runs; a run that ends before that leaves its rows to `mileage.recording.courier`.

Nothing that happens to a disk or a server stops training: it is said once, in one sentence, and tried again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mileage._errors import LedgerError, MileageError
from mileage.ledger import spool
from mileage.ledger.address import database_url
from mileage.ledger.rows import Row, Run, check_run
from mileage.recording import courier

if TYPE_CHECKING:
    from mileage.ledger.store import Store

log = logging.getLogger("mileage.ledger")

FLUSH_SECONDS = 0.05
"""Rows further apart than this are written by the calling thread, at once."""
BATCH_SECONDS = 0.15
"""Rows that come fast are collected for so long before they are written to the spool file."""
LATEST_FLUSH_SECONDS = 0.3
"""The calling thread flushes by itself when the background thread has not for so long (it may wait for a server)."""
DELIVER_SECONDS = 1.0
"""How often the database gets rows."""
BEAT_SECONDS = 1.0
DATABASE_BEAT_SECONDS = 10.0
RETRY_SECONDS = 2.0
LOAD_AFTER_SECONDS = 1.5
"""A run that ends sooner leaves its rows to the courier: loading the database library would take longer than it."""
CLOSE_TIMEOUT_SECONDS = 20.0
MEMORY_ROWS = 50_000
"""Beyond this many undelivered rows, the spool file alone keeps them."""
SPOOL_BYTES = 1 << 20
"""A spool file above this size is emptied as soon as everything in it has been delivered."""


class Writer:
    """Takes the rows of one run from any thread and gets them into the ledger."""

    def __init__(
        self, run: Run, db: str | os.PathLike[str] | None = None, *, load_after: float = LOAD_AFTER_SECONDS
    ) -> None:
        """Start writing; the run row is on disk when this returns.

        Args:
            run: the launched run.
            db: path or address of the ledger.
            load_after: seconds after which the database is opened; a run that ends sooner leaves that to the courier.
        """
        self.run = check_run(run)
        self.url = database_url(db)
        self.problem: str | None = None
        """What keeps rows from their place at the moment, in one sentence."""
        self._lock = threading.Lock()
        self._file_lock = threading.Lock()
        self._unflushed: list[Row] = []
        self._undelivered: list[Row] = []
        self._on_disk_only = False
        """Whether rows were dropped from memory and have to be read back from the spool file."""
        self._appended_at = self._flushed_at = float("-inf")
        self._store: Store | None = None
        self._said: set[str] = set()
        self._open_at = time.monotonic() + load_after
        self._left_to_courier = False
        self._closing = threading.Event()
        self._wake = threading.Event()
        try:
            self._spool = spool.Spool(spool.spool_dir(self.url), run.run_id)
        except OSError as error:
            raise LedgerError(
                f"the ledger's directory {spool.spool_dir(self.url)} cannot be written: {error.strerror}"
            ) from None
        self.append([run])
        self._thread = threading.Thread(target=self._work, name="mileage-ledger", daemon=True)
        self._thread.start()

    # The calling side

    def append(self, rows: Sequence[Row]) -> None:
        """Hand over `rows`."""
        now = time.monotonic()
        with self._lock:
            alone = now - self._appended_at >= FLUSH_SECONDS
            self._appended_at = now
            self._unflushed += rows
        if alone or now - self._flushed_at >= LATEST_FLUSH_SECONDS:
            self._flush()
        elif not self._wake.is_set():
            self._wake.set()

    def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> bool:
        """Deliver everything and stop; return whether all rows are in the database.

        Rows of a short run are left to the courier. Rows that could not be delivered stay in the spool file for the
        next one who opens the ledger.
        """
        self._flush()
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)
        if self._left_to_courier:
            self._spool.close(remove=False)
            courier.deliver_at_exit(self.url)
            return False
        delivered = not self._thread.is_alive() and not self._undelivered and not self._unflushed
        delivered = delivered and not self._on_disk_only
        if not self._thread.is_alive():
            self._spool.close(remove=delivered)
        if not delivered:
            self._say_left_behind()
        return delivered

    def _say_left_behind(self) -> None:
        lost = len(self._unflushed)
        if lost:
            self._say(f"{lost} ledger rows of run {self.run.run_id} could not be written anywhere and are lost")
        else:
            self._say(
                f"the ledger rows of run {self.run.run_id} wait in {self._spool.path} for the next mileage command"
            )

    # Both sides

    def _flush(self) -> None:
        """Write the list to the spool file; encoding happens outside the lock that callers wait for."""
        with self._file_lock:
            with self._lock:
                batch, self._unflushed = self._unflushed, []
            self._flushed_at = time.monotonic()
            if not batch:
                return
            try:
                self._spool.append(batch)
            except OSError as error:
                with self._lock:
                    self._unflushed = batch + self._unflushed
                self._trouble(f"ledger rows cannot be written to {self._spool.path} ({error.strerror}): kept in memory")
                return
            with self._lock:
                self._undelivered += batch

    # The background side

    def _work(self) -> None:
        beat_at = database_beat_at = deliver_at = 0.0
        started = False
        while True:
            closing = self._closing.is_set()
            if started and not closing:
                self._wake.wait(BEAT_SECONDS)
                self._closing.wait(BATCH_SECONDS)
                self._wake.clear()
            started = True
            now = time.monotonic()
            self._flush()
            if now - beat_at >= BEAT_SECONDS:
                beat_at = now
                self._beat_file()
            young = self._store is None and now < self._open_at
            if young:
                self._left_to_courier = closing and not self._unflushed
            if (closing and not self._left_to_courier) or (now >= deliver_at and not young):
                ok = self._deliver()
                deliver_at = now + (DELIVER_SECONDS if ok else RETRY_SECONDS)
                if ok and not closing and now - database_beat_at >= DATABASE_BEAT_SECONDS:
                    database_beat_at = now
                    self._beat_database()
            if closing:
                break
        if self._store is not None:
            self._store.close()

    def _beat_file(self) -> None:
        try:
            self._spool.beat()
        except OSError as error:
            self._trouble(f"the heartbeat cannot be written to {self._spool.path} ({error.strerror})")

    def _beat_database(self) -> None:
        try:
            if self._store is not None:
                self._store.beat(self.run.run_id, time.time() - self.run.started_at)
        except MileageError as error:
            self._trouble(f"{error}: rows are kept and delivered later")

    def _deliver(self) -> bool:
        """Bring what has been flushed, and what the disk refused, into the database."""
        with self._file_lock, self._lock:
            pending = [*self._undelivered, *self._unflushed]
            on_disk_only = self._on_disk_only
            position = self._spool.size
        try:
            if self._store is None:
                from mileage.ledger.store import Store  # the only import of the database library

                self._store = Store(self.url)
            rows = self._from_disk() if on_disk_only else pending
            for row, why in self._store.deliver(rows) if rows else ():
                self._say(f"the ledger refused a row of run {self.run.run_id}: {why} ({type(row).__name__} row)")
        except MileageError as error:
            self._trouble(f"{error}: rows are kept and delivered later")
            self._shed()
            return False
        except Exception as error:  # a bug here must not end training, nor be silent
            self._trouble(f"ledger rows cannot be delivered: {type(error).__name__}: {error}")
            self._shed()
            return False
        self._delivered(pending, position, on_disk_only)
        return True

    def _from_disk(self) -> list[Row]:
        content = spool.read(self._spool.path)
        with self._lock:
            return [*(content.rows if content else []), *self._unflushed]

    def _delivered(self, pending: list[Row], position: int, on_disk_only: bool) -> None:
        with self._file_lock, self._lock:
            # Rows are handed over in order and only ever move from the one list to the other.
            waiting = [*self._undelivered, *self._unflushed][len(pending) :]
            flushed = max(len(self._undelivered) - len(pending), 0)
            self._undelivered, self._unflushed = waiting[:flushed], waiting[flushed:]
            if on_disk_only and self._spool.size == position:
                self._on_disk_only = False
            everything = not self._undelivered and not self._unflushed and not self._on_disk_only
            if everything and self._spool.size > SPOOL_BYTES:
                self._spool.clear()
        if self.problem is not None:
            self.problem = None
            self._said.clear()

    def _shed(self) -> None:
        """Let the spool file alone keep rows when they become too many for memory."""
        with self._lock:
            if len(self._undelivered) > MEMORY_ROWS:
                self._undelivered = []
                self._on_disk_only = True

    def _trouble(self, sentence: str) -> None:
        self.problem = sentence
        self._say(sentence)

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            log.warning("%s", sentence)
