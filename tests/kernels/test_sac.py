"""The SAC update against plain losses, differentiated numerically."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tiny_envs
from mileage.kernels import sac
from mileage.kernels.random import streams
from mileage.kernels.reference.losses import sac_actor_loss, sac_critic_loss, sac_targets
from mileage.kernels.reference.networks import Stream, numerical_gradient
from off_policy_learners import RATE, fill, first_gradient, learner, networks, stepped

CASES: dict[str, dict[str, Any]] = {
    "relu": {},
    "tanh, two layers": {"hidden": (4, 3), "activation": "tanh"},
    "clipped": {"max_grad_norm": 0.05},
    "fixed temperature": {"temperature": 0.4},
}


def run(parts: Any) -> None:
    parts.totals[:] = 0.0
    parts.updates = parts.team.run(sac.sac_update, parts.update_frame.set(steps=parts.updates).record, parts.pieces)


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_one_update(settings: dict[str, Any]) -> None:
    parts = learner("SAC", tiny_envs.Mirror, **settings)
    nets, batch, policy = networks(parts), fill(parts), parts.policy
    alpha = settings.get("temperature", 1.0)
    actor, critics, target = (p.astype(np.float64) for p in (policy.params, policy.critic_params, parts.target_params))
    run(parts)

    noise = parts.update_frame.array("noise").astype(np.float64)
    # Sample i draws from stream i, first for the target action, then for the policy's.
    for i, row in enumerate(streams(3, 12, "noise")):
        stream = Stream(row)
        want = [[stream.normal() for _ in range(2)] for _ in range(2)]
        np.testing.assert_allclose(noise[:, i], want, rtol=1e-4, atol=1e-5)

    wanted = sac_targets(nets, actor, target, batch, noise[0], alpha)
    slope = numerical_gradient(lambda p: sac_critic_loss(nets, p, batch, wanted), critics)
    max_norm = settings.get("max_grad_norm", 0.0)
    if not max_norm:
        np.testing.assert_allclose(first_gradient(parts.adam["critic_mean"]), slope, rtol=1e-3, atol=2e-5)
    new = stepped(critics, slope, max_norm)
    np.testing.assert_allclose(policy.critic_params, new, atol=2e-5)
    np.testing.assert_allclose(parts.target_params, target + 0.005 * (new - target), atol=1e-6)

    # The actor learns from the critics as they are after their step.
    after = policy.critic_params.astype(np.float64)
    slope = numerical_gradient(lambda p: sac_actor_loss(nets, p, after, batch.obs, noise[1], alpha)[0], actor)
    if not max_norm:
        np.testing.assert_allclose(first_gradient(parts.adam["actor_mean"]), slope, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(policy.params, stepped(actor, slope, max_norm), atol=2e-5)

    loss, log_prob = sac_actor_loss(nets, actor, after, batch.obs, noise[1], alpha)
    got = parts.totals / 12.0
    assert got[sac.CRITIC_LOSS] == pytest.approx(sac_critic_loss(nets, critics, batch, wanted), rel=1e-4)
    # One minus the square of an action near 1 has few digits in float32.
    assert got[sac.ACTOR_LOSS] == pytest.approx(loss, rel=1e-3)
    assert got[sac.LOG_PROB] == pytest.approx(log_prob, rel=1e-3)
    assert got[sac.SAMPLES] == 1.0
    if "temperature" in settings:
        assert parts.temperature[sac.LOG_ALPHA] == math.log(0.4)
    else:
        # Minus the mean log-density plus the target entropy, -2; Adam's first step is the rate times its sign.
        slope_alpha = -(log_prob - 2.0)
        assert parts.temperature[sac.ALPHA_MEAN] == pytest.approx(0.1 * slope_alpha, rel=1e-3)
        assert parts.temperature[sac.LOG_ALPHA] == pytest.approx(-math.copysign(RATE, slope_alpha), rel=1e-4)


def test_both_critics_are_the_smaller_one_somewhere() -> None:
    """Or `test_one_update` would not see how rows are shared out between them."""
    parts = learner("SAC", tiny_envs.Mirror)
    nets, batch = networks(parts), fill(parts)
    first, second = nets.values(parts.policy.critic_params, batch.obs, batch.actions)
    assert 0 < (first <= second).sum() < 12


@pytest.mark.parametrize("smaller", [0, 1])
def test_one_critic_may_be_the_smaller_one_everywhere(smaller: int) -> None:
    parts = learner("SAC", tiny_envs.Mirror, temperature=0.4)
    nets, batch, policy = networks(parts), fill(parts), parts.policy
    # The bias of a critic's output is its last parameter.
    half = policy.critic_params.size // 2
    policy.critic_params[half * (smaller + 1) - 1] -= 100.0
    actor = policy.params.astype(np.float64)
    run(parts)
    noise, after = parts.update_frame.array("noise")[1], policy.critic_params.astype(np.float64)
    slope = numerical_gradient(lambda p: sac_actor_loss(nets, p, after, batch.obs, noise, 0.4)[0], actor)
    np.testing.assert_allclose(first_gradient(parts.adam["actor_mean"]), slope, rtol=1e-3, atol=2e-5)


def test_several_updates_in_one_call_are_as_many_calls() -> None:
    one, many = (learner("SAC", tiny_envs.Mirror, gradient_steps=n) for n in (1, 3))
    samples = fill(many)
    run(many)
    for u in range(3):
        for name in ("obs", "actions", "rewards", "next_obs", "terminated", "discounts"):
            getattr(one.batch, name)[:] = getattr(samples, name)[12 * u : 12 * (u + 1)]
        run(one)
    assert one.updates == many.updates == 3
    for name, array in many.state_arrays().items():
        np.testing.assert_array_equal(one.state_arrays()[name], array, err_msg=name)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
def test_threads_do_not_change_a_bit(max_grad_norm: float) -> None:
    results = []
    for threads in (1, 2, 3):
        parts = learner(
            "SAC", tiny_envs.Mirror, hidden=(64, 48), batch=300, capacity=400, threads=threads, gradient_steps=2,
            max_grad_norm=max_grad_norm,
        )  # fmt: skip
        assert parts.pieces == 2
        fill(parts)
        run(parts)
        results.append({name: array.copy() for name, array in parts.state_arrays().items()})
    for name, array in results[0].items():
        for other in results[1:]:
            np.testing.assert_array_equal(other[name], array, err_msg=name)


def test_actions_are_drawn_from_the_policy() -> None:
    parts = learner("SAC", tiny_envs.Mirror, n_envs=4)
    parts.obs[:] = np.random.default_rng(0).normal(size=parts.obs.shape)
    head = networks(parts).head(parts.policy.params, parts.obs)
    chosen = parts.act(0.0)
    for i, row in enumerate(streams(3, 4, "action")):
        stream = Stream(row)
        noise = np.array([stream.normal() for _ in range(2)])
        want = np.tanh(head[i, :2] + noise * np.exp(head[i, 2:]))
        np.testing.assert_allclose(parts.actions[i], want, rtol=1e-4, atol=1e-5)
        # Bounds are (-2, 0) and (2, 1).
        np.testing.assert_allclose(chosen[i], [2.0 * want[0], 0.5 * (want[1] + 1.0)], rtol=1e-4, atol=1e-5)
