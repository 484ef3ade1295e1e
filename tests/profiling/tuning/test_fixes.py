"""What each fix changes, where it applies, and what a profile expects of it."""

from __future__ import annotations

from typing import Any

import pytest

from mileage.profiling.model import FIXES as NAMED_BY_FINDINGS
from mileage.profiling.model import Bottleneck, Finding
from mileage.profiling.tuning.changes import FIXES, NOT_TRIED, Fix, FixEvidence
from mileage.profiling.tuning.runs import Setup
from scripted_runs import plain_setup

BY_NAME = {fix.name: fix for fix in FIXES}
SAC = {
    "n_envs": 1,
    "train_every": 1,
    "gradient_steps": 1,
    "batch": 256,
    "learning_rate": 3e-4,
    "learning_starts": 1000,
    "capacity": 1_000_000,
    "gamma": 0.99,
    "tau": 0.005,
    "hidden": (256, 256),
}


def sac_setup(**changes: Any) -> Setup:
    return Setup("sac", "Pendulum-v1", SAC, total_steps=20_000, eval_every=1000, env_id="Pendulum-v1").but(**changes)


def evidence(**shares: float) -> FixEvidence:
    return FixEvidence(shares, cores=4, torch=True)


def changed(name: str, setup: Setup, found: FixEvidence) -> dict[str, tuple[Any, Any]] | None:
    after = BY_NAME[name].apply(setup, found)
    return None if after is None else setup.differences(after)


def test_every_fix_that_a_finding_can_name_exists_or_says_why_not() -> None:
    assert set(NAMED_BY_FINDINGS) <= set(BY_NAME) | set(NOT_TRIED)
    assert len(BY_NAME) == len(FIXES)


@pytest.mark.parametrize(
    ("name", "setup", "shares", "wanted"),
    [
        ("threads", plain_setup(threads=1), {}, {"threads": (1, 4)}),
        ("threads", plain_setup(threads=16), {}, {"threads": (16, 4)}),
        ("threads", plain_setup(threads=4), {}, None),
        ("one_thread", plain_setup(threads=4), {}, {"threads": (4, 1)}),
        # The batch of 1,024 is kept.
        ("n_envs", plain_setup(n_envs=1, n_steps=1024), {}, {"n_envs": (1, 4), "n_steps": (1024, 256)}),
        ("n_envs", plain_setup(n_envs=16, n_steps=64), {}, None),
        ("n_envs", plain_setup(n_envs=1, n_steps=32), {}, None),
        # Updates per step are kept.
        ("n_envs", sac_setup(), {}, {"n_envs": (1, 4), "gradient_steps": (1, 4)}),
        ("minibatch", plain_setup(minibatch=16), {}, {"minibatch": (16, 64)}),
        ("minibatch", plain_setup(minibatch=100), {}, {"minibatch": (100, 256)}),
        ("minibatch", plain_setup(minibatch=256), {}, None),
        ("minibatch", plain_setup(minibatch=64, n_steps=64), {}, None),
        ("minibatch", sac_setup(), {}, None),
        ("batch", sac_setup(batch=32), {}, {"batch": (32, 128)}),
        ("batch", sac_setup(), {}, None),
        ("batch", plain_setup(), {}, None),
        ("smaller_batch", sac_setup(), {}, {"batch": (256, 128)}),
        ("smaller_batch", sac_setup(batch=64), {}, None),
        ("backend_native", plain_setup(backend="torch"), {}, {"backend": ("torch", "native")}),
        ("backend_native", plain_setup(backend="torch", policy="cnn"), {}, None),
        ("backend_native", plain_setup(), {}, None),
        ("backend_torch", plain_setup(hidden=(1024, 1024)), {}, {"backend": ("native", "torch")}),
        ("backend_torch", plain_setup(), {}, None),
        ("torch_compile", plain_setup(backend="torch"), {}, {"compile": (False, True)}),
        ("torch_compile", plain_setup(), {}, None),
        ("processes", plain_setup(native_env=False, n_envs=8), {}, {"processes": (False, True)}),
        ("processes", plain_setup(native_env=False), {}, None),
        ("processes", plain_setup(n_envs=8), {}, None),
        ("checkpoint_every", plain_setup(checkpoint_every=100), {}, {"checkpoint_every": (100, 0)}),
        ("checkpoint_every", plain_setup(), {}, None),
        # Half the time in evaluations: as long as the rest; 5 % of the rest is 20 times as rare.
        ("eval_every", plain_setup(eval_every=1024), {"eval": 0.5}, {"eval_every": (1024, 20_000)}),
        # No rarer than ten in a run.
        ("eval_every", plain_setup(total_steps=50_000), {"eval": 0.5}, {"eval_every": (1024, 5000)}),
        ("eval_every", plain_setup(), {"eval": 0.04}, None),
        ("eval_often", plain_setup(eval_every=4096), {"eval": 0.01}, {"eval_every": (4096, 1024)}),
        ("eval_often", plain_setup(), {"eval": 0.04}, None),
        ("n_steps", plain_setup(n_envs=4, n_steps=64), {}, {"n_steps": (64, 256)}),
        ("n_steps", plain_setup(n_envs=8, n_steps=2048), {}, {"n_steps": (2048, 512)}),
        ("n_steps", plain_setup(n_envs=1, n_steps=2048), {}, None),
        ("learning_rate", sac_setup(), {}, {"learning_rate": (3e-4, 1.2e-3)}),
        ("learning_rate", sac_setup(learning_rate=5e-3), {}, None),
        ("lower_rate", sac_setup(learning_rate=1e-2), {}, {"learning_rate": (1e-2, 2.5e-3)}),
        ("lower_rate", sac_setup(), {}, None),
        ("update_ratio", sac_setup(train_every=16), {}, {"gradient_steps": (1, 4)}),
        ("update_ratio", sac_setup(train_every=2, n_envs=1), {}, {"gradient_steps": (1, 2)}),
        ("update_ratio", sac_setup(), {}, None),
        ("fewer_updates", sac_setup(gradient_steps=4), {}, {"gradient_steps": (4, 2)}),
        ("fewer_updates", sac_setup(), {}, {"train_every": (1, 2)}),
        ("fewer_updates", sac_setup(train_every=8), {}, None),
        ("learning_starts", sac_setup(learning_starts=10_000), {}, {"learning_starts": (10_000, 2500)}),
        ("learning_starts", sac_setup(learning_starts=400), {}, None),
        ("hidden", sac_setup(), {}, {"hidden": ((256, 256), (128, 128))}),
        ("hidden", plain_setup(), {}, None),
        ("gamma", sac_setup(), {}, {"gamma": (0.99, 0.95)}),
        ("gamma", plain_setup(gamma=0.95), {}, None),
        ("epochs", plain_setup(epochs=4), {}, {"epochs": (4, 8)}),
        ("epochs", plain_setup(epochs=10), {}, None),
        ("epochs", sac_setup(), {}, None),
        ("tau", sac_setup(), {}, {"tau": (0.005, 0.01)}),
        ("normalise_rewards", sac_setup(), {}, None),
    ],
)  # fmt: skip
def test_what_a_fix_changes(
    name: str, setup: Setup, shares: dict[str, float], wanted: dict[str, tuple[Any, Any]] | None
) -> None:
    assert changed(name, setup, evidence(**shares)) == wanted


def test_fixes_of_one_core_or_without_torch_do_not_apply() -> None:
    alone = FixEvidence({}, cores=1, torch=False)
    assert changed("processes", plain_setup(native_env=False, n_envs=8), alone) is None
    assert changed("backend_torch", plain_setup(hidden=(1024,)), alone) is None
    assert changed("threads", plain_setup(threads=1), alone) is None


def test_a_fix_for_another_number_of_updates_keeps_them_per_sample() -> None:
    after = BY_NAME["n_envs"].apply(sac_setup(train_every=2, gradient_steps=2), evidence())
    assert after is not None
    assert after.config["gradient_steps"] / (after.config["n_envs"] * after.config["train_every"]) == 1.0


def test_the_preset_is_the_one_that_training_would_take() -> None:
    setup = Setup.of("ppo", "Pendulum-v1", preset="none", n_envs=1, minibatch=16, eval_every=64, steps=1000)
    after = BY_NAME["preset"].apply(setup, evidence())
    usual = Setup.of("ppo", "Pendulum-v1")
    assert after is not None
    assert after.config == usual.config
    assert after.eval_every == usual.eval_every
    assert after.total_steps == 1000
    assert BY_NAME["preset"].apply(after, evidence()) is None


def test_a_preset_that_does_not_exist_is_no_fix() -> None:
    assert BY_NAME["preset"].apply(plain_setup(), evidence()) is None


def estimated(name: str, setup: Setup, found: FixEvidence) -> float | None:
    fix: Fix = BY_NAME[name]
    after = fix.apply(setup, found)
    assert after is not None
    return fix.expected_gain(setup, after, found)


def test_estimates_by_amdahl() -> None:
    # 60 % in parts that four threads share: 0.6 × 3/4.
    assert estimated("threads", plain_setup(threads=1), evidence(learn=0.4, rollout=0.2)) == pytest.approx(0.45)
    # 16 threads on 4 cores are too many: nothing to be expected by this formula.
    assert estimated("threads", plain_setup(threads=16), evidence(learn=0.4)) is None
    # Half the time, 20 times as rare (20,000 after rounding, of 1,024).
    assert estimated("eval_every", plain_setup(), evidence(eval=0.5)) == pytest.approx(0.5 * (1 - 1024 / 20_000))
    # A step on 16 samples costs as much as 48, one on 64 as much as 96: 3 a sample against 1.5.
    assert estimated("minibatch", plain_setup(), evidence(learn=0.8)) == pytest.approx(0.4)
    # Half the updates.
    assert estimated("fewer_updates", sac_setup(), evidence(learn=0.9)) == pytest.approx(0.45)
    assert estimated("processes", plain_setup(native_env=False, n_envs=2), evidence(env_step=0.8)) == pytest.approx(0.4)
    # Learning cannot be foreseen from times.
    assert estimated("learning_rate", sac_setup(), evidence(learn=0.9)) is None


def test_the_estimate_of_a_finding_counts() -> None:
    finding = Finding(Bottleneck.IDLE_CORES, 0.5, "one of four cores busy", 0.33, "--threads 4", fix="threads")
    found = FixEvidence({"learn": 0.4}, cores=4, findings=(finding,))
    assert estimated("threads", plain_setup(threads=1), found) == 0.33


def test_shares_of_a_run() -> None:
    found = FixEvidence.of({"learn": 3.0, "eval": 1.0}, cores=2)
    assert found.share("learn") == 0.75
    assert found.share("learn", "eval") == 1.0
    assert found.share("rollout") == 0.0
