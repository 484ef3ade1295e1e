"""A run that is starved in a known way gets the right finding first: real runs, measured shares."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mileage._cores import usable_cores
from mileage.meter import PhaseClock
from mileage.profiling import Profile, profile_run
from mileage.profiling.findings import Bottleneck
from mileage.recording.recorder import Ledger
from sleepy_env import SLEEPY

NEVER = 10**9
SMALL: dict[str, Any] = {"preset": "none", "n_envs": 8, "n_steps": 64, "hidden": [16, 16]}
WIDE: dict[str, Any] = {"preset": "none", "n_envs": 64, "n_steps": 64, "hidden": [128, 128], "minibatch": 4096}


def _sleep(_: Any) -> None:
    time.sleep(0.05)


# name: (environment, steps, options, the finding that must come first)
PLANTED: dict[str, tuple[str, int, dict[str, Any], Bottleneck]] = {
    "slow environment": (
        SLEEPY, 64, {"preset": "none", "n_envs": 4, "n_steps": 8, "eval_every": NEVER}, Bottleneck.ENV_BOUND,
    ),
    "tiny minibatches": (
        "CartPole-v1", 4096, SMALL | {"minibatch": 1, "epochs": 10, "hidden": [64, 64], "eval_every": NEVER},
        Bottleneck.UNDERSIZED_BATCH,
    ),
    "evaluation every update": (
        "CartPole-v1", 8192, SMALL | {"eval_every": 1, "episodes": 1000}, Bottleneck.EVALUATION_BOUND,
    ),
    "huge checkpoints every update": (
        "CartPole-v1", 512, SMALL | {"hidden": [512, 512], "epochs": 1, "minibatch": 512, "checkpoint_every": 1,
                                      "n_steps": 4, "eval_every": NEVER},
        Bottleneck.CHECKPOINT_BOUND,
    ),
    "synchronous logging": (
        "CartPole-v1", 8192, SMALL | {"callback": _sleep, "eval_every": NEVER}, Bottleneck.LOGGING_BOUND,
    ),
    "one thread": (
        "CartPole-v1", 32768, WIDE | {"threads": 1, "eval_every": NEVER}, Bottleneck.IDLE_CORES,
    ),
    "too many threads": (
        "CartPole-v1", 32768, WIDE | {"threads": 16, "minibatch": 2048, "hidden": [16, 16], "eval_every": NEVER},
        Bottleneck.OVERSUBSCRIBED_THREADS,
    ),
    "torch dispatch": (
        "CartPole-v1", 2048, {"preset": "none", "backend": "torch", "n_envs": 1, "n_steps": 512, "epochs": 1,
                              "minibatch": 512, "eval_every": NEVER},
        Bottleneck.INFERENCE_DISPATCH_BOUND,
    ),
}  # fmt: skip


def measured(env: str, steps: int, options: dict[str, Any], folder: Path) -> Profile:
    options = {"episodes": 4, "effort": 0.3, "replay": 60.0} | options
    if options.get("checkpoint_every"):
        options["checkpoint"] = str(folder / "policy.safetensors")
    return profile_run("ppo", env, steps=steps, **options)


@pytest.mark.alone
@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_bottleneck_comes_first(name: str, tmp_path: Path) -> None:
    env, steps, options, wanted = PLANTED[name]
    if wanted is Bottleneck.IDLE_CORES and usable_cores() < 2:
        pytest.skip("a machine with one core has none to leave idle")
    found = measured(env, steps, options, tmp_path)
    # What else runs on the machine is named before everything, and rightly so.
    own = [each for each in found.findings if each.bottleneck is not Bottleneck.SHARED_MACHINE]
    assert own[0].bottleneck is wanted, "\n".join(each.line for each in found.findings)
    assert wanted.label in found.verdict
    assert found.run.sum_error < 0.01


def test_failed_runs_come_first(tmp_path: Path) -> None:
    db = str(tmp_path / "ledger.db")
    # Two runs that worked for a minute each, and crashed.
    for _ in range(2):
        clock = PhaseClock(start_ns=time.perf_counter_ns() - 60 * 10**9)
        run = Ledger(db).run("ppo-CartPole-v1", algorithm="ppo", env_id="CartPole-v1", clock=clock, resources=False)
        with pytest.raises(RuntimeError), run:
            raise RuntimeError("planted")
    found = profile_run("ppo", "CartPole-v1", steps=2048, episodes=4, effort=0.1, db=db, **SMALL)
    own = [each for each in found.findings if each.bottleneck is not Bottleneck.SHARED_MACHINE]
    assert own[0].bottleneck is Bottleneck.FAILED_RUN_BOUND
    assert own[0].share > 0.9


@pytest.mark.slow
def test_a_cold_cache_comes_first(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mileage", "profile", "dqn", "CartPole-v1", "--steps", "2000", "--no-ledger"]
    environment = os.environ | {"MILEAGE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([*command, "--quiet"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("COMPILE-BOUND")
    again = subprocess.run([*command, "--quiet"], env=environment, capture_output=True, text=True, check=True)
    assert "empty cache" not in again.stdout
