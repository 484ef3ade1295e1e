"""Databases: engines, connections, migrations, and rows read back.

SQLite needs a second file to read one that others may be writing. Where that file cannot be made, and nobody can be
writing, the database is read as it stands; where rows wait in its journal, or its schema is an old one, a copy is made
where there is room and read instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, SQLAlchemyError

from mileage.errors import LedgerError, MissingExtraError, SchemaError
from mileage.ledger.address import DbAddress, database_url, note_opened
from mileage.ledger.schema import HEAD
from mileage.ledger.spool import spool_dir

log = logging.getLogger("mileage.ledger")

BUSY_TIMEOUT_SECONDS = 60.0
CONNECT_TIMEOUT_SECONDS = 5
FIRST_WITHOUT_SECRETS = "0004"
"""Schemas before this one may hold rows with passwords."""
_MIGRATION_LOCK = 0x6D696C65  # "mile": the advisory lock that lets one process migrate a server's schema


def shown(url: str) -> str:
    """`url` as it may be printed: without a password."""
    if url.startswith("sqlite:///"):
        return url.removeprefix("sqlite:///")
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=True)


def open_engine(db: DbAddress = None, *, create: bool = True) -> sa.Engine:
    """An engine on the database at `db` with the newest schema.

    Args:
        db: path of an SQLite file or a `postgresql://…` address; None takes `MILEAGE_DB` or the default.
        create: whether a missing SQLite file is made.
    """
    url = database_url(db)
    engine = connect(url, create=create)
    try:
        _ensure_schema(engine, url)
    except (SQLAlchemyError, sqlite3.Error) as error:
        engine.dispose()
        raise LedgerError(f"the ledger at {shown(url)} cannot be opened: {reason(error)}") from error
    except BaseException:
        engine.dispose()
        raise
    return engine


def connect(url: str, *, create: bool = True) -> sa.Engine:
    """An engine on the database at `url`, whatever its schema."""
    return _sqlite_engine(url, create) if url.startswith("sqlite") else _postgres_engine(url)


def reason(error: BaseException) -> str:
    """The first line of what the database itself said."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if "database is locked" in str(cause):
        remedy = "try again when it has finished, or end it if it hangs"
        return f"another process has kept it busy for {BUSY_TIMEOUT_SECONDS:.0f} s: {remedy}"
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__


def _sqlite_engine(url: str, create: bool) -> sa.Engine:
    path = Path(url.removeprefix("sqlite:///"))
    if not path.exists():
        if not create:
            raise LedgerError(f"there is no ledger at {path}: train something first, or name another with --db")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"the ledger's directory {path.parent} cannot be made: {error.strerror}") from None
    # Built from its parts: a path may contain what is syntax in an address.
    address = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(address, connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: Any) -> None:
        note_opened(path)
        # The driver's own transaction handling starts transactions late and cannot begin immediately.
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA secure_delete=ON")  # what was redacted is not to be found in the file any more

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A reader that turns into a writer in mid-transaction fails at once, whatever the busy timeout; a writer that
        # says so from the start waits its turn.
        immediate = connection.get_execution_options().get("write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _postgres_engine(url: str) -> sa.Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise MissingExtraError("a ledger on PostgreSQL", "postgres") from None
    arguments = {"connect_timeout": CONNECT_TIMEOUT_SECONDS, "application_name": "mileage"}
    return sa.create_engine(url, pool_pre_ping=True, connect_args=arguments)


def writing(engine: sa.Engine) -> contextlib.AbstractContextManager[sa.Connection]:
    """A transaction that is going to write."""
    return engine.execution_options(write=True).begin()


def schema_version(engine: sa.Engine) -> str | None:
    """The schema version of the database, None if it has no ledger."""
    with engine.connect() as connection:
        try:
            return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        except (OperationalError, ProgrammingError) as error:
            if "no such table" in str(error) or "does not exist" in str(error):
                return None
            raise


def _ensure_schema(engine: sa.Engine, url: str) -> None:
    try:
        version = schema_version(engine)
    except OperationalError as error:
        # Another process is making this file right now: look again when it has finished.
        if "locked" not in str(error):
            raise
        version = None
    if version is not None and version > HEAD:
        raise _newer(engine, url, version)
    if version != HEAD:
        with _migration_lock(engine, url):
            version = schema_version(engine)  # someone else may have migrated while this process waited
            if version != HEAD:
                if version is not None:
                    _back_up_first(engine, url, version)
                migrate(engine)
                settle(engine)


def settle(engine: sa.Engine, mode: str = "TRUNCATE") -> None:
    """Bring everything into the SQLite file itself, so that a plain copy of it has it; a server needs no such thing.

    In `mode` PASSIVE nobody waits: what others are reading stays in the journal.
    """
    if engine.dialect.name != "sqlite":
        return
    raw = engine.raw_connection()
    try:
        raw.cursor().execute(f"PRAGMA wal_checkpoint({mode})")
    finally:
        raw.close()


def _back_up_first(engine: sa.Engine, url: str, version: str) -> None:
    """Keep a copy of the ledger as it is before its schema changes."""
    from mileage.ledger.maintenance import back_up, pg_dump_program  # only where there is something to change

    if engine.dialect.name == "sqlite":
        path = Path(url.removeprefix("sqlite:///"))
        file = path.with_name(f"{path.name}.schema-{version}.backup")
    elif pg_dump_program() is None:
        log.warning("no backup of the ledger was made before its schema changes: pg_dump is not installed")
        return
    else:
        file = spool_dir(url) / f"schema-{version}.backup"
    if file.exists():  # of an attempt that did not come to its end
        file = file.with_name(f"{file.name}-{time.time_ns()}")
    back_up(engine, url, file)
    if engine.dialect.name == "sqlite" and version < FIRST_WITHOUT_SECRETS:
        _scrub_copy(file)


def _scrub_copy(file: Path) -> None:
    """Take secrets out of a backup too: a password that the ledger loses must not stay beside it."""
    from mileage.ledger.redaction import scrub

    copy = _sqlite_engine(f"sqlite:///{file}", create=False)
    try:
        with writing(copy) as connection:
            scrub(connection, "", noted=False)
    finally:
        copy.dispose()


def _newer(engine: sa.Engine, url: str, version: str) -> SchemaError:
    with engine.connect() as connection:
        needed = connection.execute(
            sa.text("SELECT mileage_version FROM ledger_schema_history WHERE version = :version"), {"version": version}
        ).scalar()
    return SchemaError(
        f"the ledger at {shown(url)} has schema {version}, which needs mileage {needed or 'of a later version'} "
        "or newer "
        f"(this one knows schema {HEAD}): upgrade mileage, or name another ledger with --db"
    )


def _use_wal(engine: sa.Engine) -> None:
    """Switch a file to WAL: that needs the file to itself and does not wait, so this waits for those who look at it."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    raw = engine.raw_connection()
    try:
        while True:
            try:
                raw.cursor().execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)
    finally:
        raw.close()


@contextlib.contextmanager
def _migration_lock(engine: sa.Engine, url: str) -> Iterator[None]:
    """Let one process at a time change the schema."""
    if engine.dialect.name == "sqlite":
        path = Path(url.removeprefix("sqlite:///"))
        try:
            fd = os.open(path.with_name(path.name + ".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LedgerError(f"the ledger at {path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            _use_wal(engine)
            yield
        finally:
            os.close(fd)
        return
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION_LOCK})
        try:
            yield
        finally:
            connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _MIGRATION_LOCK})


def migrate(engine: sa.Engine, revision: str = "head") -> None:
    """Bring the schema to `revision`; all in one transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


# --- Opening a ledger that cannot be written: a full disk, a read-only file, directory or file system ---
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
