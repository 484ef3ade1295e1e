"""Where the ledger is. Kept free of database libraries, because every training run asks."""

from __future__ import annotations

import os
from pathlib import Path

from mileage._errors import LedgerError, UsageError

DEFAULT_PATH = Path("runs") / "mileage.db"
ENVIRONMENT_VARIABLE = "MILEAGE_DB"
# What every SQLite file begins with that is not empty.
_SQLITE = b"SQLite format 3\0"


def database_url(db: str | os.PathLike[str] | None = None) -> str:
    """The address of the ledger: `db`, else `MILEAGE_DB`, else `runs/mileage.db`.

    A plain path becomes `sqlite:///` with the absolute path, so that a later change of directory changes nothing.
    """
    text = os.fspath(db) if db is not None else os.environ.get(ENVIRONMENT_VARIABLE) or str(DEFAULT_PATH)
    if "\0" in text or not text.strip():
        raise UsageError("--db must be the path of an SQLite file or a postgresql:// address")
    for prefix in ("postgresql+psycopg://", "postgresql://", "postgres://"):
        if text.startswith(prefix):
            return "postgresql+psycopg://" + text.removeprefix(prefix)
    if "://" in text and not text.startswith("sqlite:///"):
        scheme = text.split("://", 1)[0]
        raise UsageError(f"--db cannot use {scheme}:// addresses: give the path of an SQLite file or postgresql://…")
    path = Path(text.removeprefix("sqlite:///")).expanduser()
    return "sqlite:///" + str(path.absolute())


def check_is_database(url: str) -> None:
    """LedgerError if an SQLite address names something that is there and is no database."""
    path = Path(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite:///") or not path.exists():
        return
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
    except OSError as error:
        raise LedgerError(f"the ledger at {path} cannot be opened: {error.strerror}") from None
    if start and start != _SQLITE:
        raise LedgerError(f"{path} is no database: give --db the path of an SQLite file, or of a new one")
