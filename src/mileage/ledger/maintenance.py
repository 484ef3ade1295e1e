"""A copy of the whole ledger that is consistent, while runs go on writing to it."""

from __future__ import annotations

import glob
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import sqlalchemy as sa

from mileage.errors import LedgerError, UsageError

_PAGES_AT_A_TIME = 4_096
"""Writers get their turn between the parts of a copy."""


def back_up(engine: sa.Engine, url: str, file: Path) -> int:
    """Write a copy of the ledger to `file`, which must not be there yet; return its size in bytes.

    SQLite is copied page by page while others write, and what comes out is a ledger file; a PostgreSQL ledger is
    dumped by `pg_dump`, for `pg_restore`.
    """
    if file.exists():
        raise UsageError(f"{file} is there already: name a new file for the backup")
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if engine.dialect.name == "sqlite":
            _copy_sqlite(engine, part)
        else:
            _dump_postgres(engine, url, part)
        part.chmod(0o600)
        os.link(part, file)  # unlike a rename, this never replaces a file that somebody made meanwhile
        return file.stat().st_size
    except FileExistsError:
        raise UsageError(f"{file} is there already: name a new file for the backup") from None
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"the backup {file} cannot be written: {error}") from None
    finally:
        part.unlink(missing_ok=True)


def _copy_sqlite(engine: sa.Engine, part: Path) -> None:
    pooled = engine.raw_connection()
    copy = sqlite3.connect(part)
    try:
        source = pooled.driver_connection
        assert isinstance(source, sqlite3.Connection)
        source.backup(copy, pages=_PAGES_AT_A_TIME, sleep=0.001)
        # A file of its own: whoever copies or opens it needs no second file beside it.
        copy.execute("PRAGMA journal_mode=DELETE")
    finally:
        copy.close()
        pooled.close()


def pg_dump_program() -> str | None:
    """Where `pg_dump` is, None if it is not installed."""
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/pg_dump"), reverse=True)
    return installed[0] if installed else shutil.which("pg_dump")


def _dump_postgres(engine: sa.Engine, url: str, part: Path) -> None:
    program = pg_dump_program()
    if program is None:
        raise LedgerError("a PostgreSQL ledger is backed up by pg_dump, which is not installed: install its client")
    address = sa.make_url(url).set(drivername="postgresql")
    with engine.connect() as connection:
        namespace = str(connection.execute(sa.text("SELECT current_schema()")).scalar())
    # A password among the arguments could be read by every user of the machine.
    environment = os.environ | ({"PGPASSWORD": str(address.password)} if address.password else {})
    bare = address.set(password=None).render_as_string(hide_password=False)
    done = subprocess.run(
        [program, "--format=custom", "--no-owner", f"--schema={namespace}", f"--file={part}", f"--dbname={bare}"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise LedgerError(f"pg_dump could not back up the ledger: {said[0] if said else done.returncode}")
