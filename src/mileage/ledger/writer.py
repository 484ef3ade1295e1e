"""The background writer of one run: rows go to the spool file first, then to the database in batches.

The calling thread puts rows into a list. One thread writes them to the spool file, ten times a second, and keeps its
heartbeat; another brings them into the database, where a transaction costs as much as a hundred rows, once a second.
Its library is imported by that thread, while training already runs; a run that ends before that leaves its rows to
`mileage.ledger.courier`. A row that comes alone the calling thread writes itself, so that it is on disk when the
call returns, as long as the disk is quick: one that is slow, hangs or is full is left to the other thread. The row that
reaches the target is always written like that, unless the disk takes nothing.

Nothing that happens to a disk or a server stops training, a disk that hangs included: it is said once, in one sentence,
and tried again, and what piles up in memory meanwhile has a limit. A database file that somebody removes or replaces
gets everything of the run once more.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mileage.errors import LedgerError, LedgerMovedError, MileageError
from mileage.ledger import courier, spool
from mileage.ledger.address import DbAddress, database_url
from mileage.ledger.backlog import Backlog
from mileage.ledger.rows import Row, Run, check_run

if TYPE_CHECKING:
    from mileage.ledger.store import Store

FLUSH_SECONDS = 0.05
"""Rows further apart than this are written at once, by the calling thread."""
AT_ONCE_SECONDS = 0.5
"""How long the row that reaches the target waits for others to be written."""
DELIVER_SECONDS = 1.0
"""How often the database gets rows."""
BEAT_SECONDS = 0.1
"""How often rows go to the spool file, with a sign of life: a run that disappears is billed to within this."""
DATABASE_BEAT_SECONDS = 10.0
SETTLE_SECONDS = 3.0
"""How often rows are brought from SQLite's journal into its file, and a spool file that is gone is made again."""
RETRY_SECONDS = 2.0
SAY_AGAIN_SECONDS = 60.0
"""What was wrong, is well again and goes wrong once more is not said more often than this."""
LOAD_AFTER_SECONDS = 1.5
"""A run that ends sooner leaves its rows to the courier: loading the database library would take longer than it."""
CLOSE_TIMEOUT_SECONDS = 5.0
"""How long a run that ends waits for the database; what takes longer is left to whoever comes next."""
LAST_WRITE_SECONDS = 2.0
"""How long it waits for the disk before the database gets what is in memory alone."""
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
        self._forgot_at = float("-inf")
        self._left_to_courier = self._withdrawn = False
        self._handed_over = self._refused = 0
        self._closing, self._wake, self._to_disk = threading.Event(), threading.Event(), threading.Event()
        self._last_written = threading.Event()
        directories = spool.spool_dirs(self.url)
        try:
            self._spool = spool.Spool(directories[0], run.run_id, *directories[1:])
        except OSError as error:
            raise LedgerError(f"the ledger's directory {directories[0]} cannot be written: {error.strerror}") from None
        self._backlog = Backlog(self._spool, MEMORY_ROWS)
        courier.expect()
        self._backlog.add([run], self._started, FLUSH_SECONDS)
        self._write()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._work, "mileage-ledger"), (self._keep_on_disk, "mileage-spool"))
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
        self._flush()
        self._open_at = time.monotonic() + self._load_after
        self._wake.set()

    def append(self, rows: Sequence[Row], *, at_once: bool = False) -> None:
        """Hand over `rows`; `at_once` for those that must not wait for others."""
        if self.forked:
            return
        self._handed_over += sum(not isinstance(row, Run) for row in rows)
        alone = self._backlog.add(rows, time.monotonic(), FLUSH_SECONDS)
        if (at_once and not self._backlog.stuck) or (alone and self._backlog.quick):
            self._flush(AT_ONCE_SECONDS if at_once else 0.0)
        elif alone:
            self._to_disk.set()

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
        began = time.monotonic()
        self._closing.set()
        self._to_disk.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(max(0.0, began + timeout - time.monotonic()))
        worked = not any(thread.is_alive() for thread in self._threads)
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
        else:
            courier.deliver_at_exit(self.url)
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

    # The side of the disk

    def _keep_on_disk(self) -> None:
        """Rows and heartbeat: a server that makes the other thread wait must not make the run look dead."""
        restored_at = self._started
        while not self._closing.is_set():
            self._to_disk.wait(BEAT_SECONDS)
            self._to_disk.clear()
            now = time.monotonic()
            self._write(restore=now - restored_at >= SETTLE_SECONDS)
            restored_at = now if now - restored_at >= SETTLE_SECONDS else restored_at
        self._write()  # what came in the last moment
        self._last_written.set()

    def _write(self, *, restore: bool = False) -> None:
        """Write what there is, and say that the run is alive."""
        self._flush()
        try:
            self._spool.beat(self.run.started_at + self.wall_seconds)
            if restore:
                self._backlog.restore()
        except OSError as error:
            self._trouble(f"the heartbeat cannot be written to {self._spool.path} ({error.strerror})")

    def _flush(self, patience: float = -1.0) -> None:
        trouble = self._backlog.flush(patience)
        if trouble is not None:
            self._trouble(f"ledger rows cannot be written to {self._spool.path} ({trouble}): kept in memory")

    # The side of the database

    def _work(self) -> None:
        deliver_at = 0.0
        while True:
            closing = self._closing.is_set()
            if closing:
                self._last_written.wait(LAST_WRITE_SECONDS)
            now = time.monotonic()
            young = self._store is None and now < self._open_at
            if young:
                self._left_to_courier = closing and self._backlog.unwritten == 0
            if self._withdrawn:
                return
            if (closing and not self._left_to_courier) or (now >= deliver_at and not young):
                ok = self._deliver()
                deliver_at = now + (DELIVER_SECONDS if ok else RETRY_SECONDS)
                if ok and not closing:
                    self._now_and_then(now)
            if closing:
                return
            self._wake.wait(min(DELIVER_SECONDS, 0.5))
            self._wake.clear()

    _database_beat_at = _settle_at = 0.0

    def _now_and_then(self, now: float) -> None:
        """What the database needs beside rows."""
        if self._store is None:
            return
        try:
            if now - self._database_beat_at >= DATABASE_BEAT_SECONDS:
                if self._database_beat_at == 0.0:
                    self._store.recover(self._closing.is_set)  # what others left behind, once, while there is time
                self._database_beat_at = now
                self._store.beat(self.run.run_id, self.wall_seconds)
            if now - self._settle_at >= SETTLE_SECONDS:
                self._settle_at = now
                self._store.settle()
        except MileageError as error:
            self._trouble(f"{error}: rows are kept and delivered later")

    def _deliver(self) -> bool:
        """Bring what has been flushed, and what the disk refused, into the database."""
        try:
            store = self._opened()
            pending = self._backlog.pending()
            rows = self._backlog.each(pending)
            if self.problem is not None:  # a database that takes nothing is not offered everything every time
                self._give(store, itertools.islice(rows, 1))
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
            if time.monotonic() - self._forgot_at > SAY_AGAIN_SECONDS:  # a disk may be full and not full all the time
                self._forgot_at = time.monotonic()
                self._said.clear()
        return True

    def _give(self, store: Store, rows: Iterable[Row]) -> None:
        for row, why in store.deliver(rows):
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
