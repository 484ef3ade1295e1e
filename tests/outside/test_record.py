"""Training programs of others, recorded from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from mileage.outside.scalars import CsvRows, EventFile, JsonLines, OutputLines, Scalar, source_kind
from mileage.recording.recorder import Ledger
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
    from mileage.ledger import queries
    from mileage.ledger.store import Store

    run = the_run()
    assert run.run.name == "mine"
    with Store(Ledger("ledger.db").url, create=False) as store:
        rows = store.read(queries.checkpoints, run.run.run_id)
    claims = {row.step: json.loads(row.claimed) for row in rows}
    assert claims == {100: {"return": 12.5}, 200: {"loss": 0.5}, 300: {"rollout/ep_rew_mean": 33.5}}
    assert not any(row.target_met for row in rows)


@pytest.mark.parametrize("start", ["", "env -i "], ids=["as it is", "without an environment"])
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


def sleeping(seconds: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", seconds]]


# Sources by themselves


def test_output_lines_come_in_pieces() -> None:
    lines = OutputLines()
    for piece in (b"x\nMETR", b"IC a=1 step=", b"5\nMETRIC b=two c=3\n", b"METRIC d=4"):
        lines.feed(piece)
    assert list(lines.new()) == [Scalar("a", 1.0, 5), Scalar("c", 3.0, None)]
    assert list(lines.new()) == []
    lines.feed(b"\n" + b"y" * 10**6)
    assert list(lines.new()) == [Scalar("d", 4.0, None)]


def test_a_half_written_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    source = JsonLines(path)
    assert list(source.new()) == []
    path.write_text('{"step": 1, "a": 2}\n{"step": 2, "a"')
    assert list(source.new()) == [Scalar("a", 2.0, 1)]
    path.write_text('{"step": 1, "a": 2}\n{"step": 2, "a": 3}\n[1]\nnot json\n')
    assert list(source.new()) == [Scalar("a", 3.0, 2)]


def test_csv_with_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_text('#{"t_start": 1}\nr,l,t\n9.0,9,0.1\n')
    assert list(CsvRows(path).new()) == [Scalar("r", 9.0, None), Scalar("l", 9.0, None), Scalar("t", 0.1, None)]


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
    assert source_kind(path) is EventFile
    source = EventFile(path)
    assert list(source.new()) == [Scalar("loss", 0.5, 1)]
    add(2, 0.25)
    assert list(source.new()) == [Scalar("loss", 0.25, 2)]
    with path.open("ab") as file:
        file.write(b"\x05\x00\x00")
    assert list(source.new()) == []
    writer.close()
