"""SAC, TD3 and DQN: what they refuse, when they learn, that they learn, and that nothing but the seed decides."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mileage
import tiny_envs
from mileage.algorithms.dqn import DQNConfig
from mileage.algorithms.sac import SACConfig
from mileage.algorithms.td3 import TD3Config
from mileage.errors import UsageError
from mileage.measure import PhaseClock

ALL: list[tuple[str, Any, str]] = [
    ("n_envs", 0, "n_envs must be at least 1, not 0"),
    ("train_every", 0, "train_every must be at least 1, not 0"),
    ("gradient_steps", -1, "gradient_steps must be 0 or more, not -1"),
    ("batch", 0, "batch must be at least 1, not 0"),
    ("learning_rate", 0.0, "learning_rate must be above 0 and finite, not 0.0"),
    ("learning_rate", math.inf, "learning_rate must be above 0 and finite, not inf"),
    ("learning_rate", math.nan, "learning_rate must be above 0 and finite, not nan"),
    ("learning_starts", -1, "learning_starts must be 0 or more, not -1"),
    ("capacity", 10, "capacity must be at least the batch, {batch}, not 10"),
    ("gamma", 1.01, "gamma must be between 0 and 1, not 1.01"),
    ("gamma", math.nan, "gamma must be between 0 and 1, not nan"),
    ("n_step", 0, "n_step must be at least 1, not 0"),
    ("tau", 0.0, "tau must be above 0 and at most 1, not 0.0"),
    ("tau", math.nan, "tau must be above 0 and at most 1, not nan"),
    ("max_grad_norm", -1.0, "max_grad_norm must be 0 or more, not -1.0"),
    ("max_grad_norm", math.nan, "max_grad_norm must be 0 or more, not nan"),
    ("hold", 0, "hold must be at least 1, not 0"),
    ("learning_rate_schedule", "x", "learning_rate_schedule must be one of constant, linear, not 'x'"),
    ("hidden", (), "hidden must be at least one layer width above 0, not ()"),
    ("hidden", (64, 0), "hidden must be at least one layer width above 0, not (64, 0)"),
]
SAC_ONLY: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, "temperature must be 0 (learned) or more, and finite, not -0.1"),
    ("temperature", math.inf, "temperature must be 0 (learned) or more, and finite, not inf"),
    ("target_entropy", math.nan, "target_entropy must be finite, not nan"),
]
TD3_ONLY: list[tuple[str, Any, str]] = [
    ("policy_delay", 0, "policy_delay must be at least 1, not 0"),
    ("exploration_noise", math.inf, "exploration_noise must be 0 or more and finite, not inf"),
    ("target_noise", -0.1, "target_noise must be 0 or more and finite, not -0.1"),
    ("noise_limit", math.nan, "noise_limit must be 0 or more and finite, not nan"),
]
DQN_ONLY: list[tuple[str, Any, str]] = [
    ("target_every", 0, "target_every must be at least 1, not 0"),
    ("priority_updates", 0, "priority_updates must be at least 1, not 0"),
    ("priority_exponent", 1.1, "priority_exponent must be between 0 and 1, not 1.1"),
    ("priority_beta", -0.1, "priority_beta must be between 0 and 1, not -0.1"),
    ("epsilon_start", 2.0, "epsilon_start must be between 0 and 1, not 2.0"),
    ("epsilon_end", math.nan, "epsilon_end must be between 0 and 1, not nan"),
    ("exploration", -1.0, "exploration must be between 0 and 1, not -1.0"),
    ("huber", 0.0, "huber must be above 0, not 0.0"),
]
KINDS = {SACConfig: SAC_ONLY, TD3Config: TD3_ONLY, DQNConfig: DQN_ONLY}
CASES = [(kind, *case) for kind, own in KINDS.items() for case in ALL + own]


@pytest.mark.parametrize(("kind", "name", "value", "message"), CASES)
def test_values_out_of_range_are_named(kind: Any, name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        kind(**{name: value})
    assert str(caught.value) == message.format(batch=kind().batch)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_has_a_bad_value_in_the_table(kind: Any) -> None:
    tested = {name for each, name, *_ in CASES if each is kind}
    free = {"activation", "double", "dueling", "prioritised", "normalise_observations", "normalise_rewards"}
    assert tested | free >= {field.name for field in dataclasses.fields(kind)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().gamma = 0.5


@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_discrete_actions_are_refused_where_they_cannot_be(algorithm: str) -> None:
    with pytest.raises(UsageError, match=r"needs continuous actions: use dqn or ppo for discrete ones$"):
        getattr(mileage, algorithm)("CartPole-v1")


SMALL: dict[str, Any] = {"batch": 8, "capacity": 200, "hidden": (8,), "preset": "none", "threads": 1}
ENVS = {"SAC": tiny_envs.Mirror, "TD3": tiny_envs.Mirror, "DQN": tiny_envs.Identity}


@pytest.mark.parametrize("algorithm", ENVS)
def test_the_ratio_of_updates_to_steps(algorithm: str) -> None:
    """3 environments stepped twice per iteration, 5 updates after each iteration from 20 steps on."""
    settings = SMALL | {"n_envs": 3, "train_every": 2, "gradient_steps": 5, "learning_starts": 20}
    agent = getattr(mileage, algorithm)(ENVS[algorithm], **settings)
    agent.prepare()
    parts, clock = agent.learner, PhaseClock()
    updates = []
    for _ in range(6):
        parts.iterate(clock, 0.0)
        updates.append((parts.steps, parts.updates))
    # One call may draw more samples (5 * 8) than there are transitions.
    assert updates == [(6, 0), (12, 0), (18, 0), (24, 5), (30, 10), (36, 15)]


def test_no_updates_are_none() -> None:
    agent = mileage.DQN(tiny_envs.Identity, **SMALL | {"gradient_steps": 0, "learning_starts": 0})
    agent.learn(100, panel=agent.default_panel(episodes=1))
    assert agent.learner.updates == 0


FAST: dict[str, dict[str, Any]] = {
    "SAC": {"n_envs": 4, "batch": 64, "learning_starts": 200, "learning_rate": 3e-3, "hidden": (64,), "capacity": 4000},
    "TD3": {"n_envs": 4, "batch": 64, "learning_starts": 200, "learning_rate": 3e-3, "hidden": (64,), "capacity": 4000},
    "DQN": {
        "n_envs": 4, "batch": 64, "learning_starts": 200, "learning_rate": 5e-3, "hidden": (32,), "capacity": 4000,
        "target_every": 20, "train_every": 1,
    },
}  # fmt: skip


def learned(algorithm: str, steps: int, **changes: Any) -> float:
    settings = FAST[algorithm] | {"gamma": 0.0} | changes
    with getattr(mileage, algorithm)(ENVS[algorithm], preset="none", **settings) as agent:
        agent.learn(steps, eval_every=10**9)
        return float(agent.evaluate().mean_return)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_continuous_identity(algorithm: str, seed: int) -> None:
    # Eight squared distances; doing nothing costs 8 * (4/3 + 1/12) = 11.3.
    assert learned(algorithm, 2400, seed=seed) >= -2.0


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"double": False},
    "double": {},
    "dueling": {"dueling": True},
    "prioritised": {"prioritised": True},
    "rainbow": {"dueling": True, "prioritised": True, "tau": 0.05, "target_every": 1},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_discrete_identity(variant: str) -> None:
    # Eight steps of reward 1; chance gives 2.
    assert learned("DQN", 2048, **VARIANTS[variant]) >= 7.5


@pytest.mark.parametrize("n_step", [1, 3])
def test_values_of_a_staircase(n_step: int) -> None:
    """Each of five stairs gives 1, discounted by a half: 2 - 2 ** (k - 4) from stair k on; resting only discounts."""
    settings = FAST["DQN"] | {"gamma": 0.5, "n_step": n_step, "epsilon_end": 0.1, "batch": 32}
    with mileage.DQN(tiny_envs.Stairs, preset="none", **settings) as agent:
        agent.learn(4000, eval_every=10**9)
        values = agent.policy.q_values(np.arange(5, dtype=np.float32)[:, None])
    climbing = 2.0 - 0.5 ** (4.0 - np.arange(5))
    # Three steps are those that were taken, some of them at random.
    np.testing.assert_allclose(values, np.stack([0.5 * climbing, climbing], axis=1), atol=0.15 * n_step)
    assert (values[:, 1] > values[:, 0]).all()


def arrays_after(algorithm: str, threads: int, seed: int = 3, **changes: Any) -> dict[str, Any]:
    settings = SMALL | {"batch": 300, "capacity": 600, "hidden": (64, 64), "learning_starts": 300, "n_envs": 2}
    settings |= {"seed": seed, "threads": threads} | changes
    with getattr(mileage, algorithm)(ENVS[algorithm], **settings) as agent:
        agent.learn(400, panel=agent.default_panel(episodes=1))
        return {name: array.copy() for name, array in agent.learner.state_arrays().items()}


@pytest.mark.parametrize(
    ("algorithm", "changes"), [("SAC", {}), ("TD3", {}), ("DQN", {}), ("DQN", {"prioritised": True})]
)
def test_nothing_but_the_seed_decides(algorithm: str, changes: dict[str, Any]) -> None:
    one = arrays_after(algorithm, 1, **changes)
    for threads in (1, 2, 3):
        for name, array in arrays_after(algorithm, threads, **changes).items():
            np.testing.assert_array_equal(array, one[name], err_msg=f"{name}, {threads} threads")
    assert (arrays_after(algorithm, 1, seed=4, **changes)["params"] != one["params"]).any()


@pytest.mark.parametrize(
    ("algorithm", "changes"), [("SAC", {}), ("TD3", {}), ("DQN", {"prioritised": True, "n_step": 3})]
)
def test_training_goes_on_after_loading_as_if_nothing_had_happened(
    algorithm: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "half.safetensors"
    kind, settings = getattr(mileage, algorithm), SMALL | {"learning_starts": 50, "n_envs": 2} | changes
    with kind(ENVS[algorithm], **settings) as agent:
        agent.learn(120, panel=agent.default_panel(episodes=1), eval_every=10**9)
        agent.save(file)
        agent.learn(60, panel=agent.default_panel(episodes=1), eval_every=10**9)
        want = {name: array.copy() for name, array in agent.learner.state_arrays().items()}
    with kind.load(file, threads=1, env=ENVS[algorithm]) as agent:
        agent.learn(60, panel=agent.default_panel(episodes=1), eval_every=10**9)
        for name, array in agent.learner.state_arrays().items():
            np.testing.assert_array_equal(array, want[name], err_msg=name)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(("algorithm", "env"), [("SAC", "Pendulum-v1"), ("TD3", "Pendulum-v1"), ("DQN", "CartPole-v1")])
def test_observations_and_rewards_are_normalised(algorithm: str, env: str, backend: str, tmp_path: Path) -> None:
    if backend == "torch":
        pytest.importorskip("torch", reason="the torch extra is not installed")
    config = {"capacity": 1000, "learning_starts": 32, "batch": 16, "hidden": (8,), "n_envs": 2}
    asked = {"normalise_observations": True, "normalise_rewards": True}
    with getattr(mileage, algorithm)(
        env, seed=1, preset="none", threads=1, backend=backend, **config, **asked
    ) as agent:
        agent.learn(256, eval_every=0)
        learner, policy = agent.learner, agent.policy
        held = learner.replay.saved_arrays()  # raw
        assert len(held["records"]) > 0
        learner.replay.sample(16, out=learner.batch, batches=learner.batch.size // 16)
        raw, rewards = learner.batch.obs.copy(), learner.batch.rewards.copy()
        learner.scale_batch()
        np.testing.assert_allclose(
            learner.batch.obs, np.clip((raw - policy.obs_mean) * policy.obs_scale, -10, 10), rtol=1e-5, atol=1e-6
        )
        count, _, squares = learner.scaling.arrays()["return_moments"]
        wanted = np.clip(rewards / np.sqrt(squares / count), -10, 10)
        np.testing.assert_allclose(learner.batch.rewards, wanted, rtol=1e-4)
        assert np.abs(policy.obs_mean).max() > 0
        agent.save(tmp_path / "agent.safetensors")
        obs = np.ones((3, policy.obs_size), np.float32)
        loaded = mileage.load(tmp_path / "agent.safetensors", threads=1)
        np.testing.assert_array_equal(loaded.policy.actions(obs), policy.actions(obs))
        for each in (agent, loaded):
            each.learn(64, eval_every=0)
        if backend == "native":
            np.testing.assert_array_equal(loaded.policy.params, policy.params)
