"""Setups and the executor that trains them."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mileage
from mileage.errors import UsageError
from mileage.ledger.recorder import Ledger
from mileage.measure import Arm, Turn
from mileage.profiling.tuning.changes import FIXES
from mileage.profiling.tuning.runs import Setup, TrainingExecutor, Trial
from mileage.profiling.tuning.tried import try_fixes

CARTPOLE = {"n_envs": 4, "n_steps": 64, "minibatch": 64, "preset": "none"}


def cartpole(**changes: Any) -> Setup:
    return Setup.of("ppo", "CartPole-v1", steps=2048, eval_every=512, **(CARTPOLE | changes))


def test_a_setup_is_what_training_with_the_same_arguments_would_do() -> None:
    setup = Setup.of("ppo", "CartPole-v1", n_envs=2, threads=1)
    agent = mileage.PPO("CartPole-v1", n_envs=2, threads=1)
    assert setup.config == vars(agent.config)
    # From the preset.
    assert (setup.total_steps, setup.eval_every) == (50_000, 4096)
    assert (setup.threads, setup.backend, setup.native_env, setup.env_id) == (1, "native", True, "CartPole-v1")
    rebuilt = setup.agent(3)
    assert rebuilt.config == agent.config
    assert rebuilt.seed == 3


def test_without_a_preset_evaluations_are_a_twentieth_of_the_run() -> None:
    setup = Setup.of("ppo", "CartPole-v1", steps=10_000, preset="none")
    assert (setup.total_steps, setup.eval_every) == (10_000, 500)


def test_changing_a_setup() -> None:
    setup = cartpole()
    other = setup.but(threads=7, minibatch=32)
    assert setup.differences(other) == {"threads": (setup.threads, 7), "minibatch": (64, 32)}
    assert setup.key != other.key
    assert other.but(threads=setup.threads, minibatch=64).key == setup.key
    assert setup.steps_per_iteration == 4 * 64
    with pytest.raises(UsageError, match="no_such"):
        setup.but(no_such=1)
    with pytest.raises(UsageError, match="eval_every"):
        Setup.of("ppo", "CartPole-v1", eval_every=0)


def test_a_run_to_its_target_is_the_run_that_learn_makes(tmp_path: Path) -> None:
    setup = cartpole()
    executor = TrainingExecutor("mean_return>=5", episodes=10, db=str(tmp_path / "l.db"), name="try", price=3.6)
    executor.prepare(Arm("x", setup))
    trial = executor.attempt(Arm("minibatch", setup), Turn("minibatch", round=4, limit_seconds=60.0))
    with mileage.PPO("CartPole-v1", seed=4, **CARTPOLE) as agent:
        record = agent.learn(2048, eval_every=512, target="mean_return>=5", panel=agent.default_panel(episodes=10))
    assert trial.reached
    assert (trial.arm, trial.seed, trial.steps) == ("minibatch", 4, record.steps_to_target)
    assert trial.value == record.final.mean_return if record.final else None
    assert 0 < trial.seconds <= sum(trial.phases.values())
    (found,) = Ledger(str(tmp_path / "l.db")).records()
    assert (found.run.name, found.run.run_id, found.run.seed) == ("try/minibatch", trial.run_id, 4)
    assert found.run.eval_every_steps == 512
    assert found.run.price_usd_per_hour == 3.6
    assert found.end is not None
    assert found.end.wall_to_target == pytest.approx(trial.seconds, abs=0.05)


def test_a_run_is_stopped_at_its_cap_and_has_failed() -> None:
    setup = cartpole().but(total_steps=10**9)
    executor = TrainingExecutor("mean_return>=501", episodes=1, db=False)
    executor.prepare(Arm("x", setup))
    trial = executor.attempt(Arm("x", setup), Turn("x", round=0, limit_seconds=0.2))
    assert not trial.reached
    assert trial.seconds >= 0.2
    assert trial.steps < 10**9
    assert trial.reason.startswith("stopped after")
    assert trial.run_id is None


def test_a_run_that_uses_up_its_steps_has_failed() -> None:
    trial = TrainingExecutor("mean_return>=501", episodes=1, db=False).attempt(
        Arm("x", cartpole()), Turn("x", round=0, limit_seconds=60.0)
    )
    assert (trial.reached, trial.steps, trial.reason) == (False, 2048, "all steps taken")


def test_a_setup_that_cannot_be_built_is_a_failed_run() -> None:
    setup = cartpole().but(minibatch=0)
    trial = TrainingExecutor("mean_return>=5", db=False).attempt(
        Arm("x", setup), Turn("x", round=0, limit_seconds=60.0)
    )
    assert (trial.reached, trial.steps) == (False, 0)
    assert trial.reason == "UsageError: minibatch must be at least 1, not 0"


def test_checkpoints_of_a_run_go_to_a_directory_that_is_gone_afterwards() -> None:
    setup = cartpole().but(checkpoint_every=256)
    trial = TrainingExecutor("mean_return>=501", episodes=1, db=False).attempt(
        Arm("x", setup), Turn("x", round=0, limit_seconds=60.0)
    )
    assert trial.phases["checkpoint"] > 0
    assert not cartpole().but(checkpoint_every=0).checkpoint_every


def test_an_interrupt_ends_the_run_and_the_search() -> None:
    setup = cartpole().but(total_steps=10**9)
    executor = TrainingExecutor("mean_return>=501", episodes=1, db=False)
    executor.prepare(Arm("x", setup))
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            executor.attempt(Arm("x", setup), Turn("x", round=0, limit_seconds=60.0))
    finally:
        timer.join()


class Counting(TrainingExecutor):
    """Takes a run for a second, so that a search makes the same runs on any machine."""

    runs = 0

    def now(self) -> float:
        return float(self.runs)

    def attempt(self, arm: Arm[Setup], turn: Turn) -> Trial:
        self.runs += 1
        return super().attempt(arm, replace(turn, limit_seconds=60.0))


def test_a_whole_search_over_real_runs(tmp_path: Path) -> None:
    setup = cartpole(minibatch=8, threads=1).but(eval_every=1, total_steps=20_000)
    executor = Counting("mean_return>=40", episodes=20, db=str(tmp_path / "l.db"), name="try")
    fixes = [fix for fix in FIXES if fix.name in ("minibatch", "preset")]
    tried = try_fixes(setup, "mean_return>=40", executor, budget_seconds=24.0, fixes=fixes, cores=2)
    assert {arm.name for arm in tried.arms} == {"minibatch", "preset"}
    assert tried.runs == executor.runs <= 24
    recorded = [record.run.name for record in Ledger(str(tmp_path / "l.db")).records()]
    assert len(recorded) == executor.runs
    assert set(recorded) >= {"try/baseline", "try/minibatch", "try/preset"}
