"""Rows on their way: a disk that is full or hangs, a database that is away, and a memory with a limit."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from sample_rows import make_checkpoint, make_end, make_run

from mileage.ledger import backlog as backlog_module
from mileage.ledger import queries, spool
from mileage.ledger.backlog import Backlog
from mileage.ledger.rows import Row
from mileage.ledger.store import Store
from mileage.ledger.writer import Writer

RUN = make_run()


def rows(first: int, last: int) -> list[Row]:
    return [make_checkpoint(RUN, seq, target_met=False) for seq in range(first, last + 1)]


def seqs(found: Sequence[Row]) -> list[int]:
    return [row.seq for row in found]  # type: ignore[union-attr]


class Disk(spool.Spool):
    """A spool whose disk can be full."""

    full = False

    def append(self, rows: Sequence[Row]) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(rows)


def test_what_is_delivered_without_having_been_written_is_not_written_later(tmp_path: Path) -> None:
    disk = Disk(tmp_path, RUN.run_id)
    backlog = Backlog(disk, 1000)
    backlog.add([RUN, *rows(1, 2)], 0.0, 1.0)
    assert backlog.flush() is None
    backlog.add(rows(3, 4), 0.1, 1.0)
    assert seqs(backlog.pending().rows[1:]) == [1, 2]  # first on disk, then in the database
    disk.full = True
    assert backlog.flush() == "No space left on device"
    given = backlog.pending()
    assert seqs(given.rows[1:]) == [1, 2, 3, 4]
    backlog.add(rows(5, 5), 0.2, 1.0)
    backlog.delivered(given, 1 << 20)
    disk.full = False
    assert backlog.flush() is None
    content = spool.read(disk.path)
    assert content is not None
    assert seqs(content.rows[1:]) == [1, 2, 5]
    given = backlog.pending()
    assert seqs(given.rows) == [5]
    backlog.delivered(given, 0)
    assert backlog.empty
    assert disk.size == 0
    disk.close(remove=True)


def test_memory_has_a_limit_and_keeps_what_was_promised_and_what_was_reached(tmp_path: Path) -> None:
    disk = Disk(tmp_path, RUN.run_id)
    disk.full = True
    backlog = Backlog(disk, 100)
    backlog.add(rows(1, 60), 0.0, 1.0)
    backlog.flush()
    given = backlog.pending()  # the database has them in hand while more come
    reached = make_checkpoint(RUN, 1000, target_met=True)
    for first in range(61, 1000, 60):
        backlog.add(rows(first, min(first + 59, 999)), 0.0, 1.0)
        backlog.flush()
    backlog.add([reached, make_end(RUN)], 0.0, 1.0)
    backlog.flush()
    assert backlog.unwritten <= 60 + 160
    backlog.delivered(given, 1 << 20)
    left = backlog.pending().rows
    assert left[-2:] == [reached, make_end(RUN)]
    assert seqs(given.rows) == list(range(1, 61))
    assert min(seqs(left[:-1])) > 60
    assert backlog.lost == 1001 - 60 - len(left)
    disk.close(remove=True)


def test_what_memory_let_go_comes_back_from_disk_while_more_is_written(tmp_path: Path) -> None:
    disk = Disk(tmp_path, RUN.run_id)
    backlog = Backlog(disk, 10)
    backlog.add([RUN, *rows(1, 30)], 0.0, 1.0)
    backlog.flush()
    backlog.shed()
    assert backlog.on_disk_only
    assert backlog.pending().rows == []
    given = backlog.pending()
    found = list(backlog.each(given))
    assert seqs(found[1:]) == list(range(1, 31))
    backlog.add(rows(31, 32), 0.0, 1.0)
    backlog.flush()
    backlog.delivered(given, 0)
    assert not backlog.on_disk_only
    assert not backlog.empty
    assert disk.size > 0
    given = backlog.pending()
    assert seqs(list(backlog.each(given))) == [31, 32]
    backlog.delivered(given, 0)
    assert backlog.empty
    assert disk.size == 0
    disk.close(remove=True)


def test_a_disk_that_hangs_holds_up_neither_training_nor_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "HANGS_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(backlog_module, "SLOW_SECONDS", -1.0)  # so that only the thread of the disk meets it
    monkeypatch.setattr("mileage.ledger.writer.DELIVER_SECONDS", 0.05)
    hangs, answers = threading.Event(), threading.Event()
    append = spool.Spool.append

    def slow(self: spool.Spool, rows: Sequence[Row]) -> None:
        if hangs.is_set():
            answers.wait()
        append(self, rows)

    monkeypatch.setattr(spool.Spool, "append", slow)
    db = tmp_path / "mileage.db"
    Store(db).close()
    writer = Writer(RUN, db, load_after=0.0)
    hangs.set()
    arrived = threading.Event()
    deliver = Store.deliver

    def watched(self: Store, rows: Sequence[Row]) -> object:
        found = list(rows)
        done = deliver(self, found)
        if any(row == make_checkpoint(RUN, 20) for row in found):
            arrived.set()
        return done

    monkeypatch.setattr(Store, "deliver", watched)
    for seq in range(1, 21):
        writer.append([make_checkpoint(RUN, seq)])  # returns, although nobody writes
    assert arrived.wait(60.0)
    assert not answers.is_set()
    answers.set()
    writer.append([make_end(RUN)])
    assert writer.close(60.0)
    with Store(db) as store:
        assert seqs(store.read(queries.checkpoints, RUN.run_id)) == list(range(1, 21))
