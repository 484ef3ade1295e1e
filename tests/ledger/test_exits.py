"""How a process may end without ending its run, and what its ledger says then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mileage
from mileage.ledger import queries
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from waiting import until

BEGIN = """
import os, sys, threading, time
from mileage import Ledger, Panel
from mileage.ledger import Evaluation

panel = Panel.default("CartPole-v1", 2)
run = Ledger(sys.argv[1]).run("loop", panel=panel, target="mean_return>=475", resources=False)
for step in range(1, 6):
    run.checkpoint(step)  # these come fast, and the last ones are in memory when the process ends
"""
REACH = "run.checkpoint(6, Evaluation.of(panel.seeds, [500.0, 500.0], [500, 500]))\n"


def _run(tmp_path: Path, program: str, code: int = 0) -> RecordedRun:
    db = tmp_path / "mileage.db"
    done = subprocess.run(
        [sys.executable, "-c", program, str(db)], env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return _only(db)


def _only(db: Path) -> RecordedRun:
    with Store(db, create=False) as store:
        (recorded,) = store.read(queries.complete_runs, None)
        return recorded


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(mileage.__file__).parent.parent)}


ENDS = {
    "the end of the script": ("", 0, "stopped"),
    "sys.exit": ("sys.exit(3)", 3, "stopped"),
    "an exception": ("raise ValueError('no more')", 1, "failed"),
    "an exception in another thread": (
        "t = threading.Thread(target=lambda: run.checkpoint(6) and 1 / 0); t.start(); t.join()", 0, "stopped"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("last", "code", "state"), ENDS.values(), ids=ENDS)
def test_a_process_that_goes_without_a_word_loses_no_row(tmp_path: Path, last: str, code: int, state: str) -> None:
    recorded = _run(tmp_path, BEGIN + last, code)
    steps = [row.step for row in recorded.checkpoints]
    assert steps[:5] == [1, 2, 3, 4, 5]
    assert recorded.end is not None
    assert (recorded.state, recorded.end.closed_by) == (state, "self")


def test_a_target_that_was_reached_in_the_last_moment_is_reached(tmp_path: Path) -> None:
    recorded = _run(tmp_path, BEGIN + REACH + "sys.exit(0)")
    assert (recorded.state, recorded.steps_to_target) == ("reached", 6)
    assert len(recorded.episodes) == 2


def test_an_error_that_nobody_caught_is_the_reason(tmp_path: Path) -> None:
    assert _run(tmp_path, BEGIN + "raise ValueError('no more')", 1).reason == "ValueError: no more"


@pytest.mark.parametrize("block", [False, True], ids=["called", "as a block"])
def test_sigterm_stops_a_run_as_ctrl_c_does(tmp_path: Path, block: bool) -> None:
    db = tmp_path / "mileage.db"
    wait = "print('ready', flush=True)\ntime.sleep(60)"
    program = BEGIN + (f"with run:\n    {wait.replace(chr(10), chr(10) + '    ')}" if block else wait)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(db)], env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    recorded = _only(db)
    assert (recorded.state, len(recorded.checkpoints)) == ("stopped", 5)


def test_a_handler_that_was_there_keeps_sigterm(tmp_path: Path) -> None:
    before = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('mine'))\n"
    after = "os.kill(os.getpid(), signal.SIGTERM)\nrun.end()"
    assert _run(tmp_path, before + BEGIN + after).state == "not_reached"


FORKS = {
    "ends it": "run.end('failed', 'of the child'); sys.exit(0)",
    "leaves its block": "run.__exit__(None, None, None); sys.exit(0)",
    "exits": "sys.exit(0)",
    "fails": "1 / 0",
    "records": "run.checkpoint(99); sys.exit(0)",
}


@pytest.mark.parametrize("child", FORKS.values(), ids=FORKS)
def test_a_forked_process_has_no_say_in_its_parents_run(tmp_path: Path, child: str) -> None:
    program = f"""
if os.fork() == 0:
    sys.stderr = open(os.devnull, "w")
    {child}
os.wait()
run.checkpoint(6)
run.end()
"""
    recorded = _run(tmp_path, BEGIN + program)
    assert [row.step for row in recorded.checkpoints] == [1, 2, 3, 4, 5, 6]
    assert (recorded.state, recorded.reason) == ("not_reached", "the budget was used up")


def test_training_that_is_terminated_saves_and_is_stopped(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "mileage", "train", "ppo", "CartPole-v1", "--steps", "500000000", "--db", "x.db",
            "--threads", "1", "--eval-every", "4096", "--episodes", "2",
        ],
        env=_environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    until(lambda: _has_checkpoints(tmp_path / "x.db"))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    recorded = _only(tmp_path / "x.db")
    assert (recorded.state, recorded.reason) == ("stopped", "terminated")
    assert recorded.checkpoint is not None
    assert (tmp_path / recorded.checkpoint).is_file()


def _has_checkpoints(db: Path) -> bool:
    if not db.exists():
        return False
    with Store(db, recover=False) as store:
        return any(store.read(queries.checkpoints, run.run_id) for run in store.read(queries.open_runs))


def test_the_row_that_reaches_the_target_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    recorded = _run(tmp_path, BEGIN + REACH + "os._exit(9)", 9)  # nothing runs at such an exit
    assert [row.step for row in recorded.checkpoints] == [1, 2, 3, 4, 5, 6]
    assert (recorded.state, recorded.steps_to_target) == ("crashed", 6)
