"""What somebody may do to a ledger while a run writes to it: remove it, replace it, spoil it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_rows import make_checkpoint, make_end, make_run

from mileage.ledger import queries, spool
from mileage.ledger.rows import Run
from mileage.ledger.store import Store
from mileage.ledger.writer import Writer
from waiting import until


def _remove(db: Path) -> None:
    for path in db.parent.glob(f"{db.name}*"):
        if path.is_file():
            path.unlink()


def _remove_the_file_alone(db: Path) -> None:
    db.unlink()


def _remove_everything(db: Path) -> None:
    shutil.rmtree(db.parent)


def _replace(db: Path) -> None:
    other = db.with_name("other.db")
    with Store(other) as store:
        run = make_run(name="of the other")
        store.deliver([run, make_end(run)])
    _remove(db)
    os.replace(other, db)


def _move(db: Path) -> None:
    os.replace(db, db.with_name("kept.db"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DELIVER_SECONDS", "RETRY_SECONDS", "SETTLE_SECONDS"):
        monkeypatch.setattr(f"mileage.ledger.writer.{name}", 0.05)


def _written(db: Path, run: Run) -> int:
    with Store(db, recover=False) as store:
        return len(store.read(queries.checkpoints, run.run_id))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("spool_bytes", [1 << 20, 100], ids=["all of it in the spool", "most of it delivered"])
@pytest.mark.parametrize("harm", [_remove, _remove_the_file_alone, _remove_everything, _replace, _move])
def test_a_run_whose_ledger_goes_is_whole_in_the_one_that_is_there_afterwards(
    tmp_path: Path,
    harm: Callable[[Path], None],
    spool_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("mileage.ledger.writer.SPOOL_BYTES", spool_bytes)
    db, run = tmp_path / "runs" / "mileage.db", make_run()
    writer = Writer(run, db, load_after=0.0)
    for seq in range(1, 6):
        writer.append([make_checkpoint(run, seq)])
    until(lambda: db.exists() and _written(db, run) >= 5)
    harm(db)
    for seq in range(6, 11):
        writer.append([make_checkpoint(run, seq)])
        time.sleep(0.06)
    writer.append([make_end(run)])
    assert writer.close()
    assert any("removed or replaced" in message for message in caplog.messages)
    with Store(db, create=False) as store:
        recorded = store.read(queries.complete, store.read(queries.only_record, run.run_id))
        assert [row.seq for row in recorded.checkpoints] == list(range(1, 11))
        assert recorded.end == make_end(run)
    assert spool.waiting(Path(f"{db}.spool")) == []


@pytest.mark.usefixtures("quick")
def test_a_run_whose_ledger_becomes_something_else_keeps_its_rows_and_says_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db, run = tmp_path / "mileage.db", make_run()
    writer = Writer(run, db, load_after=0.0)
    until(lambda: db.exists() and _written(db, run) >= 0)
    writer.append([make_checkpoint(run, 1)])
    _remove(db)
    db.write_text("this is no database")
    writer.append([make_end(run)])
    assert not writer.close()
    assert "wait in" in caplog.messages[-1]
    db.unlink()
    with Store(db) as store:
        recorded = store.read(queries.complete, store.read(queries.only_record, run.run_id))
    assert (len(recorded.checkpoints), recorded.state) == (1, "reached")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("content", [b"", b"\xa5" * 8192], ids=["emptied", "overwritten"])
def test_a_run_whose_ledger_is_spoilt_in_place_is_not_taken_for_delivered(tmp_path: Path, content: bytes) -> None:
    db, run = tmp_path / "mileage.db", make_run()
    writer = Writer(run, db, load_after=0.0)
    writer.append([make_checkpoint(run, 1)])
    until(lambda: db.exists() and _written(db, run) >= 1)
    time.sleep(0.2)
    with db.open("r+b") as file:  # as `cp` does: the file stays the same one
        file.truncate(0)
        file.write(content)
    writer.append([make_checkpoint(run, 2)])
    time.sleep(0.2)
    writer.append([make_end(run)])
    if not writer.close():
        _remove(db)
    with Store(db) as store:
        recorded = store.read(queries.complete, store.read(queries.only_record, run.run_id))
    assert ([row.seq for row in recorded.checkpoints], recorded.state) == ([1, 2], "reached")


@pytest.mark.usefixtures("quick")
def test_a_server_that_lost_the_run_gets_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restore of yesterday's dump; the row is taken away as only its owner can."""
    from mileage.ledger.redaction import unprotected

    db, run = tmp_path / "mileage.db", make_run()
    writer = Writer(run, db, load_after=0.0)
    writer.append([make_checkpoint(run, 1)])
    until(lambda: db.exists() and _written(db, run) >= 1)
    with Store(db, recover=False) as store, store.engine.execution_options(write=True).begin() as connection:
        for table in ("ledger_run", "ledger_checkpoint"):
            with unprotected(connection, table):
                connection.exec_driver_sql(f"DELETE FROM {table}")
    writer.append([make_end(run)])
    assert writer.close()
    with Store(db) as store:
        assert len(store.read(queries.rows_of, run.run_id)) == 3
