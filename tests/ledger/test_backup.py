from __future__ import annotations

import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sample_rows import make_checkpoint, make_end, make_run

from mileage.errors import UsageError
from mileage.ledger import queries
from mileage.ledger.checks import check_store
from mileage.ledger.maintenance import back_up
from mileage.ledger.store import Store
from mileage.ledger.writer import Writer


def test_a_backup_is_a_ledger_that_needs_no_second_file(tmp_path: Path) -> None:
    run = make_run()
    with Store(tmp_path / "mileage.db") as store:
        store.deliver([run, make_checkpoint(run, 1), make_end(run)])
        back_up(store.engine, store.url, tmp_path / "copies" / "copy.db")
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["copy.db"]
    assert stat.S_IMODE((tmp_path / "copies" / "copy.db").stat().st_mode) == 0o600
    with Store(tmp_path / "copies" / "copy.db") as copy:
        assert copy.read(queries.rows_of, run.run_id) == [run, make_checkpoint(run, 1), make_end(run)]


def test_a_backup_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    with Store(tmp_path / "mileage.db") as store, pytest.raises(UsageError, match="is there already"):
        back_up(store.engine, store.url, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_a_backup_while_others_write_is_consistent(tmp_path: Path) -> None:
    done = threading.Event()
    with Store(tmp_path / "mileage.db") as store, Store(tmp_path / "mileage.db") as other:

        def write() -> None:
            while not done.is_set():
                run = make_run()
                other.deliver([run, *(make_checkpoint(run, seq) for seq in range(1, 201)), make_end(run)])

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for i in range(5):
                back_up(store.engine, store.url, tmp_path / f"copy{i}.db")
        finally:
            done.set()
            thread.join()
    for i in range(5):
        with closing(sqlite3.connect(tmp_path / f"copy{i}.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            counts = [
                connection.execute(f"SELECT count(*) FROM ledger_{table}").fetchone()[0] for table in ("run", "end")
            ]
            assert counts[0] == counts[1]
            assert connection.execute("SELECT count(*) FROM ledger_checkpoint").fetchone()[0] == 200 * counts[0]


def test_a_plain_copy_of_the_file_alone_has_the_rows_of_some_seconds_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mileage.ledger.writer.SETTLE_SECONDS", 0.05)
    monkeypatch.setattr("mileage.ledger.writer.DELIVER_SECONDS", 0.05)
    db, run = tmp_path / "mileage.db", make_run()
    writer = Writer(run, db, load_after=0.0)
    writer.append([make_checkpoint(run, 1)])
    copied, copies = 0, iter(range(1000))
    while copied == 0:
        writer.append([])
        copy = tmp_path / f"copy{next(copies)}.db"
        if db.exists():
            shutil.copyfile(db, copy)  # and nothing of its journal
            with closing(sqlite3.connect(copy)) as connection:
                tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
                if ("ledger_checkpoint",) in tables:
                    copied = connection.execute("SELECT count(*) FROM ledger_checkpoint").fetchone()[0]
        threading.Event().wait(0.05)
    writer.append([make_end(run)])
    assert writer.close()
    with Store(db) as store:
        (journal,) = [check for check in check_store(store) if check.name == "journal"]
        assert "mileage ledger backup" in journal.found
