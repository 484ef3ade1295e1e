"""The store: rows in, once each; dead runs closed; rows out.

Every row has a key of its own (run id and position), so delivering it again changes nothing. That is what lets a row
wait in a spool file while a server is away, or after its process was killed, and still arrive exactly once.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, SQLAlchemyError

from mileage.errors import LedgerError, LedgerMovedError
from mileage.ledger import liveness, queries, schema, spool
from mileage.ledger.address import DbAddress, database_url
from mileage.ledger.database import open_engine, open_read_only, open_to_read, reason, settle, shown, writing
from mileage.ledger.redaction import redact
from mileage.ledger.rows import KIND_OF, ROW_TYPES, Checkpoint, ClosedBy, End, EndState, Note, Phase, Row, Run
from mileage.ledger.secrets import scrubbed_row
from mileage.ledger.summary import Ending, Progress, end_row

Asked = ParamSpec("Asked")
Found = TypeVar("Found")

BATCH_ROWS = 5_000
ORPHAN_GRACE_SECONDS = 60.0
"""An empty spool file may belong to a process that is just about to write its first row."""

CHECKED_BYTES = 1 << 26
"""An SQLite file up to this size is looked through before rows are taken for delivered: a fraction of a second."""

OTHERS_SECONDS = 5.0
"""How long whoever opens the ledger waits for rows that another process is delivering: they belong to what is there."""


class Store:
    """An open ledger database. Safe to use from several threads."""

    def __init__(
        self, db: DbAddress = None, *, create: bool = True, recover: bool = True, reading: bool = False
    ) -> None:
        """Open the ledger at `db`.

        Args:
            db: path or address; None takes `MILEAGE_DB` or `runs/mileage.db`.
            create: whether a missing SQLite file is made.
            recover: whether waiting rows are delivered and dead runs are closed first.
            reading: whether it is enough to read: on a full disk, from a read-only file or directory.
        """
        self.url = database_url(db)
        self.spool_dirs = spool.spool_dirs(self.url)
        self.trouble: str | None = None
        """Why nothing can be written, where the ledger was opened for reading and that is so."""
        # Rows that wait are a ledger too: the run that wrote them may have been too short to open the database.
        create = create or bool(spool.waiting(*self.spool_dirs))
        if reading:
            self.engine, self.trouble = open_to_read(self.url, create=create)
        else:
            self.engine = open_engine(self.url, create=create)
        self._insert = {kind: self._insert_sql(kind) for kind in ROW_TYPES}
        self._identity = self._file_identity()
        if recover and self.trouble is None:
            self._recover_or_tell(reading)

    @classmethod
    def reader(cls, db: DbAddress = None) -> Store:
        """The ledger at `db` for reading; where it cannot be written, `trouble` says why."""
        return cls(db, create=False, reading=True)

    @classmethod
    def viewer(cls, db: DbAddress = None) -> Store:
        """The ledger at `db` for showing it: what waits is delivered once, and from then on nothing can be written."""
        with cls.reader(db) as first:
            url, trouble = first.url, first.trouble
            if trouble is not None:
                return cls(url, create=False, reading=True, recover=False)
        store = cls(url, create=False, recover=False)
        store.engine.dispose()
        store.engine, store.trouble = open_read_only(url), "it was opened for reading alone"
        return store

    def _recover_or_tell(self, reading: bool) -> None:
        try:
            self.recover(patience=OTHERS_SECONDS)
        except LedgerError as error:
            if not reading:
                raise
            self.trouble = str(error)

    def _file_identity(self) -> tuple[int, int] | None:
        """What tells the SQLite file at the ledger's path from another that may take its place; None for a server."""
        if not self.url.startswith("sqlite:///"):
            return None
        try:
            there = os.stat(self.url.removeprefix("sqlite:///"))
        except OSError:
            return (0, 0)
        return there.st_dev, there.st_ino

    def check_place(self, run_id: str) -> None:
        """LedgerError if the database that was opened is not the one at its address any more, or has lost a run."""
        if self._file_identity() != self._identity:
            raise LedgerMovedError(f"the ledger's file {self.shown_url} was removed or replaced by another")
        if not self.read(queries.has_run, run_id):
            raise LedgerMovedError(f"the ledger at {self.shown_url} has lost run {run_id}")

    def check_kept(self, run_id: str, rows: int) -> None:
        """LedgerError if fewer than so many rows of a run, its own not counted, can be read back from the database."""
        self._check_file()
        found = self.read(queries.count_rows, run_id)
        if found < rows:
            raise LedgerMovedError(f"the ledger at {self.shown_url} has {found:,} of {rows:,} rows of run {run_id}")

    def _check_file(self) -> None:
        """LedgerError if the SQLite file is damaged, as by one that was copied over it; a large one takes too long."""
        if self.engine.dialect.name == "sqlite":
            self.engine.dispose()  # what is read now comes from the file and not from memory
            path = Path(self.url.removeprefix("sqlite:///"))
            if path.exists() and path.stat().st_size <= CHECKED_BYTES:
                found = self.read(lambda connection: connection.exec_driver_sql("PRAGMA quick_check(1)").scalar())
                if found != "ok":
                    raise LedgerError(f"the ledger at {self.shown_url} is damaged: {str(found).splitlines()[0]}")

    def settle(self) -> None:
        """Bring rows from the journal into the SQLite file, so that a plain copy of it is at most seconds old."""
        try:
            settle(self.engine, "PASSIVE")
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise LedgerError(f"the ledger at {self.shown_url} cannot be written: {reason(error)}") from error

    def refusal(self) -> str | None:
        """What the database says to a transaction that writes and changes nothing; None if it takes it."""
        try:
            with writing(self.engine) as connection:
                if self.engine.dialect.name == "sqlite":
                    mark = connection.exec_driver_sql("PRAGMA user_version").scalar()
                    connection.exec_driver_sql(f"PRAGMA user_version = {int(mark or 0)}")
                elif connection.exec_driver_sql("SHOW transaction_read_only").scalar() == "on":
                    return f"the ledger at {self.shown_url} can only be read"
        except SQLAlchemyError as error:
            return f"the ledger at {self.shown_url} cannot be written: {reason(error)}"
        return None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @property
    def spool_dir(self) -> Path:
        """Where rows wait, if there is room."""
        return self.spool_dirs[0]

    def rows_of(self, run_id: str) -> list[Row]:
        """Every row of a run, as far as they can be read; those of a removed file can, while it is open."""
        try:
            found = self.read(queries.rows_of, run_id)
        except LedgerError:
            return []
        return found

    @property
    def shown_url(self) -> str:
        """The address as it may be printed."""
        return shown(self.url)

    def _insert_sql(self, kind: str) -> str:
        # Built from constants of this package, never from data. One text for both databases, apart from the marks.
        columns, table = ROW_TYPES[kind]._fields, schema.TABLE_NAMES[kind]
        names = ", ".join(f'"{column}"' for column in columns)
        if self.engine.dialect.name != "sqlite":
            marks = ", ".join(["%s"] * len(columns))
            return f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        # The triggers refuse a row whose key is there, whatever is to happen on a conflict.
        marks = ", ".join(f"?{i + 1}" for i in range(len(columns)))
        same = " AND ".join(f'"{key}" = ?{columns.index(key) + 1}' for key in schema.KEYS[kind])
        return f"INSERT INTO {table} ({names}) SELECT {marks} WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {same})"

    # Rows in

    def deliver(self, rows: Iterable[Row]) -> list[tuple[Row, str]]:
        """Write `rows`, each at most once; return those the database refuses for good, with the reason.

        Raises LedgerError if the database is away or full: the rows may be delivered again.
        """
        refused: list[tuple[Row, str]] = []
        waiting = map(scrubbed_row, rows)
        while batch := list(itertools.islice(waiting, BATCH_ROWS)):
            try:
                self._write(batch)
            except (DataError, IntegrityError, OverflowError):
                refused += self._deliver_singly(batch)
            except (SQLAlchemyError, OSError) as error:
                raise LedgerError(f"the ledger at {self.shown_url} cannot be written: {reason(error)}") from error
        return refused

    def _deliver_singly(self, batch: Sequence[Row]) -> list[tuple[Row, str]]:
        refused = []
        for row in batch:
            try:
                self._write([row])
            except (DataError, IntegrityError, OverflowError) as error:
                refused.append((row, reason(error)))
            except SQLAlchemyError as error:
                raise LedgerError(f"the ledger at {self.shown_url} cannot be written: {reason(error)}") from error
        return refused

    def deliver_together(self, rows: Iterable[Row]) -> dict[str, int]:
        """Write all of `rows` or none of them; return how many of each kind were not there before."""
        try:
            return self._write([scrubbed_row(row) for row in rows])
        except (SQLAlchemyError, OSError, OverflowError) as error:
            raise LedgerError(f"the ledger at {self.shown_url} refused the rows: {reason(error)}") from error

    def _write(self, batch: Sequence[Row]) -> dict[str, int]:
        by_kind: dict[str, list[Any]] = {}
        for row in batch:
            by_kind.setdefault(KIND_OF[type(row)], []).append(row)
        with writing(self.engine) as connection:
            return {
                kind: connection.exec_driver_sql(self._insert[kind], values).rowcount
                for kind, values in by_kind.items()
            }

    def redact(self, run_id: str, field: str, why: str) -> Note:
        """Empty `field` of a run's record for good; the note that says so is returned."""
        try:
            with writing(self.engine) as connection:
                note = redact(connection, run_id, field, why)
            settle(self.engine)  # the journal must not keep it either
        except SQLAlchemyError as error:
            raise LedgerError(f"the ledger at {self.shown_url} cannot be written: {reason(error)}") from error
        return note

    def beat(self, run_id: str, wall_seconds: float) -> None:
        """Say that `run_id` is alive."""
        values = {"run_id": run_id, "beat_at": time.time(), "wall_seconds": wall_seconds}
        statement = sa.text(
            "INSERT INTO ledger_heartbeat (run_id, beat_at, wall_seconds) VALUES (:run_id, :beat_at, :wall_seconds) "
            "ON CONFLICT (run_id) DO UPDATE SET beat_at = excluded.beat_at, wall_seconds = excluded.wall_seconds"
        )
        try:
            with writing(self.engine) as connection:
                connection.execute(statement, values)
        except SQLAlchemyError as error:
            raise LedgerError(f"the ledger at {self.shown_url} cannot be written: {reason(error)}") from error

    # Recovery

    def recover(self, enough: Callable[[], bool] = lambda: False, patience: float = 0.0) -> list[str]:
        """Deliver what waits in spool files and close runs whose process is gone; return the ids of closed runs.

        A file that another process is delivering at this moment is left to it, which has `patience` seconds for it,
        and everything else to the next one who comes once `enough` says so.
        """
        until = time.monotonic() + patience
        closed: list[str] = []
        for paths in spool.by_run(spool.waiting(*self.spool_dirs)):
            if enough():
                return closed
            with spool.claimed(paths[0], until - time.monotonic()) as mine:
                closed += self._deliver_spool(paths) if mine else []
        for run in self.read(queries.open_runs):
            if enough():
                return closed
            beat = self.read(queries.last_beat, run.run_id)
            if not _alive(run, beat[0] if beat else run.launched_at):
                self._close_crashed(run, beat[1] if beat else 0.0)
                closed.append(run.run_id)
        return closed

    def _deliver_spool(self, paths: Sequence[Path]) -> list[str]:
        content = spool.read(*paths)
        if content is None:
            return []
        run = content.run or self.read(queries.run, content.run_id)
        if run is None:
            if time.time() - content.seen_at > ORPHAN_GRACE_SECONDS and next(content.each(), None) is None:
                _unlink(paths)
            return []
        if not content.complete and _alive(run, content.seen_at):
            return []
        self.deliver(content.each())
        self._check_file()
        closed = []
        if not content.complete and not self.read(queries.ends, run.run_id):
            self._close_crashed(run, content.beat_at - run.started_at)
            closed.append(run.run_id)
        _unlink(paths)
        return closed

    def _close_crashed(self, run: Run, last_sign_seconds: float) -> None:
        checkpoints = self.read(queries.checkpoints, run.run_id)
        wall = max([last_sign_seconds, 0.0, *(checkpoint.wall_seconds for checkpoint in checkpoints[-1:])])
        self.deliver([crashed_end(run, checkpoints, self.read(queries.latest_phases, run.run_id), wall)])

    # Rows out

    def read(
        self, query: Callable[Concatenate[sa.Connection, Asked], Found], *args: Asked.args, **kwargs: Asked.kwargs
    ) -> Found:
        """What `query(connection, *args, **kwargs)` finds, for one of the functions in `queries`."""
        try:
            with self.engine.connect() as connection:
                return query(connection, *args, **kwargs)
        except (OperationalError, DBAPIError) as error:
            raise LedgerError(f"the ledger at {self.shown_url} cannot be read: {reason(error)}") from error


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _alive(run: Run, last_sign: float) -> bool:
    """Whether the run's process is there; one that cannot be asked is, if it has given a sign of life lately."""
    alive = liveness.is_alive(run.host, run.pid, run.process_token)
    return time.time() - last_sign < liveness.stale_after(run.host) if alive is None else alive


def crashed_end(run: Run, checkpoints: Sequence[Checkpoint], phases: Sequence[Phase], wall_seconds: float) -> End:
    """The end row of a run whose process disappeared `wall_seconds` after its start."""
    seconds = {phase.phase: phase.seconds for phase in phases if not phase.beside}
    progress = Progress.of(checkpoints)
    if progress.last is not None:  # phases may have been taken before or after the last checkpoint
        seconds["eval"] = max(seconds.get("eval", 0.0), progress.last.eval_seconds)
    reason, ended_at = "the process disappeared without writing an end", run.started_at + wall_seconds
    ending = Ending(EndState.CRASHED, reason, ended_at, wall_seconds, ClosedBy.OPENER, seconds)
    return end_row(run, progress, ending)
