"""Tiny off-policy learners with made-up samples, for tests of their updates against plain references."""

from __future__ import annotations

from typing import Any

import numpy as np

import mileage
from mileage.kernels.reference.losses import Networks, Transitions
from mileage.kernels.reference.networks import Adam

RATE = 1e-2


def learner(algorithm: str, env: Any, **settings: Any) -> Any:
    """A built algorithm with small networks."""
    usual: dict[str, Any] = {"hidden": (5,), "batch": 12, "capacity": 100, "learning_rate": RATE, "seed": 3}
    agent = getattr(mileage, algorithm)(env, preset="none", **{"threads": 1} | usual | settings)
    agent.prepare()
    parts = agent.learner
    parts.agent = agent  # or its threads would end with it
    rng = np.random.default_rng(0)
    places = ((parts.policy, "params"), (parts.policy, "critic_params"))
    for owner, name in (*places, (parts, "target_params"), (parts, "target_actor_params")):
        if hasattr(owner, name):
            params = getattr(owner, name)
            params[:] = rng.normal(scale=0.6, size=params.shape)
    return parts


def fill(parts: Any, seed: int = 1) -> Transitions:
    """Put samples into the learner's batch, some of them final and of several discounts; return copies."""
    rng, batch = np.random.default_rng(seed), parts.batch
    for array in (batch.obs, batch.next_obs, batch.rewards):
        array[:] = rng.normal(size=array.shape)
    n_actions = parts.policy.n_actions
    batch.actions[:] = (
        rng.integers(0, n_actions, batch.actions.shape) if n_actions else rng.uniform(-1, 1, batch.actions.shape)
    )
    batch.terminated[:] = rng.random(batch.terminated.shape) < 0.3
    batch.discounts[:] = rng.choice([0.9, 0.99**3], batch.discounts.shape)
    return Transitions(
        *(getattr(batch, name).copy() for name in ("obs", "actions", "rewards", "next_obs", "terminated", "discounts"))
    )


def networks(parts: Any) -> Networks:
    policy = parts.policy
    return Networks(policy.actor_sizes, policy.critic_sizes, policy.activation)


def first_gradient(mean: Any) -> Any:
    """The gradient that Adam's first step saw: its mean moved a tenth of the way from 0."""
    return np.asarray(mean, np.float64) / (1.0 - 0.9)


def stepped(params: Any, gradient: Any, max_norm: float = 0.0) -> Any:
    """Parameters after Adam's first step."""
    return Adam(len(params), RATE, 1e-8, max_norm).step(np.asarray(params, np.float64), gradient)
