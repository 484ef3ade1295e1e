"""Training programs of others, recorded from outside."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from mileage.errors import UsageError
from mileage.external.record import _Figures, record
from mileage.ledger import queries
from mileage.ledger.recorder import Ledger
from mileage.ledger.scalars import (
    CsvRows,
    EventFileSource,
    JsonLines,
    OutputLines,
    Source,
    Trackio,
    WandbFile,
    source_kind,
)
from mileage.ledger.store import Store
from mileage.measure import PhaseClock
from waiting import until


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "mileage", "record", "--db", "ledger.db", *words]


def recorded(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(*words), capture_output=True, check=False, **options)


def the_run() -> Any:
    (run,) = Ledger("ledger.db").records()
    return run


def test_output_and_exit_code_are_the_programs_own(place: Path) -> None:
    program = "import sys; sys.stdout.buffer.write(b'a\\r\\n\\x00\\xff no newline'); sys.exit(7)"
    done = recorded("--price", "36", "--", sys.executable, "-c", program)
    assert done.stdout == b"a\r\n\x00\xff no newline"
    assert done.returncode == 7
    run = the_run()
    assert run.state == "failed"
    assert run.end.reason == "exit code 7"
    assert run.end.cost_usd == pytest.approx(run.wall_seconds / 100, rel=1e-6)


def test_figures_are_claimed_at_their_steps(place: Path) -> None:
    Path("train.py").write_text(
        "import json\n"
        "print('METRIC return=12.5 loss=nan step=100')\n"
        "open('metrics.jsonl', 'w').write(json.dumps({'global_step': 200, 'loss': 0.5, 'text': 'x'}) + '\\n')\n"
        "open('progress.csv', 'w').write('time/total_timesteps,rollout/ep_rew_mean\\n300,33.5\\n')\n"
    )
    Path("old.csv").write_text("step,other\n1,2\n")
    os.utime("old.csv", (1, 1))
    recorded("--name", "mine", "--", sys.executable, "train.py")
    run = the_run()
    assert run.run.name == "mine"
    with Store(Ledger("ledger.db").url, create=False) as store:
        rows = store.read(queries.checkpoints, run.run.run_id)
    claims = {row.step: json.loads(row.claimed) for row in rows}
    assert claims == {100: {"return": 12.5}, 200: {"loss": 0.5}, 300: {"rollout/ep_rew_mean": 33.5}}
    assert not any(row.target_met for row in rows)


@pytest.mark.parametrize("start", ["", "env -i ", "env -i A=1 "], ids=["as it is", "without an environment", "another"])
def test_a_daemon_belongs_to_the_run(place: Path, start: str) -> None:
    """Without an environment is also how any process looks for a moment while it starts another program."""
    Path("go.sh").write_text(f"{start}setsid sh -c 'sleep 1.5; echo late' &\necho early\n")
    done = recorded("--", "sh", "go.sh")
    assert done.stdout.split() == [b"early", b"late"]
    assert the_run().wall_seconds > 1.4


def test_time_limit_ends_every_process(place: Path) -> None:
    done = recorded("--timeout", "1", "--", "sh", "-c", "sleep 4711 & setsid sleep 4711 & trap '' TERM; wait; wait")
    assert done.returncode == 124
    run = the_run()
    assert (run.state, run.end.reason.split(";")[0]) == ("stopped", "out of time")
    assert not sleeping("4711")


def test_a_daemon_without_an_environment_is_ended_too(place: Path) -> None:
    done = recorded("--timeout", "1", "--", "sh", "-c", "env -i setsid sleep 4713 & sleep 4713")
    assert done.returncode == 124
    assert not sleeping("4713")


def test_a_program_ends_with_its_record(place: Path) -> None:
    """Killed beyond remedy; what the program started with another environment too."""
    process = subprocess.Popen(command("--", "sh", "-c", "env -i A=1 sleep 4714 & touch started; sleep 4714; true"))
    until(Path("started").exists)
    until(lambda: len(sleeping("4714")) == 2)
    process.kill()
    process.wait()
    until(lambda: not sleeping("4714"))


def test_a_killed_program_is_recorded_as_killed(place: Path) -> None:
    done = recorded("--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 137
    run = the_run()
    assert (run.state, run.end.reason) == ("crashed", "killed by SIGKILL")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reaches_the_program_and_leaves_nothing(place: Path, number: signal.Signals) -> None:
    words = command("--", "sh", "-c", "setsid sleep 4712 & touch started; sleep 4712")
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    until(Path("started").exists)
    process.send_signal(number)
    process.communicate()
    assert the_run().state == "stopped"
    assert not sleeping("4712")


def test_of_the_environment_only_what_is_known_or_asked_for_is_kept_and_no_secret(place: Path) -> None:
    given = {
        "OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "7", "CUDA_VISIBLE_DEVICES": "", "MY_LEARNING_RATE": "0.5",
        "MY_API_KEY": "sk-verysecret-123", "SECRETX": "verysecret-4", "MYAPP_LICENCE": "verysecret-5",
        "INTERNAL": "https://verysecret.example/", "MLFLOW_TRACKING_URI": "https://me:verysecret-6@tracker.example",
        "JAX_TOKEN": "verysecret-7", "MILEAGE_DB": "postgresql://u:verysecret-8@h/d",
    }  # fmt: skip
    recorded("--variable", "MY_LEARNING_RATE", "--variable", "MY_API_KEY", "--", "true", env=os.environ | given)
    run = the_run()
    assert "verysecret" not in repr(run)
    kept = json.loads(run.run.config)["environment"]
    plain = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "CUDA_VISIBLE_DEVICES", "MY_LEARNING_RATE")
    assert {name: kept.get(name) for name in plain} == {name: given[name] for name in plain}
    assert not {name for name in given if name not in plain} & set(kept)


def test_packages_are_those_of_the_program(place: Path) -> None:
    (own := Path("venv/lib/python3.11/site-packages/theirs-1.5.dist-info")).mkdir(parents=True)
    (own / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.5\n")
    Path("venv/bin").mkdir()
    Path("venv/bin/python").symlink_to(sys.executable)
    recorded("--", "venv/bin/python", "-S", "-c", "")
    assert json.loads(the_run().run.config)["packages"] == {"theirs": "1.5"}


def test_a_program_without_a_target_finishes(place: Path) -> None:
    recorded("--", "true")
    assert (the_run().state, the_run().target) == ("finished", None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "name the program to record"),
        (("--", "no-such-program"), "no-such-program cannot be run: there is no such program"),
        (("--timeout", "0", "--", "true"), "--timeout must be above 0 seconds, not 0"),
    ],
)
def test_bad_input_is_one_sentence(place: Path, words: tuple[str, ...], sentence: str) -> None:
    done = recorded(*words)
    assert done.returncode == 2
    assert sentence in done.stderr.decode()
    assert not Path("ledger.db").exists()


def test_what_cannot_be_run_begins_no_run(place: Path) -> None:
    begun: list[Any] = []
    with pytest.raises(UsageError, match="no such program"):
        record(["no-such-program"], Ledger("ledger.db"), "none", started=begun.append)
    assert not begun


def sleeping(seconds: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", seconds]]


# Sources by themselves


def figures(source: Source) -> list[tuple[str, float, int | None]]:
    return [(each.name, each.value, each.step) for each in source.new()]


def test_output_lines_come_in_pieces() -> None:
    lines = OutputLines()
    for piece in (b"x\nMETR", b"IC a=1 step=", b"5\nMETRIC b=two c=3\n", b"METRIC d=4"):
        lines.feed(piece)
    assert figures(lines) == [("a", 1.0, 5), ("c", 3.0, None)]
    assert figures(lines) == []
    lines.feed(b"\n" + b"y" * 10**6)
    assert figures(lines) == [("d", 4.0, None)]


def test_a_line_has_the_time_at_which_it_came(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db").run("r", keep=True, clock=PhaseClock()) as run:
        told = _Figures(run, [tmp_path], time.time())
        for step in (1, 2, 3):
            told.feed(b"METRIC a=1 step=%d\n" % step)
            time.sleep(0.05)
        told.last()
    assert run.result is not None
    at = [row.wall_seconds for row in run.result.checkpoints]
    assert at[0] + 0.1 <= at[1] + 0.05 <= at[2] <= run.result.wall_seconds - 0.05


def test_what_came_before_another_row_is_not_dated_before_it(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db").run("r", clock=PhaseClock()) as run:
        first = run.checkpoint(1)
        assert run.checkpoint(2, claimed={"a": 1}, at=-5.0).wall_seconds == first.wall_seconds
        assert run.checkpoint(3, claimed={"a": 1}, at=1e9).wall_seconds < 1e9


@pytest.mark.parametrize("rubbish", [b"no log", b":W&B\xe1\xbe\0" + b"\xff" * 40_000], ids=["another file", "broken"])
def test_a_reader_that_fails_is_said_once_and_the_program_goes_on(place: Path, rubbish: bytes) -> None:
    Path("rubbish").write_bytes(rubbish)
    Path("train.py").write_text(
        "import os, shutil, time\n"
        "shutil.copy('rubbish', 'run-1.wandb')\n"
        "shutil.copy('rubbish', 'events.out.tfevents.1')\n"
        "os.mkfifo('metrics.jsonl')\n"
        "for i in range(30):\n"
        "    print(f'METRIC a={i} step={i}', flush=True)\n"
        "    time.sleep(0.1)\n"
        "print('METRIC b=1 step=-5')\n"
        "print('METRIC c=1 step=1e300')\n"
        "print('METRIC ' + 'd' * 60000 + '=1 step=30', flush=True)\n"
    )
    done = recorded("--", sys.executable, "train.py")
    assert done.returncode == 0
    assert the_run().state == "finished"
    assert done.stderr.count(b"run-1.wandb are left out") <= 1
    with Store(Ledger("ledger.db").url, create=False) as store:
        rows = store.read(queries.checkpoints, the_run().run.run_id)
    named = {name: row.step for row in rows for name in json.loads(row.claimed)}
    assert {name: step for name, step in named.items() if len(name) == 1} == {"a": 29, "b": 29, "c": 29}


def wandb_log(rows: list[dict[str, object]]) -> bytes:
    """A log as W&B writes it: a head, and records that are parted where a block of 32 KiB ends."""

    def field(number: int, value: bytes) -> bytes:
        size, head = len(value), bytes([number << 3 & 127 | 2 | (128 if number > 15 else 0)])
        head += bytes([number >> 4]) if number > 15 else b""
        while size > 127:
            head, size = head + bytes([size & 127 | 128]), size >> 7
        return head + bytes([size]) + value

    log = b":W&B\xe1\xbe\0"
    for row in rows:
        items = [field(1, field(2, key.encode()) + field(16, json.dumps(row[key]).encode())) for key in row]
        rest, first = b"\x08\x05" + field(2, b"".join(items)), True
        while rest or first:
            if (left := 32768 - len(log) % 32768) < 7:
                log += b"\0" * left
                left = 32768
            piece, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if first else 4) if not rest else 2 if first else 3
            log += b"\0\0\0\0" + len(piece).to_bytes(2, "little") + bytes([kind]) + piece
            first = False
    return log


def test_wandb_logs_are_read_as_they_grow_without_wandb(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"_step": i, "_timestamp": 1e9 + i, "loss": i / 2, "text": "x" * (i * 7919)} for i in range(12)
    ]
    log, path = wandb_log(rows), tmp_path / "run-1.wandb"
    assert len(log) > 3 * 32768
    assert source_kind(path) is WandbFile
    source, found = WandbFile(path), []
    for end in (3, 7, 500, 501, 32760, 32768, 40_000, 65_541, 70_000, len(log)):
        path.write_bytes(log[:end])
        found += list(source.new())
    assert found == [("loss", i / 2, i, 1e9 + i) for i in range(12)]


def test_trackios_database_is_known_wherever_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mine.db")) as database, database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT NOT NULL, "
            "run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)"
        )
        row = ("2026-01-01T00:00:00+00:00", "r", 7, '{"loss": 0.5}')
        database.execute("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)", row)
    with closing(sqlite3.connect(tmp_path / "other.db")) as database, database:
        database.execute("CREATE TABLE other (a)")
    assert source_kind(tmp_path / "other.db") is None
    assert source_kind(tmp_path / "mine.db") is Trackio
    assert figures(Trackio(tmp_path / "mine.db")) == [("loss", 0.5, 7)]


def test_a_half_written_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    source = JsonLines(path)
    assert figures(source) == []
    path.write_text('{"step": 1, "a": 2}\n{"step": 2, "a"')
    assert figures(source) == [("a", 2.0, 1)]
    path.write_text('{"step": 1, "a": 2}\n{"step": 2, "a": 3}\n[1]\nnot json\n')
    assert figures(source) == [("a", 3.0, 2)]


def test_csv_with_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_text('#{"t_start": 1}\nr,l,t\n9.0,9,0.1\n')
    assert figures(CsvRows(path)) == [("r", 9.0, None), ("l", 9.0, None), ("t", 0.1, None)]


def test_event_files_are_read_as_they_grow(tmp_path: Path) -> None:
    writer_module = pytest.importorskip("tensorboard.summary.writer.event_file_writer", reason="needs tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    writer = writer_module.EventFileWriter(str(tmp_path))

    def add(step: int, value: float) -> None:
        writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=value)])))
        writer.flush()

    add(1, 0.5)
    (path,) = tmp_path.iterdir()
    assert source_kind(path) is EventFileSource
    source = EventFileSource(path)
    assert figures(source) == [("loss", 0.5, 1)]
    add(2, 0.25)
    assert figures(source) == [("loss", 0.25, 2)]
    with path.open("ab") as file:
        file.write(b"\x05\x00\x00")
    assert figures(source) == []
    writer.close()
