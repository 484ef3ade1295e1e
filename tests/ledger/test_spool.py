from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path

import pytest
from sample_rows import make_checkpoint, make_end, make_run

from mileage.ledger import spool


def test_rows_come_back_in_order_with_their_types(tmp_path: Path) -> None:
    run = make_run(name="日本 \x1b[31m")
    rows = [run, make_checkpoint(run, 1), make_checkpoint(run, 2, wall_seconds=0.1 + 0.2), make_end(run)]
    file = spool.Spool(tmp_path, run.run_id)
    file.append(rows[:2])
    file.append(rows[2:])
    content = spool.read(file.path)
    assert content is not None
    assert content.rows == rows
    assert content.run == run
    assert content.complete
    assert content.run_id == run.run_id
    assert file.size == file.path.stat().st_size
    file.close(remove=True)
    assert spool.waiting(tmp_path) == []
    assert spool.read(file.path) is None


@pytest.mark.parametrize("lost", range(1, 60, 7))
def test_a_torn_end_loses_the_torn_row_only(tmp_path: Path, lost: int) -> None:
    run = make_run()
    file = spool.Spool(tmp_path, run.run_id)
    file.append([run, make_checkpoint(run, 1), make_checkpoint(run, 2)])
    os.truncate(file.path, file.size - lost)
    content = spool.read(file.path)
    assert content is not None
    assert content.rows == [run, make_checkpoint(run, 1)]
    assert not content.complete
    file.close(remove=False)


def test_a_cleared_file_can_be_written_again(tmp_path: Path) -> None:
    run = make_run()
    file = spool.Spool(tmp_path, run.run_id)
    file.append([run])
    file.clear()
    assert file.path.stat().st_size == 0
    file.append([make_checkpoint(run, 1)])
    content = spool.read(file.path)
    assert content is not None
    assert content.rows == [run, make_checkpoint(run, 1)]  # whose run it is, if the database is lost
    file.close(remove=True)


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    run = make_run()
    file = spool.Spool(tmp_path, run.run_id)
    file.append([run])
    before = file.path.read_bytes()
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # Room for half of the row: the write is cut short first and fails then.
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        with pytest.raises(OSError, match="File too large"):
            file.append([make_checkpoint(run, 1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert file.path.read_bytes() == before
    file.append([make_checkpoint(run, 1)])
    content = spool.read(file.path)
    assert content is not None
    assert content.rows == [run, make_checkpoint(run, 1)]
    file.close(remove=True)


def test_a_file_of_an_older_version_is_read_by_its_own_columns(tmp_path: Path) -> None:
    lines = [
        ["format", 1, {"checkpoint": ["seq", "run_id", "step", "wall_seconds", "gone"]}],
        ["checkpoint", [7, "r", 70, 1.5, "x"]],
        ["unheard_of", [1]],
    ]
    path = tmp_path / "r.rows"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    content = spool.read(path)
    assert content is not None
    (row,) = content.rows
    assert (row.run_id, row.seq, row.step, row.wall_seconds, row.cost_usd) == ("r", 7, 70, 1.5, None)  # type: ignore[union-attr]


def test_a_beat_moves_the_modification_time(tmp_path: Path) -> None:
    file = spool.Spool(tmp_path, "r")
    os.utime(file.path, (1.0, 1.0))
    file.beat(2e9)
    assert file.path.stat().st_mtime == 2e9  # by the run's own clock
    content = spool.read(file.path)
    assert content is not None
    assert content.seen_at < content.beat_at == 2e9
    file.close(remove=True)


def test_the_directory_depends_on_the_address_and_not_on_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEAGE_SPOOL", "/spool")
    first = spool.spool_dir("postgresql+psycopg://me:old@host/db")
    assert first == spool.spool_dir("postgresql+psycopg://you:new@host/db")
    assert first != spool.spool_dir("postgresql+psycopg://me:old@host/other")
    assert first.parent == Path("/spool")
    assert spool.spool_dir("sqlite:////x/mileage.db") == Path("/x/mileage.db.spool")
