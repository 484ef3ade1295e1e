"""Where the ledger is. Kept free of database libraries, because every training run asks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mileage.errors import LedgerError, UsageError

DbAddress = str | os.PathLike[str] | None
"""Of a ledger: a path or an address; None is `MILEAGE_DB`, else `runs/mileage.db`."""
DEFAULT_PATH = Path("runs") / "mileage.db"
ENVIRONMENT_VARIABLE = "MILEAGE_DB"
# What every SQLite file begins with that is not empty.
_SQLITE = b"SQLite format 3\0"

SETTINGS = ("host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "sslmode")
"""What an address may begin with that is written as PostgreSQL's own programs take it: `host=… dbname=…`."""

_opened: set[Path] = set()


def note_opened(path: Path) -> None:
    """Remember that this process has a connection to the SQLite file at `path`."""
    _opened.update(path.resolve().with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal"))


def is_opened(path: Path) -> bool:
    """Whether `path` is a file of a ledger that this process is connected to.

    Such a file must not be opened by anything but SQLite, not even to read it: closing it gives up every lock that the
    process holds on it, and the next process to look would take the journal away.
    """
    return bool(_opened) and path.resolve() in _opened


def database_url(db: DbAddress = None) -> str:
    """The address of the ledger: `db`, else `MILEAGE_DB`, else `runs/mileage.db`.

    A plain path becomes `sqlite:///` with the absolute path, so that a later change of directory changes nothing.
    """
    text = os.fspath(db) if db is not None else os.environ.get(ENVIRONMENT_VARIABLE) or str(DEFAULT_PATH)
    if "\0" in text or not text.strip():
        raise UsageError("--db must be the path of an SQLite file or a postgresql:// address")
    text = _address_of_settings(text) or text
    for prefix in ("postgresql+psycopg://", "postgresql://", "postgres://"):
        if text.startswith(prefix):
            return "postgresql+psycopg://" + text.removeprefix(prefix)
    if "://" in text and not text.startswith("sqlite:///"):
        scheme = text.split("://", 1)[0]
        raise UsageError(f"--db cannot use {scheme}:// addresses: give the path of an SQLite file or postgresql://…")
    path = Path(text.removeprefix("sqlite:///")).expanduser()
    return "sqlite:///" + str(path.absolute())


def _address_of_settings(text: str) -> str | None:
    """The address that `host=… user=… password=…` stands for, as PostgreSQL's own programs take it; None if it is none.

    Taken for a path, it would make a file whose name is a password.
    """
    if text.lstrip().partition("=")[0].strip() not in SETTINGS:
        return None
    import re
    from urllib.parse import quote

    one = r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?=\s|\Z)"
    if re.fullmatch(f"(?s)(?:{one})+\\s*", text) is None:
        raise UsageError("--db must be a path or an address: what looks like host=… dbname=… cannot be read")
    values = {name: re.sub(r"(?s)\\(.)", r"\1", value.strip("'")) for name, value in re.findall(f"(?s){one}", text)}
    login = quote(values.pop("user", ""), safe="")
    if "password" in values:
        login += ":" + quote(values.pop("password"), safe="")
    host, port, database = (values.pop(name, "") for name in ("host", "port", "dbname"))
    if host.startswith("/"):  # the directory of a socket
        values["host"], host = host, ""
    rest = "&".join(f"{name}={quote(value, safe='')}" for name, value in values.items())
    place = f"{login}@{host}" if login else host
    return f"postgresql://{place}{f':{port}' if port else ''}/{quote(database, safe='')}{f'?{rest}' if rest else ''}"


def check_is_database(url: str) -> None:
    """LedgerError if an SQLite address names something that is there and is no database."""
    path = Path(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite:///") or not path.exists():
        return
    try:
        start = _start_of(path)
    except OSError as error:
        raise LedgerError(f"the ledger at {path} cannot be opened: {error.strerror}") from None
    if start and start != _SQLITE:
        raise LedgerError(f"{path} is no database: give --db the path of an SQLite file, or of a new one")


def _start_of(path: Path) -> bytes:
    """What a file begins with; of one that SQLite may have open in this process, as far as SQLite tells."""
    if "sqlite3" not in sys.modules:
        with path.open("rb") as file:
            return file.read(len(_SQLITE))
    import sqlite3

    if path.stat().st_size and not os.access(path, os.R_OK):
        raise PermissionError(13, "Permission denied")
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.DatabaseError as error:
        return b"" if "not a database" not in str(error) else b"something else"
    finally:
        connection.close()
    return _SQLITE
