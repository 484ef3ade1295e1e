"""Signals: the first one saves, the second one ends the process from wherever it is."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import broken_envs
import mileage
from mileage.system import none_swallowed
from waiting import MINUTES, until

HEAD = f"""
import sys, threading, time
sys.path.insert(0, {str(Path(broken_envs.__file__).parent)!r})
import numpy as np
import broken_envs, mileage
steps = []
def watch():
    seen, since = 0, 0.0
    while not seen or time.process_time() < since + 0.5:
        if seen != len(steps):
            seen, since = len(steps), time.process_time()
        time.sleep(0.05)
    print("ready", flush=True)
"""
# It is ready once it computes and comes to no end of a step.
HANGS = "threading.Thread(target=watch, daemon=True).start()"
ALONE = f"""
vec = mileage.VecEnv(broken_envs.Endless, 4)
vec.reset()
{HANGS}
while True:
    steps.append(vec.step(np.zeros(4, np.int64)))
"""
TRAINING = f"""
{HANGS}
agent = mileage.agent_class("{{algorithm}}")(broken_envs.LateEndless, preset="none", threads=1, n_envs=8, {{options}})
agent.learn(10**9, eval_every=10**9, callback=steps.append, ledger="ledger.db")
"""
SOUND = """
agent = mileage.PPO("CartPole-v1", preset="none", threads=1, n_envs=8, n_steps=32)
said = lambda _: steps or steps.append(print("ready", flush=True))
agent.learn(10**9, eval_every=10**9, callback=said, ledger="ledger.db")
"""


def started(code: str, cwd: Path) -> subprocess.Popen[str]:
    """A process that runs `code` and has said that it is ready."""
    with (cwd / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD + code], cwd=cwd, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def signalled(process: subprocess.Popen[str], *numbers: signal.Signals) -> int:
    """Send signals some moments apart, the last one again and again, and return how the process ended."""
    for number in numbers[:-1]:
        process.send_signal(number)
        time.sleep(0.5)
    for _ in range(6):
        # Two that come at the same moment are one.
        process.send_signal(numbers[-1])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=30)
            return process.returncode
    raise AssertionError("it did not end")


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
    assert signalled(started(SOUND, tmp_path), number) == 0
    (run,) = mileage.Ledger(tmp_path / "ledger.db").records()
    assert (run.state, run.reason) == ("stopped", reason)


@pytest.mark.parametrize(("number", "code", "word"), [(2, 130, "interrupted"), (15, 143, "terminated")])
def test_one_signal_to_the_command_saves_what_was_learned(number: int, code: int, word: str, tmp_path: Path) -> None:
    line = "mileage train ppo CartPole-v1 --threads 1 --steps 1000000000 --checkpoint-every 2048 --episodes 2"
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen([sys.executable, "-m", *line.split()], cwd=tmp_path, stderr=errors)
    until(lambda: list(tmp_path.rglob("checkpoint.safetensors")) or process.poll() is not None)
    process.send_signal(number)
    assert process.wait(timeout=MINUTES) == code
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
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=MINUTES, check=False
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
            cwd=tmp_path, capture_output=True, text=True, timeout=MINUTES, check=False,
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
