from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from mileage.errors import LedgerError, UsageError
from mileage.ledger.address import check_is_database, database_url
from mileage.ledger.database import writing
from mileage.ledger.store import Store


def test_a_ledger_that_somebody_looks_at_while_it_is_made_is_made(tmp_path: Path) -> None:
    # Two processes that open a new ledger at once: one reads its version, the other switches the file to WAL.
    path = tmp_path / "ledger.db"
    reader = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    reader.execute("CREATE TABLE other (a)")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM other").fetchall()
    timer = threading.Timer(0.3, reader.close)
    timer.start()
    Store(path).close()
    timer.join()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_locks_of_an_open_ledger_outlive_a_look_at_its_file(tmp_path: Path) -> None:
    """A look of this process at the file must not let another process take the journal away."""
    db = tmp_path / "ledger.db"
    look = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM ledger_run').fetchone()"
    with Store(db) as store:
        with writing(store.engine) as connection:
            connection.execute(sa.text("CREATE TABLE planted (value)"))
        check_is_database(store.url)
        subprocess.run([sys.executable, "-c", look, str(db)], check=True)
        assert db.with_name("ledger.db-wal").exists()
        with writing(store.engine) as connection:
            connection.execute(sa.text("INSERT INTO planted VALUES (1)"))
    with sqlite3.connect(db) as plain:
        assert plain.execute("SELECT value FROM planted").fetchall() == [(1,)]


def test_what_is_no_database_is_refused_whoever_reads_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database, and long enough to have a header " * 4)
    (tmp_path / "empty.db").touch()
    for name in ("notes.txt", "empty.db"):
        alone = "import sys; from mileage.ledger.address import check_is_database; check_is_database(sys.argv[1])"
        url = f"sqlite:///{tmp_path / name}"
        done = subprocess.run([sys.executable, "-c", alone, url], capture_output=True, text=True, check=False)
        assert ("is no database" in done.stderr) == (name == "notes.txt")
    with pytest.raises(LedgerError, match="is no database"):
        check_is_database(f"sqlite:///{tmp_path / 'notes.txt'}")
    check_is_database(f"sqlite:///{tmp_path / 'empty.db'}")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host=h user=u password=a@b dbname=d", "postgresql+psycopg://u:a%40b@h/d"),
        ("host = h password='a b\\'c' port=5", "postgresql+psycopg://:a%20b%27c@h:5/"),
        ("dbname=d host=/run/pg sslmode=disable", "postgresql+psycopg:///d?sslmode=disable&host=%2Frun%2Fpg"),
    ],
)
def test_settings_of_a_server_are_its_address_and_no_file_name(text: str, address: str) -> None:
    assert database_url(text) == address


def test_settings_that_cannot_be_read_are_refused_without_a_word_of_them() -> None:
    with pytest.raises(UsageError, match="cannot be read") as refused:
        database_url("host=h password=hunter'22")
    assert "hunter" not in str(refused.value)
