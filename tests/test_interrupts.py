"""Signals: the first one saves, the second one ends the process from wherever it is."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import broken_envs
import mileage
from mileage._interrupts import none_swallowed

FILE = Path(broken_envs.__file__)
ALONE = """
vec = mileage.VecEnv(broken_envs.Endless, 4)
vec.reset()
vec.step(np.zeros(4, np.int64))
print("ready", flush=True)
while True:
    vec.step(np.zeros(4, np.int64))
"""
TRAINING = """
said = []
def ready(progress):
    if not said:
        said.append(print("ready", flush=True))
agent = mileage.agent_class("{algorithm}")(broken_envs.LateEndless, preset="none", threads=1, n_envs=8, {options})
agent.learn(10**9, eval_every=10**9, callback=ready, ledger="ledger.db")
"""
SOUND = TRAINING.replace("broken_envs.LateEndless", "'CartPole-v1'")


def started(code: str, cwd: Path) -> subprocess.Popen[str]:
    """A process that runs `code` and has said that it is ready."""
    head = f"import sys\nsys.path.insert(0, {str(FILE.parent)!r})\nimport numpy as np\nimport broken_envs, mileage\n"
    with (cwd / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", head + code], cwd=cwd, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def signalled(process: subprocess.Popen[str], *numbers: signal.Signals) -> int:
    """Send signals some moments apart, and return how the process ended."""
    for number in numbers:
        time.sleep(2.0)
        process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


def test_the_second_ctrl_c_ends_a_step_that_never_returns(tmp_path: Path) -> None:
    assert signalled(started(ALONE, tmp_path), signal.SIGINT, signal.SIGINT) == 130
    assert "killed by SIGINT inside a native call that did not return" in (tmp_path / "errors").read_text()


@pytest.mark.parametrize(
    ("algorithm", "options", "code"),
    [
        ("ppo", "n_steps=32", 130),
        ("dqn", "learning_starts=10**6", 130),
        ("impala", "n_steps=32", -signal.SIGINT),
    ],
)
def test_training_that_hangs_in_an_environment_ends_and_leaves_a_row(
    algorithm: str, options: str, code: int, tmp_path: Path
) -> None:
    process = started(TRAINING.format(algorithm=algorithm, options=options), tmp_path)
    assert signalled(process, signal.SIGINT, signal.SIGINT) == code
    (run,) = mileage.Ledger(tmp_path / "ledger.db").records()
    assert run.state == "stopped"
    assert ("killed by SIGINT" in run.reason) == (code == 130)


def test_a_second_sigterm_ends_it_too(tmp_path: Path) -> None:
    process = started(TRAINING.format(algorithm="ppo", options="n_steps=32"), tmp_path)
    assert signalled(process, signal.SIGTERM, signal.SIGTERM) == 143
    (run,) = mileage.Ledger(tmp_path / "ledger.db").records()
    assert "killed by SIGTERM" in run.reason


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_one_signal_ends_training_in_order(number: signal.Signals, reason: str, tmp_path: Path) -> None:
    assert signalled(started(SOUND.format(algorithm="ppo", options="n_steps=32"), tmp_path), number) == 0
    (run,) = mileage.Ledger(tmp_path / "ledger.db").records()
    assert (run.state, run.reason) == ("stopped", reason)


@pytest.mark.parametrize(("number", "code", "word"), [(2, 130, "interrupted"), (15, 143, "terminated")])
def test_one_signal_to_the_command_saves_what_was_learned(number: int, code: int, word: str, tmp_path: Path) -> None:
    line = "mileage train ppo CartPole-v1 --threads 1 --steps 1000000000 --checkpoint-every 2048 --episodes 2"
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen([sys.executable, "-m", *line.split()], cwd=tmp_path, stderr=errors)
    while not list(tmp_path.rglob("checkpoint.safetensors")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    said = (tmp_path / "errors").read_text()
    assert f"{word}: saved" in said
    assert "Traceback" not in said


def test_an_interrupt_before_the_loop_says_something(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from mileage.training.agent import Agent;"
        "Agent.prepare = lambda *_: os.kill(os.getpid(), signal.SIGINT);"
        "sys.argv = ['mileage', 'train', 'ppo', 'CartPole-v1', '--steps', '2048'];"
        "from mileage.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 130
    assert "mileage: interrupted before there was anything to save" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_before_the_environment_is_made_says_something(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from mileage.training import agents;"
        "agents.agent_class = lambda *_: os.kill(os.getpid(), {number});"
        "sys.argv = ['mileage', 'train', 'ppo', 'CartPole-v1', '--steps', '2048'];"
        "from mileage.cli import main; main()"
    )
    for number, status, word in ((2, 130, "interrupted"), (15, 143, "terminated")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(number=number)],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (status, f"mileage: {word} before it was done\n")
    assert [run.state for run in mileage.Ledger(tmp_path / "runs" / "mileage.db").records()] == ["stopped"] * 2


def test_an_interrupt_that_a_callback_of_c_code_swallows_comes_back() -> None:
    called = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    reached: list[None] = []
    sys.unraisablehook = lambda _: None
    try:
        with pytest.raises(KeyboardInterrupt), none_swallowed():
            reached.append(called())
    finally:
        sys.unraisablehook = hook
    assert reached == [None]
    assert signal.getsignal(signal.SIGINT) is before
    with none_swallowed():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), none_swallowed():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
