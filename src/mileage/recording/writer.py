"""The background writer of one run: rows go to the spool file first, then to the database in batches.

A row that comes alone is on disk when the call returns: the calling thread writes it to the spool file. When rows
come faster than one per `FLUSH_SECONDS`, it only puts them into a list, and the background thread writes them, so
that they are on disk within `LATEST_FLUSH_SECONDS` at a few microseconds each. The database, where a transaction
costs as much as a hundred rows, gets them once a second. Its library is imported by the background thread, while
training already runs; a run that ends before that leaves its rows to `mileage.recording.courier`.

Nothing that happens to a disk or a server stops training: it is said once, in one sentence, and tried again. A disk
that takes nothing more is left to the background thread; the calling thread does not wait for it, and what piles up in
memory meanwhile has a limit. A database file that somebody removes or replaces gets everything of the run once more.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mileage._errors import LedgerError, LedgerMovedError, MileageError
from mileage.ledger import spool
from mileage.ledger.address import DbAddress, database_url
from mileage.ledger.rows import Row, Run, check_run
from mileage.recording import courier
from mileage.recording.backlog import Backlog

if TYPE_CHECKING:
    from mileage.ledger.store import Store

FLUSH_SECONDS = 0.05
"""Rows further apart than this are written by the calling thread, at once."""
BATCH_SECONDS = 0.15
"""Rows that come fast are collected for so long before they are written to the spool file."""
LATEST_FLUSH_SECONDS = 0.3
"""The calling thread flushes by itself when the background thread has not for so long (it may wait for a server)."""
DELIVER_SECONDS = 1.0
"""How often the database gets rows."""
BEAT_SECONDS = 0.1
"""How often the spool file says that the run is alive: a run that disappears is billed to within this."""
DATABASE_BEAT_SECONDS = 10.0
SETTLE_SECONDS = 3.0
"""How often rows are brought from SQLite's journal into its file."""
RETRY_SECONDS = 2.0
LOAD_AFTER_SECONDS = 1.5
"""A run that ends sooner leaves its rows to the courier: loading the database library would take longer than it."""
CLOSE_TIMEOUT_SECONDS = 20.0
MEMORY_ROWS = 50_000
"""Beyond this many undelivered rows, the spool file alone keeps them."""
SPOOL_BYTES = 1 << 20
"""A spool file above this size is emptied as soon as everything in it has been delivered."""


_BROKEN = ("disk I/O error", "malformed", "not a database")
"""What SQLite says where its file or its journal is not what it was: only a new connection finds what is there now."""


class Writer:
    """Takes the rows of one run from any thread and gets them into the ledger."""

    def __init__(
        self, run: Run, db: DbAddress = None, *, load_after: float = LOAD_AFTER_SECONDS, launched: bool = True
    ) -> None:
        """Start writing; the run row is on disk when this returns.

        Args:
            run: the launched run.
            db: path or address of the ledger.
            load_after: seconds after which the database is opened; a run that ends sooner leaves that to the courier.
            launched: False for a run of which not everything is known yet: its row stays on disk until `launch`.
        """
        self.run = check_run(run)
        self.url = database_url(db)
        self.problem: str | None = None
        """What keeps rows from their place at the moment, in one sentence."""
        self._pid = os.getpid()
        self._wall_at_start = time.time() - run.started_at
        self._started = time.monotonic()
        self._load_after = load_after
        self._open_at = self._started + load_after if launched else float("inf")
        self._store: Store | None = None
        self._said: set[str] = set()
        self._left_to_courier = self._withdrawn = False
        self._handed_over = self._refused = 0
        self._closing, self._wake = threading.Event(), threading.Event()
        directories = spool.spool_dirs(self.url)
        try:
            self._spool = spool.Spool(directories[0], run.run_id, *directories[1:])
        except OSError as error:
            raise LedgerError(f"the ledger's directory {directories[0]} cannot be written: {error.strerror}") from None
        self._backlog = Backlog(self._spool, MEMORY_ROWS, self._beat)
        courier.expect()
        self.append([run])
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._work, "mileage-ledger"), (self._keep_beating, "mileage-heartbeat"))
        ]
        for thread in self._threads:
            thread.start()

    # The calling side

    @property
    def wall_seconds(self) -> float:
        """Wall-clock of the run by a clock that nobody sets."""
        return self._wall_at_start + time.monotonic() - self._started

    @property
    def forked(self) -> bool:
        """Whether this is a process that was forked off the one that records the run, and has no say in it."""
        return os.getpid() != self._pid

    def launch(self, run: Run) -> None:
        """Everything is known about the run now; this is its row."""
        self.run = check_run(run)
        self.append([run])
        self._open_at = time.monotonic() + self._load_after
        self._wake.set()

    def append(self, rows: Sequence[Row]) -> None:
        """Hand over `rows`."""
        if self.forked:
            return
        now = time.monotonic()
        self._handed_over += sum(not isinstance(row, Run) for row in rows)
        alone = self._backlog.add(rows, now, FLUSH_SECONDS)
        if not self._backlog.stuck and (alone or now - self._backlog.flushed_at >= LATEST_FLUSH_SECONDS):
            self._flush()
        elif not self._wake.is_set():
            self._wake.set()

    def withdraw(self) -> None:
        """There is no such run: forget it."""
        self._withdrawn = True
        self.close()

    def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> bool:
        """Deliver everything and stop; return whether all rows are in the database.

        Rows of a short run are left to the courier. Rows that could not be delivered stay in the spool file for the
        next one who opens the ledger.
        """
        if self.forked:
            return False
        self._flush()
        self._closing.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(timeout)
        worked = not self._threads[0].is_alive()
        if self._withdrawn or self._left_to_courier:
            self._spool.close(remove=self._withdrawn)
            if not self._withdrawn:
                courier.deliver_at_exit(self.url)
            return False
        delivered = worked and self._backlog.empty and self._in_place()
        if worked:
            self._spool.close(remove=delivered)
            if self._store is not None:
                self._store.close()
        if not delivered:
            self._say_left_behind()
        return delivered

    def _in_place(self) -> bool:
        """Whether the database still has what it was given."""
        try:
            if self._store is not None:
                self._store.check_place(self.run.run_id)
                self._store.check_kept(self.run.run_id, self._handed_over - self._refused)
            return True
        except MileageError as error:
            self._trouble(str(error))
            return False

    def _say_left_behind(self) -> None:
        lost = self._backlog.lost + self._backlog.unwritten
        if lost:
            self._say(f"{lost} ledger rows of run {self.run.run_id} could not be written anywhere and are lost")
        else:
            self._say(
                f"the ledger rows of run {self.run.run_id} wait in {self._spool.path} for the next mileage command"
            )

    # Both sides

    def _flush(self) -> None:
        trouble = self._backlog.flush()
        if trouble is not None:
            self._trouble(f"ledger rows cannot be written to {self._spool.path} ({trouble}): kept in memory")

    def _beat(self) -> None:
        self._spool.beat(self.run.started_at + self.wall_seconds)

    # The background side

    def _keep_beating(self) -> None:
        """Nothing but the heartbeat: a server that makes the other thread wait must not make the run look dead."""
        while not self._closing.wait(BEAT_SECONDS):
            try:
                self._beat()
            except OSError as error:
                self._trouble(f"the heartbeat cannot be written to {self._spool.path} ({error.strerror})")

    def _work(self) -> None:
        deliver_at = 0.0
        while True:
            closing = self._closing.is_set()
            now = time.monotonic()
            self._flush()
            young = self._store is None and now < self._open_at
            if young:
                self._left_to_courier = closing and self._backlog.written
            if self._withdrawn:
                return
            if (closing and not self._left_to_courier) or (now >= deliver_at and not young):
                ok = self._deliver()
                deliver_at = now + (DELIVER_SECONDS if ok else RETRY_SECONDS)
                if ok and not closing:
                    self._now_and_then(now)
            if closing:
                return
            if self._wake.wait(min(DELIVER_SECONDS, 0.5)):
                self._closing.wait(BATCH_SECONDS)
                self._wake.clear()

    _database_beat_at = _settle_at = 0.0

    def _now_and_then(self, now: float) -> None:
        """What the database needs beside rows."""
        if self._store is None:
            return
        try:
            if now - self._database_beat_at >= DATABASE_BEAT_SECONDS:
                if self._database_beat_at == 0.0:
                    self._store.recover()  # what others left behind, once, and never when this run is about to end
                self._database_beat_at = now
                self._store.beat(self.run.run_id, self.wall_seconds)
            if now - self._settle_at >= SETTLE_SECONDS:
                self._settle_at = now
                self._store.settle()
                self._spool.restore()
        except (MileageError, OSError) as error:
            self._trouble(f"{error}: rows are kept and delivered later")

    def _deliver(self) -> bool:
        """Bring what has been flushed, and what the disk refused, into the database."""
        try:
            store = self._opened()
            pending = self._backlog.pending()
            rows = self._backlog.from_disk() if pending.on_disk_only else pending.rows
            if rows and self.problem is not None:
                self._give(store, rows[:1])  # a database that takes nothing is not offered everything every time
            self._give(store, rows)
        except MileageError as error:
            self._trouble(f"{error}: rows are kept and delivered later")
            self._backlog.shed()
            if self._store is not None and any(sign in str(error) for sign in _BROKEN):
                self._store.close()
                self._store = None
                self._backlog.again(())  # what it was given before may be gone
            return False
        except Exception as error:  # a bug here must not end training, nor be silent
            self._trouble(f"ledger rows cannot be delivered: {type(error).__name__}: {error}")
            self._backlog.shed()
            return False
        self._backlog.delivered(pending, SPOOL_BYTES)
        if self.problem is not None:
            self.problem = None
            self._said.clear()
        return True

    def _give(self, store: Store, rows: Sequence[Row]) -> None:
        for row, why in store.deliver(rows) if rows else ():
            self._refused += 1
            self._say(f"the ledger refused a row of run {self.run.run_id}: {why} ({type(row).__name__} row)")

    def _opened(self) -> Store:
        """The database with the run in it: opened when it is first needed, and again if it is not the same any more."""
        from mileage.ledger.store import Store  # the only import of the database library

        if self._store is not None:
            try:
                self._store.check_place(self.run.run_id)
                return self._store
            except LedgerMovedError as moved:
                self._say(f"{moved}: all that is known of run {self.run.run_id} goes to the ledger that is there now")
            former, self._store = self._store, None
            self._backlog.again(former.rows_of(self.run.run_id))
            former.close()
        self._store = Store(self.url, recover=False)
        self._give(self._store, [self.run])
        return self._store

    def _trouble(self, sentence: str) -> None:
        self.problem = sentence
        self._say(sentence)

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            import logging  # takes as long as everything that is imported before the run is on disk

            logging.getLogger("mileage.ledger").warning("%s", sentence)
