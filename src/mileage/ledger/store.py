"""The store: rows in, once each; dead runs closed; rows out.

Every row has a key of its own (run id and position), so delivering it again changes nothing. That is what lets a row
wait in a spool file while a server is away, or after its process was killed, and still arrive exactly once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, SQLAlchemyError

from mileage._errors import LedgerError
from mileage.ledger import liveness, queries, schema, spool
from mileage.ledger.address import database_url
from mileage.ledger.database import open_engine, reason, shown, writing
from mileage.ledger.rows import KIND_OF, ROW_TYPES, Checkpoint, ClosedBy, End, EndState, Phase, Row, Run
from mileage.ledger.summary import Ending, Progress, end_row

Asked = ParamSpec("Asked")
Found = TypeVar("Found")

BATCH_ROWS = 5_000
ORPHAN_GRACE_SECONDS = 60.0
"""An empty spool file may belong to a process that is just about to write its first row."""


class Store:
    """An open ledger database. Safe to use from several threads."""

    def __init__(self, db: str | os.PathLike[str] | None = None, *, create: bool = True, recover: bool = True) -> None:
        """Open the ledger at `db`.

        Args:
            db: path or address; None takes `MILEAGE_DB` or `runs/mileage.db`.
            create: whether a missing SQLite file is made.
            recover: whether waiting rows are delivered and dead runs are closed first.
        """
        self.url = database_url(db)
        self.spool_dir = spool.spool_dir(self.url)
        # Rows that wait are a ledger too: the run that wrote them may have been too short to open the database.
        self.engine = open_engine(self.url, create=create or bool(spool.waiting(self.spool_dir)))
        self._insert = {kind: self._insert_sql(kind) for kind in ROW_TYPES}
        if recover:
            self.recover()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @property
    def shown_url(self) -> str:
        """The address as it may be printed."""
        return shown(self.url)

    def _insert_sql(self, kind: str) -> str:
        # Built from constants of this package, never from data. One text for both databases, apart from the marks.
        columns = ROW_TYPES[kind]._fields
        mark = "?" if self.engine.dialect.name == "sqlite" else "%s"
        marks = ", ".join([mark] * len(columns))
        names = ", ".join(f'"{column}"' for column in columns)
        return f"INSERT INTO {schema.TABLE_NAMES[kind]} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"

    # Rows in

    def deliver(self, rows: Iterable[Row]) -> list[tuple[Row, str]]:
        """Write `rows`, each at most once; return those the database refuses for good, with the reason.

        Raises LedgerError if the database is away or full: nothing was written and the rows may be delivered again.
        """
        rows = list(rows)
        refused: list[tuple[Row, str]] = []
        for start in range(0, len(rows), BATCH_ROWS):
            batch = rows[start : start + BATCH_ROWS]
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

    def _write(self, batch: Sequence[Row]) -> None:
        by_kind: dict[str, list[Any]] = {}
        for row in batch:
            by_kind.setdefault(KIND_OF[type(row)], []).append(row)
        with writing(self.engine) as connection:
            for kind, values in by_kind.items():
                connection.exec_driver_sql(self._insert[kind], values)

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

    def recover(self) -> list[str]:
        """Deliver what waits in spool files and close runs whose process is gone; return the ids of closed runs."""
        closed = []
        for path in spool.waiting(self.spool_dir):
            closed += self._deliver_spool(path)
        for run in self.read(queries.open_runs):
            alive = liveness.is_alive(run.host, run.pid, run.process_token)
            beat = self.read(queries.last_beat, run.run_id)
            if alive is None:
                last_sign = beat[0] if beat else run.launched_at
                alive = time.time() - last_sign < liveness.STALE_AFTER_SECONDS
            if not alive:
                wall = beat[1] if beat else 0.0
                self._close_crashed(run, wall)
                closed.append(run.run_id)
        return closed

    def _deliver_spool(self, path: Path) -> list[str]:
        content = spool.read(path)
        if content is None:
            return []
        run = content.run or self.read(queries.run, content.run_id)
        if run is None:
            if time.time() - content.beat_at > ORPHAN_GRACE_SECONDS and not content.rows:
                path.unlink(missing_ok=True)
            return []
        alive = liveness.is_alive(run.host, run.pid, run.process_token)
        if alive is not False and not content.complete:
            return []
        self.deliver(content.rows)
        closed = []
        if not content.complete and not self.read(queries.ends, run.run_id):
            self._close_crashed(run, content.beat_at - run.started_at)
            closed.append(run.run_id)
        path.unlink(missing_ok=True)
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


def crashed_end(run: Run, checkpoints: Sequence[Checkpoint], phases: Sequence[Phase], wall_seconds: float) -> End:
    """The end row of a run whose process disappeared `wall_seconds` after its start."""
    seconds = {phase.phase: phase.seconds for phase in phases if not phase.beside}
    progress = Progress.of(checkpoints)
    if progress.last is not None:  # phases may have been taken before or after the last checkpoint
        seconds["eval"] = max(seconds.get("eval", 0.0), progress.last.eval_seconds)
    reason, ended_at = "the process disappeared without writing an end", run.started_at + wall_seconds
    ending = Ending(EndState.CRASHED, reason, ended_at, wall_seconds, ClosedBy.OPENER, seconds)
    return end_row(run, progress, ending)
