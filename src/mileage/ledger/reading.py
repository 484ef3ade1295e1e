"""Opening a ledger that cannot be written: a full disk, a read-only file, directory or file system.

SQLite needs a second file to read one that others may be writing. Where that file cannot be made, and nobody can be
writing, the database is read as it stands; where rows wait in its journal, or its schema is an old one, a copy is made
where there is room and read instead.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from mileage._errors import LedgerError, SchemaError
from mileage.ledger.database import BUSY_TIMEOUT_SECONDS, connect, open_engine, reason, schema_version, shown
from mileage.ledger.schema import HEAD

_ROOMS = (None, "/dev/shm", "/tmp")
"""Where a copy may be made; None is the directory for temporary files."""


def open_to_read(url: str, *, create: bool = False) -> tuple[sa.Engine, str | None]:
    """An engine on the ledger at `url`, and why nothing can be written to it, None if it can be."""
    try:
        return open_engine(url, create=create), None
    except SchemaError:
        raise
    except LedgerError as error:
        path = Path(url.removeprefix("sqlite:///"))
        if not url.startswith("sqlite:///") or not path.is_file():
            raise
        found = next(_readable(path), None)
        if found is None:
            raise
        return found, str(error)


def _readable(path: Path) -> Iterator[sa.Engine]:
    """Engines that can read the newest schema at `path`, the least intrusive first."""
    journal = path.with_name(path.name + "-wal")
    waiting = journal.is_file() and journal.stat().st_size > 0
    modes = ("mode=ro",) if waiting else ("mode=ro", "immutable=1")
    for mode in modes:
        engine = _uri_engine(f"file:{quote(str(path))}?{mode}")
        try:
            if schema_version(engine) == HEAD:
                yield engine
        except (SQLAlchemyError, sqlite3.Error):
            pass
        engine.dispose()
    for room in _ROOMS:
        try:
            yield _engine_on_copy(path, room)
        except (OSError, LedgerError, SQLAlchemyError):
            continue


def open_read_only(url: str) -> sa.Engine:
    """An engine on the ledger at `url` that the database itself keeps from writing; its schema must be the newest."""
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        if not path.is_file():
            raise LedgerError(f"there is no ledger at {path}: train something first, or name another with --db")
        engine = _uri_engine(f"file:{quote(str(path))}?mode=ro")
    else:
        engine = connect(url)
        sa.event.listen(engine, "connect", _only_read)
    try:
        version = schema_version(engine)
    except (SQLAlchemyError, sqlite3.Error) as error:
        engine.dispose()
        raise LedgerError(f"the ledger at {shown(url)} cannot be opened: {reason(error)}") from error
    if version != HEAD:
        engine.dispose()
        raise SchemaError(f"the ledger at {shown(url)} has schema {version} and not {HEAD}: open it with this version")
    return engine


def _only_read(connection: Any, _: object) -> None:
    """Every transaction of a server's connection is one that reads."""
    connection.read_only = True


def _uri_engine(uri: str) -> sa.Engine:
    def opened() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS, check_same_thread=False)
        connection.isolation_level = None
        connection.execute("PRAGMA query_only=ON")
        return connection

    return sa.create_engine("sqlite://", creator=opened, poolclass=sa.QueuePool)


def _engine_on_copy(path: Path, room: str | None) -> sa.Engine:
    """The database and what waits in its journal, copied and brought to the newest schema."""
    directory = Path(tempfile.mkdtemp(prefix="mileage-ledger-", dir=room))
    try:
        for file in (path, path.with_name(path.name + "-wal")):
            if file.is_file():
                shutil.copyfile(file, directory / file.name)
        url = f"sqlite:///{directory / path.name}"
        engine = open_engine(url, create=False)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    weakref.finalize(engine, shutil.rmtree, directory, ignore_errors=True)
    return engine
