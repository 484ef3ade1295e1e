"""What may happen to a run that is being recorded: it is killed, its disk is full, its server goes away."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, cannot_serve
from sample_rows import make_checkpoint, make_end, make_run

from mileage.ledger import queries
from mileage.ledger.store import Store
from mileage.ledger.writer import Writer
from waiting import until

# A training loop that says which checkpoints were recorded, one line each.
LOOP = """
import sys, time
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation
from mileage import Ledger

panel = Panel.default("CartPole-v1", 5)
parent = sys.argv[2] if len(sys.argv) > 2 else None
run = Ledger(sys.argv[1]).run("victim", panel=panel, target="mean_return>=475", price_usd_per_hour=3600.0,
                              parent_run_id=parent, step_budget=10**9, resources=False)
print("run", run.run_id, flush=True)
step = 0
while parent is None or step < 3:
    with run.phase("learn"):
        time.sleep(PAUSE)
    step += 1
    evaluation = Evaluation.of(panel.seeds, [float(step)] * 5, [step] * 5) if step % 4 == 0 else None
    run.checkpoint(step, evaluation, path="policy.safetensors")
    print("recorded", step, time.time(), flush=True)
run.end()
"""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": ":".join(sys.path)}


def _kill_at_a_random_moment(db: Path, delay: float, pause: float) -> None:
    loop = subprocess.Popen(
        [sys.executable, "-c", LOOP.replace("PAUSE", repr(pause)), str(db)], stdout=subprocess.PIPE, env=_environment()
    )
    assert loop.stdout is not None
    run_id = loop.stdout.readline().split()[1].decode()
    time.sleep(delay)
    loop.send_signal(signal.SIGKILL)
    killed_at = time.time()
    lines = [line for line in loop.stdout.read().split(b"\n")[:-1] if line.startswith(b"recorded")]
    loop.stdout.close()
    loop.wait()
    recorded = [(int(line.split()[1]), float(line.split()[2])) for line in lines]

    with Store(db) as store:
        record = store.read(queries.only_record, run_id)
        checkpoints = store.read(queries.checkpoints, run_id)
        assert [checkpoint.step for checkpoint in checkpoints] == list(range(1, len(checkpoints) + 1))
        # A row that comes alone is on disk when the call returns, unless the disk is slow; others with the next beat.
        on_disk = [step for step, at in recorded if at < killed_at - (0.2 if pause >= 0.06 else 0.6)]
        assert len(checkpoints) >= len(on_disk)
        for checkpoint in checkpoints:
            if checkpoint.mean_return is not None:
                episodes = store.read(queries.episodes, run_id, checkpoint.seq)
                assert [e.episode_return for e in episodes] == [float(checkpoint.step)] * 5
        end = record.end
        assert end.state == "crashed"
        assert end.checkpoints == len(checkpoints)
        lived = killed_at - record.run.started_at
        assert lived - 3.0 <= end.wall_seconds <= lived + 0.5
        assert end.cost_usd == pytest.approx(end.wall_seconds)  # at one dollar a second
    with contextlib.closing(sqlite3.connect(db)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    _resume(db, run_id)


def _resume(db: Path, run_id: str) -> None:
    subprocess.run(
        [sys.executable, "-c", LOOP.replace("PAUSE", "0.001"), str(db), run_id],
        check=True, capture_output=True, env=_environment(),
    )  # fmt: skip
    with Store(db) as store:
        (child,) = store.read(queries.select_records, f"parent_run_id={run_id}")
        assert (child.state, child.end.env_steps) == ("not_reached", 3)
    assert list(Path(f"{db}.spool").iterdir()) == []


@pytest.mark.parametrize("attempt", range(3))
def test_killed_at_a_random_moment(tmp_path: Path, attempt: int) -> None:
    moment = random.Random(attempt)
    _kill_at_a_random_moment(tmp_path / "mileage.db", moment.uniform(0.0, 1.5), moment.choice([0.07, 0.002]))


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(50))
def test_killed_at_fifty_random_moments(tmp_path: Path, attempt: int) -> None:
    moment = random.Random(1000 + attempt)
    _kill_at_a_random_moment(tmp_path / "mileage.db", moment.uniform(0.0, 3.0), moment.choice([0.07, 0.01, 0.001]))


# A full disk

FULL_DISK = """
import resource, sys
from mileage.ledger.panels import Panel
from mileage import Ledger

with Ledger(sys.argv[1]).run("before", resources=False) as run:
    run.checkpoint(1)
    run.checkpoint(2)

# No file may grow any more: every write fails as it does on a full disk.
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
with Ledger(sys.argv[1]).run("during", resources=False) as run:
    import time
    for step in range(200):
        run.checkpoint(step, path="x" * 1000)
        time.sleep(0.005)
    trained = step + 1
    problem = run.problem
print("trained", trained, "problem", problem is not None, flush=True)
"""


def test_training_goes_on_when_the_disk_is_full_and_earlier_rows_stay(tmp_path: Path) -> None:
    db = tmp_path / "mileage.db"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(db), "4096"],
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained 200 problem True\n"
    sentences = done.stderr.strip().splitlines()
    assert 1 <= len(sentences) <= 4, done.stderr
    assert "Traceback" not in done.stderr
    assert all("cannot be written" in s or "cannot be opened" in s or "are lost" in s for s in sentences), sentences
    with Store(db) as store:
        (before,) = store.read(queries.select_records, "before")
        assert before.state == "finished"
        assert [c.step for c in store.read(queries.checkpoints, before.run.run_id)] == [1, 2]
    with contextlib.closing(sqlite3.connect(db)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_rows_kept_in_memory_are_delivered_when_there_is_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    db = tmp_path / "mileage.db"
    Store(db).close()
    run = make_run()
    writer = Writer(run, db, load_after=0.0)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        for seq in range(1, 101):
            writer.append([make_checkpoint(run, seq)])
            time.sleep(0.002)
        until(lambda: writer.problem is not None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    writer.append([make_end(run)])
    assert writer.close()
    with Store(db) as store:
        assert [c.seq for c in store.read(queries.checkpoints, run.run_id)] == list(range(1, 101))
    assert len(caplog.messages) == len(set(caplog.messages)) <= 4


def test_a_directory_that_cannot_be_written_is_one_sentence_before_training_starts(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where a directory should be")
    from mileage.errors import LedgerError

    with pytest.raises(LedgerError, match="cannot be written"):
        Writer(make_run(), tmp_path / "runs" / "mileage.db")


# A run too short to open the database

SHORT = """
import sys
from mileage import Ledger

with Ledger(sys.argv[1]).run("short", resources=False) as run:
    run.checkpoint(1)
assert "sqlalchemy" not in sys.modules
print(run.run_id)
"""


def test_a_short_run_is_delivered_by_whoever_comes_first(tmp_path: Path) -> None:
    db = tmp_path / "mileage.db"
    done = subprocess.run(
        [sys.executable, "-c", SHORT, str(db)], check=True, capture_output=True, text=True, env=_environment()
    )
    # The courier may still be on its way: reading must not depend on it, nor on there being a database yet.
    with Store(db, create=False) as store:
        record = store.read(queries.only_record, done.stdout.strip())
        assert (record.state, record.end.checkpoints) == ("finished", 1)
    assert list(Path(f"{db}.spool").iterdir()) == []


def test_the_courier_delivers_a_short_run_when_nobody_reads(tmp_path: Path) -> None:
    db = tmp_path / "mileage.db"
    subprocess.run([sys.executable, "-c", SHORT, str(db)], check=True, capture_output=True, env=_environment())
    until(lambda: not list(Path(f"{db}.spool").iterdir()))
    with contextlib.closing(sqlite3.connect(db)) as connection:
        assert connection.execute("SELECT state FROM ledger_end").fetchall() == [("finished",)]


# A server that goes away


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    missing = cannot_serve()
    if missing is not None:
        pytest.skip(missing)
    monkeypatch.setenv("MILEAGE_SPOOL", str(tmp_path / "spool"))
    running = PostgresServer()
    running.start()
    yield running
    running.stop()
    running.remove()


def test_a_server_killed_and_restarted_in_mid_run_gets_every_row_once(
    own_server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mileage.ledger.writer.DELIVER_SECONDS", 0.1)
    monkeypatch.setattr("mileage.ledger.writer.RETRY_SECONDS", 0.1)
    run = make_run()
    writer = Writer(run, own_server.url, load_after=0.0)
    for seq in range(1, 301):
        if seq == 100:
            own_server.kill()
        if seq == 200:
            until(lambda: writer.problem is not None)
            assert "kept and delivered later" in writer.problem
            (waiting,) = (tmp_path / "spool").rglob("*.rows")
            assert waiting.stat().st_size > 0
            own_server.start()
        writer.append([make_checkpoint(run, seq)])
        time.sleep(0.005)
    writer.append([make_end(run)])
    assert writer.close()
    assert list((tmp_path / "spool").rglob("*.rows")) == []
    with Store(own_server.url) as store:
        assert [c.seq for c in store.read(queries.checkpoints, run.run_id)] == list(range(1, 301))
        assert len(store.read(queries.records)) == 1
    assert not any("Traceback" in message for message in caplog.messages)


def test_rows_of_a_finished_run_wait_for_the_server_and_the_next_opener_delivers_them(
    own_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mileage.ledger.writer.RETRY_SECONDS", 0.1)
    Store(own_server.url).close()
    own_server.kill()
    run = make_run()
    writer = Writer(run, own_server.url, load_after=0.0)
    writer.append([make_checkpoint(run, 1)])
    writer.append([make_end(run)])
    assert not writer.close()
    assert "wait in" in caplog.messages[-1]
    own_server.start()
    with Store(own_server.url) as store:
        (record,) = store.read(queries.records)
        assert record.state == "reached"
        assert store.read(queries.checkpoints, run.run_id) == [make_checkpoint(run, 1)]
    assert list((tmp_path / "spool").rglob("*.rows")) == []


def test_rows_beyond_the_memory_limit_stay_on_disk_and_arrive(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mileage.ledger.writer.MEMORY_ROWS", 50)
    monkeypatch.setattr("mileage.ledger.writer.RETRY_SECONDS", 0.05)
    own_server.kill()
    run = make_run()
    writer = Writer(run, own_server.url, load_after=0.0)
    for seq in range(1, 401):
        writer.append([make_checkpoint(run, seq)])
        time.sleep(0.002)
    until(lambda: writer._backlog.on_disk_only)
    own_server.start()
    writer.append([make_end(run)])
    assert writer.close()
    with Store(own_server.url) as store:
        assert [c.seq for c in store.read(queries.checkpoints, run.run_id)] == list(range(1, 401))


def test_the_spool_file_is_emptied_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mileage.ledger.writer.SPOOL_BYTES", 2000)
    monkeypatch.setattr("mileage.ledger.writer.DELIVER_SECONDS", 0.05)
    db = tmp_path / "mileage.db"
    Store(db).close()
    run = make_run()
    writer = Writer(run, db, load_after=0.0)
    sizes = [0]

    def emptied() -> bool:
        writer.append([make_checkpoint(run, len(sizes))])
        sizes.append(writer._spool.size)
        time.sleep(0.055)  # slow enough that every row goes through the file
        return sizes[-1] < max(sizes)

    until(emptied)
    assert max(sizes) > 2000
    writer.append([make_end(run)])
    assert writer.close()
    with Store(db) as store:
        assert [c.seq for c in store.read(queries.checkpoints, run.run_id)] == list(range(1, len(sizes)))
