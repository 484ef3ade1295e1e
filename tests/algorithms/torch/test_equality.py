"""Both back ends from the same weights and batch: the same update, and the same run as far as rounding allows."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

import mileage
import tiny_envs  # noqa: F401 (which knows some of the environments below)
from mileage.kernels.reference.networks import Adam

pytest.importorskip("torch", reason="the torch extra is not installed")

from torch import from_numpy

from mileage.algorithms.torch.off_policy import TorchOffPolicy
from mileage.algorithms.torch.on_policy import TorchOnPolicy

SHORT = {"preset": "none", "threads": 1}
EPS = float(np.finfo(np.float32).eps)
# Distance relative to the way: at most 2e-5 by rounding on any processor tried, 1e-2 by a rate that is 1 % off.
SAME = 1e-3
CLIPPED = {"epochs": 4, "learning_rate": 1e-2, "value_clip": 0.1}
ON_POLICY = {
    "discrete": ("PPO", "CartPole-v1", {}),
    "continuous": ("PPO", "Pendulum-v1", {"log_std_init": -0.5}),
    "clipped values": ("PPO", "CartPole-v1", CLIPPED | {"hidden": (16,), "activation": "relu"}),
    "normalised": ("PPO", "Pendulum-v1", {"normalise_observations": True, "normalise_rewards": True}),
    "raw advantages": ("PPO", "CartPole-v1", {"normalise_advantages": False, "entropy_coef": 0.1}),
    "no clipping of gradients": ("PPO", "CartPole-v1", {"max_grad_norm": 0.0}),
    "far enough": ("PPO", "CartPole-v1", {"epochs": 5, "target_kl": 1e-5, "learning_rate": 1e-2}),
    "masked": ("PPO", "TestDoors-v0", {"entropy_coef": 0.05}),
    "several parts": ("PPO", "TestPanel-v0", {"log_std_init": -0.5, "entropy_coef": 0.05}),
    "rpo": ("RPO", "Pendulum-v1", {}),
    "a2c": ("A2C", "CartPole-v1", {}),
    "a2c masked": ("A2C", "TestDoors-v0", {}),
    "a2c continuous": ("A2C", "Pendulum-v1", {"normalise_advantages": True}),
}
OFF_POLICY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sac": ("SAC", "Pendulum-v1", {}),
    "sac, fixed temperature": ("SAC", "Pendulum-v1", {"temperature": 0.3, "max_grad_norm": 0.5, "n_step": 3}),
    "td3": ("TD3", "Pendulum-v1", {"activation": "tanh"}),
    "td3, every update": ("TD3", "Pendulum-v1", {"policy_delay": 1, "max_grad_norm": 1.0}),
    "dqn": ("DQN", "CartPole-v1", {"target_every": 12, "learning_rate": 1e-2}),
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


def flat(agent: Any, module: Any = None) -> Any:
    """All parameters in the order of the native policy, or those of another module like the agent's."""
    if agent.backend == "native":
        return np.concatenate([agent.policy.params, getattr(agent.policy, "critic_params", np.zeros(0))])
    module = module or agent.policy.module
    parts = [module.actor, module.critic] if agent.name in ("sac", "td3") else [module]
    return np.concatenate([part.flat() for part in parts])


def moment(agent: Any, name: str) -> Any:
    """Adam's `mean` or `square` of all parameters, in the same order."""
    arrays = agent.learner.state_arrays()
    if agent.backend == "native":
        return np.concatenate([arrays.get(f"{each}_{name}", np.zeros(0)) for each in ("adam", "actor", "critic")])
    module = copy.deepcopy(agent.policy.module)
    cut = ((key.partition(f"_{name}."), array) for key, array in arrays.items())
    module.load_state_dict({rest: from_numpy(array) for (_, found, rest), array in cut if found})
    return flat(agent, module)


def within(what: str, difference: Any, allowed: Any) -> None:
    excess = np.max(np.abs(difference) - allowed, initial=-np.inf)
    assert excess <= 0.0, f"{what}: {excess} more than allowed"


def check_first_step(native: Any, torch: Any, start: Any, samples: int) -> float:
    """Both back ends took one Adam step from `start` along the same gradient; returns what rounding may be, relatively.

    A sum of k numbers in float32 is off by up to k * eps of their size: here k is the widths that samples pass forwards
    and backwards, and the samples. SAC divides by 1 - tanh(u)**2, which costs as much as cosh(u)**2 numbers more; u is
    about a standard normal draw, which is within 4.

    Where a gradient is almost 0, Adam's step has the length of the learning rate and the sign of rounding: there is no
    tolerance for parameters of two back ends. So gradients are compared (ten times Adam's mean), relative to the
    largest entry of a network's, and the parameters of each back end with a plain step along its own gradient.
    """
    policy, config = native.policy, native.config
    terms = samples + 2 * sum((*policy.actor_sizes, *getattr(policy, "critic_sizes", ())))
    rounding = EPS * (terms + (math.cosh(4.0) ** 2 if native.name == "sac" else 0.0))
    gradients = [10.0 * moment(agent, "mean").astype(np.float64) for agent in (native, torch)]
    cuts = sorted({policy.critic_offset, policy.log_std_offset, policy.params.size})
    for mine, theirs in zip(*(np.split(each, cuts) for each in gradients), strict=True):
        within("gradient", theirs - mine, rounding * np.abs(mine).max(initial=0.0))
    for agent, gradient in zip((native, torch), gradients, strict=True):
        adam = Adam(len(start), config.learning_rate, getattr(config, "adam_eps", 1e-8))
        within("step", flat(agent) - adam.step(start, gradient), 16 * EPS * (np.abs(start) + config.learning_rate))
        within("square", moment(agent, "square") - adam.square, 16 * EPS * adam.square + 1e-37)
    return rounding


def check_learned(what: str, native: Any, torch: Any, start: Any = 0.0) -> None:
    """What both back ends made of `start` in many steps is the same, in units of how far they went."""
    within(what, np.linalg.norm(torch - native), SAME * np.linalg.norm(native - start))


@pytest.mark.parametrize(("algorithm", "env", "changes"), ON_POLICY.values(), ids=ON_POLICY)
def test_on_policy_updates_agree(algorithm: str, env: str, changes: dict[str, Any]) -> None:
    # One minibatch per epoch: the back ends shuffle in different orders.
    usual = {"n_envs": 4, "n_steps": 32} | ({} if algorithm == "A2C" else {"epochs": 1, "minibatch": 128})
    native, torch = both(algorithm, env, **usual | changes)
    start = flat(native)
    np.testing.assert_array_equal(flat(torch), start)
    for _ in range(3):
        one, other = (trained(agent, 128) for agent in (native, torch))
        assert other.adam_steps == one.adam_steps
        mine, theirs = one._stats(), other._stats()
        assert theirs.episodes == mine.episodes
        assert theirs.episode_length == pytest.approx(mine.episode_length, nan_ok=True)
        for name in ("obs", "actions", "log_probs", "values", "rewards", "advantages", "returns", "last_values"):
            check_learned(name, getattr(one, name), getattr(other, name))
        if one.adam_steps == 1:
            rounding = check_first_step(native, torch, start, 128)
            for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm"):
                value = getattr(mine, name)
                within(name, getattr(theirs, name) - value, rounding * max(1.0, abs(value)))
    check_learned("parameters", flat(native), flat(torch), start)


@pytest.mark.parametrize(("algorithm", "env", "changes"), OFF_POLICY.values(), ids=OFF_POLICY)
def test_off_policy_updates_agree(algorithm: str, env: str, changes: dict[str, Any]) -> None:
    usual: dict[str, Any] = {
        "n_envs": 2, "batch": 32, "hidden": (32, 32), "learning_starts": 100, "train_every": 2, "gradient_steps": 3,
        "capacity": 1000,
    }  # fmt: skip
    if algorithm == "DQN":
        # The back ends draw random choices from their streams in different ways.
        usual |= {"epsilon_start": 0.0, "epsilon_end": 0.0, "target_every": 2}
    # Actors learn from critics after their step, which has the sign of rounding where a gradient is almost 0: the first
    # is too short to matter.
    once = {"gradient_steps": 1, "learning_rate": 1e-6}
    for steps, updates, more in ((100, 1, once), (144, 36, {})):
        native, torch = both(algorithm, env, **usual | changes | more)
        start = flat(native)
        np.testing.assert_array_equal(flat(torch), start)
        one, other = (trained(agent, steps) for agent in (native, torch))
        assert one.updates == other.updates == updates
        if updates == 1:
            check_first_step(native, torch, start, one.config.batch)
    check_learned("parameters", flat(native), flat(torch), start)
    check_learned("target", one.target_params, other._targets[0][0].flat(), start[-one.target_params.size :])
    if algorithm == "SAC":
        within("temperature", other.temperature.numpy() - one.temperature, SAME * np.abs(one.temperature))


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
