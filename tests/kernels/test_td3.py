"""The TD3 update against plain losses, differentiated numerically."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tiny_envs
from mileage.kernels import td3
from mileage.kernels.random import streams
from mileage.kernels.reference.losses import td3_actor_loss, td3_critic_loss, td3_targets
from mileage.kernels.reference.networks import Stream, numerical_gradient
from off_policy_learners import fill, first_gradient, learner, networks, stepped

CASES: dict[str, dict[str, Any]] = {
    "relu": {},
    "tanh, two layers": {"hidden": (4, 3), "activation": "tanh", "tau": 0.3},
    "clipped": {"max_grad_norm": 0.05},
    "much noise": {"target_noise": 2.0, "noise_limit": 0.7},
}


def run(parts: Any) -> None:
    parts.totals[:] = 0.0
    parts.updates = parts.team.run(td3.td3_update, parts.update_frame.set(steps=parts.updates).record, parts.pieces)


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_one_update_of_everything(settings: dict[str, Any]) -> None:
    parts = learner("TD3", tiny_envs.Mirror, policy_delay=1, **settings)
    nets, batch, policy = networks(parts), fill(parts), parts.policy
    actor, critics, target, target_actor = (
        p.astype(np.float64)
        for p in (policy.params, policy.critic_params, parts.target_params, parts.target_actor_params)
    )
    run(parts)

    noise = parts.update_frame.array("noise").astype(np.float64)
    deviation, limit = settings.get("target_noise", 0.2), settings.get("noise_limit", 0.5)
    drawn = []
    for row in streams(3, 12, "noise"):
        stream = Stream(row)
        drawn.append([deviation * stream.normal() for _ in range(2)])
    np.testing.assert_allclose(noise, np.clip(drawn, -limit, limit), rtol=1e-4, atol=1e-5)
    if settings is CASES["much noise"]:
        assert (np.abs(noise) == np.float32(limit)).any()

    wanted = td3_targets(nets, target_actor, target, batch, noise)
    slope = numerical_gradient(lambda p: td3_critic_loss(nets, p, batch, wanted), critics)
    max_norm, tau = settings.get("max_grad_norm", 0.0), settings.get("tau", 0.005)
    if not max_norm:
        np.testing.assert_allclose(first_gradient(parts.adam["critic_mean"]), slope, rtol=1e-3, atol=5e-5)
    new = stepped(critics, slope, max_norm)
    np.testing.assert_allclose(policy.critic_params, new, atol=2e-5)
    np.testing.assert_allclose(parts.target_params, target + tau * (new - target), atol=1e-5)

    after = policy.critic_params.astype(np.float64)
    slope = numerical_gradient(lambda p: td3_actor_loss(nets, p, after, batch.obs), actor)
    if not max_norm:
        np.testing.assert_allclose(first_gradient(parts.adam["actor_mean"]), slope, rtol=1e-3, atol=2e-5)
    new = stepped(actor, slope, max_norm)
    np.testing.assert_allclose(policy.params, new, atol=2e-5)
    np.testing.assert_allclose(parts.target_actor_params, target_actor + tau * (new - target_actor), atol=1e-5)

    got = parts.totals / 12.0
    assert got[td3.CRITIC_LOSS] == pytest.approx(td3_critic_loss(nets, critics, batch, wanted), rel=1e-4)
    assert got[td3.ACTOR_LOSS] == pytest.approx(td3_actor_loss(nets, actor, after, batch.obs), rel=1e-4)


def test_the_policy_and_all_targets_wait() -> None:
    parts = learner("TD3", tiny_envs.Mirror, policy_delay=3)
    fill(parts)
    waiting = (parts.policy.params, parts.target_params, parts.target_actor_params)
    before = [array.copy() for array in waiting]
    for _ in range(2):
        critics = parts.policy.critic_params.copy()
        run(parts)
        assert (parts.policy.critic_params != critics).any()
        for array, old in zip(waiting, before, strict=True):
            np.testing.assert_array_equal(array, old)
    run(parts)
    for array, old in zip(waiting, before, strict=True):
        assert (array != old).any()


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
def test_threads_do_not_change_a_bit(max_grad_norm: float) -> None:
    results = []
    for threads in (1, 2, 3):
        parts = learner(
            "TD3", tiny_envs.Mirror, hidden=(64, 48), batch=300, capacity=400, threads=threads, gradient_steps=4,
            max_grad_norm=max_grad_norm,
        )  # fmt: skip
        assert parts.pieces == 2
        fill(parts)
        run(parts)
        results.append({name: array.copy() for name, array in parts.state_arrays().items()})
    for name, array in results[0].items():
        for other in results[1:]:
            np.testing.assert_array_equal(other[name], array, err_msg=name)


def test_actions_carry_exploration_noise() -> None:
    parts = learner("TD3", tiny_envs.Mirror, n_envs=4, exploration_noise=0.5)
    parts.obs[:] = np.random.default_rng(0).normal(size=parts.obs.shape)
    head = networks(parts).head(parts.policy.params, parts.obs)
    chosen = parts.act(0.0)
    for i, row in enumerate(streams(3, 4, "action")):
        stream = Stream(row)
        want = np.clip(np.tanh(head[i]) + [0.5 * stream.normal() for _ in range(2)], -1.0, 1.0)
        np.testing.assert_allclose(parts.actions[i], want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(chosen[i], [2.0 * want[0], 0.5 * (want[1] + 1.0)], rtol=1e-4, atol=1e-5)
