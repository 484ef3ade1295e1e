"""Both back ends from the same weights and batch: the same update, and the same run as far as rounding allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mileage
import tiny_envs  # noqa: F401 (which knows some of the environments below)

pytest.importorskip("torch", reason="the torch extra is not installed")

from mileage.algorithms.torch.off_policy import TorchOffPolicy
from mileage.algorithms.torch.on_policy import TorchOnPolicy

SHORT = {"preset": "none", "threads": 1}
ON_POLICY = {
    "discrete": ("PPO", "CartPole-v1", {}),
    "continuous": ("PPO", "Pendulum-v1", {"log_std_init": -0.5}),
    "clipped values": ("PPO", "CartPole-v1", {"value_clip": 0.1, "hidden": (16,), "activation": "relu"}),
    "normalised": ("PPO", "Pendulum-v1", {"normalise_observations": True, "normalise_rewards": True}),
    "raw advantages": ("PPO", "CartPole-v1", {"normalise_advantages": False, "entropy_coef": 0.1}),
    "no clipping of gradients": ("PPO", "CartPole-v1", {"max_grad_norm": 0.0}),
    "far enough": ("PPO", "CartPole-v1", {"epochs": 5, "target_kl": 1e-5, "learning_rate": 1e-2}),
    "masked": ("PPO", "TestDoors-v0", {"entropy_coef": 0.05}),
    "several parts": ("PPO", "TestPanel-v0", {"log_std_init": -0.5, "entropy_coef": 0.05}),
    "a2c": ("A2C", "CartPole-v1", {}),
    "a2c masked": ("A2C", "TestDoors-v0", {}),
    "a2c continuous": ("A2C", "Pendulum-v1", {"normalise_advantages": True}),
}
OFF_POLICY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sac": ("SAC", "Pendulum-v1", {}),
    "sac, fixed temperature": ("SAC", "Pendulum-v1", {"temperature": 0.3, "max_grad_norm": 0.5, "n_step": 3}),
    "td3": ("TD3", "Pendulum-v1", {"activation": "tanh"}),
    "td3, every update": ("TD3", "Pendulum-v1", {"policy_delay": 1, "max_grad_norm": 1.0}),
    "dqn": ("DQN", "CartPole-v1", {}),
    "dqn, plain": ("DQN", "CartPole-v1", {"double": False, "huber": 0.1, "max_grad_norm": 0.0}),
    "dqn, masked": ("DQN", "TestDoors-v0", {}),
    "dqn, masked and dueling": ("DQN", "TestDoors-v0", {"double": False, "dueling": True, "n_step": 3}),
    "rainbow": ("DQN", "CartPole-v1", {"dueling": True, "prioritised": True, "n_step": 3, "tau": 0.1}),
}


def both(algorithm: str, env: str, **settings: Any) -> tuple[Any, Any]:
    kind = getattr(mileage, algorithm)
    return kind(env, **SHORT | settings), kind(env, backend="torch", **SHORT | settings)


def trained(agent: Any, steps: int) -> Any:
    agent.learn(steps, panel=agent.default_panel(episodes=1), eval_every=10**9)
    return agent.learner


def flat(agent: Any) -> Any:
    """All parameters in the order of the native policy."""
    if agent.backend == "native":
        return np.concatenate([agent.policy.params, getattr(agent.policy, "critic_params", np.zeros(0))])
    module = agent.policy.module
    parts = [module.actor, module.critic] if agent.name in ("sac", "td3") else [module]
    return np.concatenate([part.flat() for part in parts])


@pytest.mark.parametrize(("algorithm", "env", "changes"), ON_POLICY.values(), ids=ON_POLICY)
def test_on_policy_updates_agree(algorithm: str, env: str, changes: dict[str, Any]) -> None:
    # One minibatch per epoch: the back ends shuffle in different orders.
    rollout = {"n_envs": 4, "n_steps": 32}
    usual = rollout | ({"epochs": 1, "minibatch": 128} if algorithm == "PPO" else {})
    native, torch = both(algorithm, env, **usual | changes)
    np.testing.assert_array_equal(flat(torch), flat(native))
    for _ in range(3):
        one, other = (trained(agent, 128) for agent in (native, torch))
        for name in ("obs", "actions", "log_probs", "values", "rewards", "advantages", "returns", "last_values"):
            np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-4, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(flat(torch), flat(native), atol=1e-5)
        assert other.adam_steps == one.adam_steps
        mine, theirs = one._stats(), other._stats()
        for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm"):
            assert getattr(theirs, name) == pytest.approx(getattr(mine, name), rel=1e-3, abs=1e-4), name
        assert theirs.episodes == mine.episodes
        assert theirs.episode_length == pytest.approx(mine.episode_length, nan_ok=True)


@pytest.mark.parametrize(("algorithm", "env", "changes"), OFF_POLICY.values(), ids=OFF_POLICY)
def test_off_policy_updates_agree(algorithm: str, env: str, changes: dict[str, Any]) -> None:
    usual: dict[str, Any] = {
        "n_envs": 2, "batch": 32, "hidden": (32, 32), "learning_starts": 100, "train_every": 2, "gradient_steps": 3,
        "capacity": 1000,
    }  # fmt: skip
    if algorithm == "DQN":
        # The back ends draw random choices from their streams in different ways.
        usual |= {"epsilon_start": 0.0, "epsilon_end": 0.0, "target_every": 2}
    native, torch = both(algorithm, env, **usual | changes)
    np.testing.assert_array_equal(flat(torch), flat(native))
    for steps in (104, 40):
        one, other = (trained(agent, steps) for agent in (native, torch))
        assert one.updates == other.updates > 0
        np.testing.assert_allclose(flat(torch), flat(native), atol=1e-5)
        target = other._targets[0][0]
        np.testing.assert_allclose(target.flat(), one.target_params, atol=1e-5)
    if algorithm == "SAC":
        np.testing.assert_allclose(other.temperature.numpy(), one.temperature, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["PPO", "SAC", "TD3", "DQN"])
def test_copies_to_a_device_change_nothing(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a GPU, with device memory that happens to be on the host."""
    env = "CartPole-v1" if algorithm == "DQN" else "Pendulum-v1"
    settings: dict[str, Any] = (
        {"n_envs": 4, "n_steps": 32}
        if algorithm == "PPO"
        else {"n_envs": 2, "batch": 16, "hidden": (16,), "learning_starts": 40, "capacity": 500}
    )
    _, shared = both(algorithm, env, **settings)
    trained(shared, 256)
    for kind in (TorchOnPolicy, TorchOffPolicy):
        monkeypatch.setattr(kind, "separate", True)
    _, copied = both(algorithm, env, **settings)
    record = copied.learn(256, panel=copied.default_panel(episodes=1), eval_every=10**9)
    np.testing.assert_array_equal(flat(copied), flat(shared))
    assert record.phases["transfer"] > 0.0
