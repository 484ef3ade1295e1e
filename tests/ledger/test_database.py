from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

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
