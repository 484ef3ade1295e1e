"""What SAC and TD3 share, of `mileage.kernels.learners.twin_critic`; the critics' parameters follow each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mileage._types import F64
from mileage.kernels.reference.mlp import mlp


@dataclasses.dataclass(frozen=True)
class Transitions:
    """Samples of a replay buffer: observations (N, O), actions (N, A), and the rest (N,)."""

    obs: Any
    actions: Any
    rewards: Any
    next_obs: Any
    terminated: Any
    discounts: Any

    def bootstrapped(self, values: Any) -> F64:
        """Rewards plus discounted `values` (N,) of where the transitions lead, none where they end."""
        alive = np.where(np.asarray(self.terminated, bool), 0.0, self.discounts)
        return np.asarray(np.asarray(self.rewards, np.float64) + alive * values)


@dataclasses.dataclass(frozen=True)
class Networks:
    """Widths of the actor and of one critic, and their activation."""

    actor: Sequence[int]
    critic: Sequence[int]
    activation: str = "relu"

    def head(self, actor: Any, obs: Any) -> F64:
        """The actor's outputs, (N, actor[-1])."""
        return mlp(actor, self.actor, obs, self.activation)[-1]

    def values(self, critics: Any, obs: Any, actions: Any) -> F64:
        """Both critics' values, (2, N)."""
        joined = np.concatenate([np.asarray(obs, np.float64), actions], axis=1)
        halves = np.split(np.asarray(critics, np.float64), 2)
        return np.stack([mlp(half, self.critic, joined, self.activation)[-1][:, 0] for half in halves])
