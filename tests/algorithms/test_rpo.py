"""RPO: what it perturbs, that it is PPO without that, that it learns, and that nothing but the seed decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mileage
import tiny_envs
from mileage.algorithms.rpo import RPO, RPOConfig
from mileage.errors import UsageError
from mileage.kernels import random
from mileage.kernels.reference.losses import Optimisation, ReferenceBatch, Shape, update
from mileage.measure import PhaseClock

SMALL: dict[str, Any] = {"n_envs": 2, "n_steps": 16, "epochs": 3, "minibatch": 8, "hidden": (8,), "preset": "none"}


def trained(algorithm: str, env: Any = "Pendulum-v1", steps: int = 256, **changes: Any) -> Any:
    with getattr(mileage, algorithm)(env, **SMALL | changes) as agent:
        agent.learn(steps, eval_every=10**9, panel=agent.default_panel(None, 2))
        return agent.policy.params.copy()


def test_without_perturbation_it_is_ppo() -> None:
    assert np.array_equal(trained("RPO", perturbation=0.0), trained("PPO"))
    assert not np.array_equal(trained("RPO"), trained("PPO"))


@pytest.mark.parametrize("target_kl", [0.0, 1e-3])
def test_without_perturbation_it_stops_where_ppo_stops(target_kl: float) -> None:
    settings = {"target_kl": target_kl, "learning_rate": 1e-2}
    assert np.array_equal(trained("RPO", perturbation=0.0, **settings), trained("PPO", **settings))


def test_one_epoch_descends_the_loss_of_perturbed_means() -> None:
    with mileage.RPO("Pendulum-v1", **SMALL | {"epochs": 1, "minibatch": 32, "learning_rate": 1e-3}) as agent:
        learner = agent.learner
        assert isinstance(learner, RPO)
        before = agent.policy.params.copy()
        draws = random.uniform_rows(random.streams(agent.seed, 32, "perturbation"), 1)
        learner.iterate(PhaseClock(), 0.0)
        config = agent.config
        assert isinstance(config, RPOConfig)
        shape = Shape(agent.policy.actor_sizes, agent.policy.critic_sizes, discrete=False)
        # The mean moves by the noise; the plain loss has no such thing, but the same density at a shifted action.
        shifted = learner.actions - np.float32(config.perturbation) * (2.0 * draws - 1.0)
        arrays = (learner.obs, shifted, learner.log_probs, learner.values, learner.advantages, learner.returns)
        how = Optimisation(entropy_coef=config.entropy_coef, rate=1e-3, eps=config.adam_eps)
        expected, _, _ = update(before, shape, ReferenceBatch(*arrays), how, [np.arange(32)], 32)
    np.testing.assert_allclose(agent.policy.params, expected, atol=2e-5)
    assert np.abs(agent.policy.params - before).max() > 1e-4


def test_actions_of_the_rollout_stay_what_they_were() -> None:
    with mileage.RPO("Pendulum-v1", **SMALL) as agent, mileage.PPO("Pendulum-v1", **SMALL) as plain:
        for each in (agent, plain):
            each.learner.iterate(PhaseClock(), 0.0)
        assert np.array_equal(agent.learner.actions, plain.learner.actions)


def test_threads_do_not_matter() -> None:
    assert np.array_equal(trained("RPO", threads=1), trained("RPO", threads=2))


def test_a_resumed_run_draws_on(tmp_path: Path) -> None:
    whole = trained("RPO", steps=256)
    with mileage.RPO("Pendulum-v1", **SMALL) as agent:
        agent.learn(128, eval_every=10**9, panel=agent.default_panel(None, 2))
        agent.save(tmp_path / "half.safetensors")
    with mileage.load(tmp_path / "half.safetensors") as agent:
        agent.learn(128, eval_every=10**9, panel=agent.default_panel(None, 2))
        assert np.array_equal(agent.policy.params, whole)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_it_learns_a_continuous_identity(backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    # Eight squared distances; doing nothing costs 8 * (4/3 + 1/12) = 11.3.
    settings = {"n_envs": 8, "n_steps": 16, "epochs": 10, "minibatch": 64, "learning_rate": 5e-3, "entropy_coef": 0.0}
    with mileage.RPO(
        tiny_envs.Mirror, preset="none", backend=backend, gamma=0.0, log_std_init=-1.0, perturbation=0.1, **settings
    ) as agent:
        agent.learn(4096, eval_every=10**9)
        assert agent.evaluate().mean_return >= -2.0


def test_the_preset_reaches_its_target() -> None:
    with mileage.RPO("Pendulum-v1", seed=0) as agent:
        assert agent.learn(target="mean_return>=-200").reached


def test_what_it_refuses() -> None:
    with pytest.raises(UsageError, match="rpo needs continuous actions: use ppo for discrete ones"):
        mileage.RPO("CartPole-v1")
    with pytest.raises(UsageError, match=r"perturbation must be 0 or more and finite, not -0\.1"):
        RPOConfig(perturbation=-0.1)


def test_a_profile_counts_every_epoch() -> None:
    with mileage.RPO("Pendulum-v1", **SMALL) as agent, mileage.PPO("Pendulum-v1", **SMALL) as plain:
        own, usual = agent.learner.describe(), plain.learner.describe()
        assert own is not None
        assert usual is not None
        assert own.work["learn"].flops == usual.work["learn"].flops
        assert own.calls["learn"].stages is not None
        before = agent.policy.params.copy()
        with own.paused():
            own.calls["learn"].run()
        assert np.array_equal(agent.policy.params, before)
