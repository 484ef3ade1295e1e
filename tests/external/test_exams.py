"""A recorded program's policy sits the exam: when it changes, on the clock, while the program is halted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adapters.drivers import complete

TRAINING = """
import json, os, pathlib, time
def leave(gain, step):
    print(f"METRIC mean_return=500 step={step}", flush=True)
    pathlib.Path("new").write_text(json.dumps({"gain": gain}))
    os.replace("new", "policy.json")
pathlib.Path("pid").write_text(str(os.getpid()))
leave(0.0, 1000)
while {wait} and not os.path.exists("examined"):
    time.sleep(0.05)
leave(1.0, 2000)
time.sleep({rest})
"""
SAVING = """
import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
for _ in range(1000):
    with open("policy.json", "w") as file:
        print('{"gain": ', file=file, flush=True)
        time.sleep(0.02)
        print("1.0}", file=file)
    if os.path.exists("examined"):
        break
    time.sleep(0.02)
"""
LOADER = """
import json, pathlib
def read(path):
    gain = json.load(open(path))["gain"]
    pid = pathlib.Path("pid").read_text()
    if pathlib.Path("/proc", pid).exists():
        state = pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
        pathlib.Path("examined").write_text(state)
    return lambda obs: (gain * (obs[:, 2] + obs[:, 3]) > 0).astype(int)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loader.py").write_text(LOADER)
    return tmp_path


def record(place: Path, wait: bool, rest: float, *options: str) -> subprocess.CompletedProcess[str]:
    (place / "train.py").write_text(TRAINING.replace("{wait}", str(wait)).replace("{rest}", str(rest)))
    exam = ["--panel", "CartPole-v1", "--policy", "policy.json", "--adapter", str(place / "loader.py") + ":read"]
    command = [sys.executable, "-m", "mileage", "record", "--db", "ledger.db", *exam, *options, "--", sys.executable]
    return subprocess.run([*command, "train.py"], capture_output=True, text=True, check=False)


def test_a_policy_is_examined_when_it_changes_and_ends_the_run_at_its_target(place: Path) -> None:
    done = record(place, True, 600.0, "--target", "mean_return>=100")
    assert done.returncode == 0, done.stderr
    (run,) = complete("ledger.db")
    assert str(run.state) == "reached"
    first, last = run.evaluations
    # What the program claims of itself, 500 from the start, has no say.
    assert first.evaluation.mean_return < 20
    assert last.evaluation.mean_return > 100
    assert (first.steps, last.steps) == (1000, 2000)
    assert run.phases["eval"] > 0
    assert (place / "examined").read_text() == "T"  # halted while its policy sat the exam


def test_a_program_that_saves_all_the_time_is_examined_meanwhile(place: Path) -> None:
    (place / "train.py").write_text(SAVING)
    exam = ["--panel", "CartPole-v1", "--policy", "policy.json", "--adapter", str(place / "loader.py") + ":read"]
    command = [sys.executable, "-m", "mileage", "record", "--db", "ledger.db", *exam, "--", sys.executable]
    done = subprocess.run([*command, "train.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (place / "examined").read_text() == "T"


def test_what_is_left_at_the_end_is_examined(place: Path) -> None:
    done = record(place, False, 0.0)
    assert done.returncode == 0, done.stderr
    (run,) = complete("ledger.db")
    assert len(run.evaluations) == 1
    assert run.evaluations[0].evaluation.mean_return > 100


def test_a_policy_that_cannot_be_read_is_said_and_the_program_goes_on(place: Path) -> None:
    (place / "loader.py").write_text("def read(path):\n    raise ValueError('rubbish')\n")
    done = record(place, False, 0.0)
    assert done.returncode == 0
    assert "was not examined" in done.stderr
    assert "rubbish" in done.stderr


def test_an_exam_needs_a_panel_and_a_policy() -> None:
    for options in (["--panel", "CartPole-v1"], ["--policy", "x.onnx"], ["--target", "mean_return>=1"]):
        done = subprocess.run(
            [sys.executable, "-m", "mileage", "record", *options, "--", "true"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "go together" in done.stderr
