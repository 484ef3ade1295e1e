"""Training in an environment with a bug ends with a sentence, a row, and no checkpoint that holds NaN."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import broken_envs
import extras
import mileage
from mileage import errors
from mileage.training.checkpoints import read

FILE = Path(broken_envs.__file__)
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"n_envs": 64, "n_steps": 32},
    "a2c": {"n_envs": 64, "n_steps": 32},
    "impala": {"n_envs": 64, "n_steps": 32},
    "dqn": {"n_envs": 64, "learning_starts": 640, "batch": 64, "prioritised": True},
    "sac": {"n_envs": 64, "learning_starts": 640, "batch": 64},
    "td3": {"n_envs": 64, "learning_starts": 640, "batch": 64},
}
BACKENDS = [("native", name) for name in SMALL] + [
    pytest.param("torch", name, marks=extras.TORCH) for name in ("ppo", "a2c", "dqn", "sac", "td3")
]


def agent(algorithm: str, env: str, **options: Any) -> mileage.training.agent.Agent:
    anywhere = "Anywhere" if algorithm in ("sac", "td3") else ""
    kind = mileage.agent_class(algorithm)
    return kind(getattr(broken_envs, env + anywhere), preset="none", threads=1, **SMALL[algorithm], **options)


@pytest.mark.parametrize(("backend", "algorithm"), BACKENDS)
def test_an_error_in_step_ends_training_and_is_in_the_ledger(backend: str, algorithm: str, tmp_path: Path) -> None:
    ledger = mileage.Ledger(tmp_path / "ledger.db")
    with (
        agent(algorithm, "Raising", backend=backend) as learning,
        pytest.raises(
            errors.EnvError, match=r"raised ValueError: too far \(.*line \d+\) in environment \d+, in step 11"
        ),
    ):
        learning.learn(50_000, ledger=ledger)
    (run,) = ledger.records()
    assert run.state == "failed"
    assert "too far" in run.reason


MASKED = [("native", "ppo"), ("native", "a2c"), ("native", "impala"), ("native", "dqn")] + [
    pytest.param("torch", name, marks=extras.TORCH) for name in ("ppo", "dqn")
]


@pytest.mark.parametrize(("backend", "algorithm"), MASKED)
@pytest.mark.parametrize(
    ("env", "said"),
    [
        (
            "RaisingMask",
            r"mask\(\) of 'RaisingMask' raised ValueError: cannot say \(.*line \d+\) in environment \d+, in",
        ),
        ("ClosingMask", "environment 'ClosingMask' has a mask that leaves no action possible"),
    ],
)
def test_a_mask_that_fails_ends_training_and_is_in_the_ledger(
    backend: str, algorithm: str, env: str, said: str, tmp_path: Path
) -> None:
    ledger = mileage.Ledger(tmp_path / "ledger.db")
    with agent(algorithm, env, backend=backend) as learning, pytest.raises(errors.EnvError, match=said):
        learning.learn(50_000, ledger=ledger)
    (run,) = ledger.records()
    assert run.state == "failed"


@pytest.mark.parametrize("env", ["Raising", "RaisingReset", "RaisingObserve", "RaisingMask", "Asserting"])
def test_evaluation_ends_with_the_error_too(env: str) -> None:
    with agent("ppo", env) as playing, pytest.raises(errors.EnvError, match="raised"):
        playing.evaluate()


@pytest.mark.parametrize(("backend", "algorithm"), BACKENDS)
@pytest.mark.parametrize("env", ["LateNan", "LateInfinite"])
def test_what_is_not_finite_ends_training_and_overwrites_no_checkpoint(
    backend: str, algorithm: str, env: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.safetensors"
    what = "observation" if env == "LateNan" else "reward"
    with agent(algorithm, env, backend=backend) as learning:
        learning.save(path)
        before = path.read_bytes()
        with pytest.raises(errors.EnvError, match=f"{what}.* of environment \\d+|held-out episode"):
            learning.learn(200_000, target="mean_return>=15", eval_every=10**9, checkpoint=path, checkpoint_every=64)
        _poison(learning)
        with pytest.raises(errors.CheckpointError, match="the one that is there is kept"):
            learning.save(path)
    arrays, _ = read(path)
    assert all(np.isfinite(array).all() for name, array in arrays.items() if name.startswith(("params", "module")))
    assert path.stat().st_size >= len(before) // 2


@pytest.mark.parametrize("env", ["LateNan", "LateInfinite"])
def test_normalisation_does_not_hide_what_is_not_finite(env: str) -> None:
    what = "observation nan" if env == "LateNan" else "reward"
    with (
        agent("ppo", env, normalise_observations=True, normalise_rewards=True) as learning,
        pytest.raises(errors.EnvError, match=f"{what}.* of environment \\d+ .*in step \\d+ of the rollout after"),
    ):
        learning.learn(200_000, eval_every=10**9)


def _poison(learning: mileage.training.agent.Agent) -> None:
    for array in learning.policy.live_arrays().values():
        if array.dtype == np.float32:
            array.flat[0] = np.nan
    learning.policy.loaded()


def test_an_infinite_return_never_reaches_a_target() -> None:
    from mileage.ledger.targets import Evaluation, Target

    evaluation = Evaluation.of([1, 2], [np.inf, 1.0], [1, 1], None)
    assert not Target.parse("mean_return>=475").met(evaluation)


def test_updates_that_diverge_by_themselves_say_what_to_change() -> None:
    with (
        mileage.PPO("CartPole-v1", preset="none", threads=1, learning_rate=1e30, max_grad_norm=0.0) as wild,
        pytest.raises(errors.DivergedError, match=r"lower learning_rate \(now 1e\+30\)"),
    ):
        wild.learn(100_000, eval_every=10**9)


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "mileage", *arguments]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("Raising", "raised ValueError: too far"),
        ("Wide", "reaches beyond a row"),
        ("Nothing", "must be a number, not None"),
        ("NumpyDraws", "draw from its rng"),
    ],
)
def test_the_command_says_it_in_a_sentence_with_exit_1_and_a_row(env: str, said: str, tmp_path: Path) -> None:
    done = command("train", "ppo", f"{FILE}:{env}", "--steps", "4096", "--threads", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    (row,) = json.loads(command("ledger", "list", "--json", cwd=tmp_path).stdout)
    assert row["state"] == "failed"


KILLED = """
import os, signal
import mileage
from mileage.training import recording
recording.STEPS_EVERY_SECONDS = 0.0
def kill(progress):
    if progress.steps >= 5 * 128:
        os.kill(os.getpid(), signal.SIGKILL)
agent = mileage.PPO("CartPole-v1", threads=1, n_envs=4, n_steps=32)
agent.learn(100_000, eval_every=10**6, callback=kill, ledger="ledger.db")
"""


def test_the_steps_of_a_run_that_was_killed_are_in_the_ledger(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, timeout=300, check=False)
    assert killed.returncode == -9
    (run,) = mileage.Ledger(tmp_path / "ledger.db").records()
    assert run.state == "crashed"
    assert 128 <= run.steps <= 5 * 128


SAVED = """
import os, signal, sys
import mileage
from mileage.training import recording
recording.STEPS_EVERY_SECONDS = 1e9
def kill(progress):
    if os.path.exists("kept.safetensors"):
        os.kill(os.getpid(), signal.SIGKILL)
agent = mileage.PPO("CartPole-v1", threads=1, n_envs=4, n_steps=32)
agent.learn(
    100_000, eval_every=10**6, callback=kill, checkpoint="kept.safetensors", checkpoint_every=1280, ledger="ledger.db"
)
"""


def test_a_killed_run_has_taken_the_steps_of_its_checkpoint_and_so_has_who_resumes_it(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", SAVED], cwd=tmp_path, timeout=300, check=False)
    assert killed.returncode == -9
    ledger = mileage.Ledger(tmp_path / "ledger.db")
    (run,) = ledger.records()
    with mileage.PPO.load(tmp_path / "kept.safetensors") as agent:
        assert (run.state, run.steps, agent.steps) == ("crashed", 1280, 1280)
        resumed = agent.learn(1280, eval_every=0, ledger=ledger)
    assert resumed.metric("env_steps") == 2560


def test_the_steps_of_a_run_that_failed_are_in_the_ledger(tmp_path: Path) -> None:
    ledger = mileage.Ledger(tmp_path / "ledger.db")
    calls = []

    def give_up(progress: Any) -> None:
        calls.append(progress.steps)
        if len(calls) == 3:
            raise RuntimeError("enough")

    with mileage.PPO("CartPole-v1", threads=1, n_envs=4, n_steps=32) as learning, pytest.raises(RuntimeError):
        learning.learn(10_000, eval_every=10**6, callback=give_up, ledger=ledger)
    (run,) = ledger.records()
    assert (run.state, run.steps) == ("failed", 3 * 128)


class _NanOnce(gymnasium.Env[Any, Any]):
    """One observation that is no number, after so many steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at: int, last: int) -> None:
        self._at, self._last, self._steps = at, last, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        obs = np.full(3, np.nan if self._steps == self._at else 0.1, np.float32)
        return obs, 1.0, False, self._steps % self._last == 0, {}


@pytest.mark.parametrize("backend", ["native", pytest.param("torch", marks=extras.TORCH)])
@pytest.mark.parametrize(("at", "last"), [(16, 1000), (32, 1000), (7, 1000), (7, 7), (16, 16)])
def test_an_observation_that_is_no_number_is_named_wherever_it_comes_and_nothing_is_said_of_the_policy(
    at: int, last: int, backend: str
) -> None:
    if "TestNanOnce-v0" not in gymnasium.registry:
        gymnasium.register("TestNanOnce-v0", entry_point=_NanOnce)
    with mileage.A2C(
        "TestNanOnce-v0", n_envs=1, n_steps=16, hidden=(8,), backend=backend, env_kwargs={"at": at, "last": last}
    ) as agent:  # fmt: skip
        agent.predict(np.zeros(3, np.float32))
        step = (at - 1) // 16 * 16
        with pytest.raises(
            errors.EnvError, match=rf"observation nan .* in step {at - step} of the rollout after {step} steps"
        ):
            agent.learn(1000, eval_every=0)
        with pytest.raises(errors.DivergedError, match="not finite"):
            agent.predict(np.zeros(3, np.float32))
        with pytest.raises(errors.DivergedError, match="not finite"):
            agent.evaluate()
