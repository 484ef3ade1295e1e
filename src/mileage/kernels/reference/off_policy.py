"""The losses of SAC, TD3 and DQN once more, as plain as can be: float64, differentiated numerically by their tests.

Networks are those of `mileage.kernels.reference.networks.mlp`. The twin critics' parameters lie one after the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mileage._types import F64
from mileage.kernels.reference.networks import mlp

LOG_STD_BOUNDS = (-20.0, 2.0)
SQUASH_EPS = 1e-6


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


def squashed(head: F64, noise: Any) -> tuple[F64, F64]:
    """Actions (N, A) in (-1, 1) and their log-densities (N,), from means and log deviations beside each other."""
    mean, raw = np.split(head, 2, axis=1)
    log_std = np.clip(raw, *LOG_STD_BOUNDS)
    noise = np.asarray(noise, np.float64)
    actions: F64 = np.tanh(mean + noise * np.exp(log_std))
    normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    return actions, (normal - np.log(1.0 - actions**2 + SQUASH_EPS)).sum(axis=1)


def sac_targets(nets: Networks, actor: Any, targets: Any, batch: Transitions, noise: Any, alpha: float) -> F64:
    """Soft Bellman targets (N,) (Haarnoja et al., 2018, equation 3)."""
    actions, log_probs = squashed(nets.head(actor, batch.next_obs), noise)
    return batch.bootstrapped(nets.values(targets, batch.next_obs, actions).min(axis=0) - alpha * log_probs)


def sac_critic_loss(nets: Networks, critics: Any, batch: Transitions, targets: Any) -> float:
    """Half the mean squared error, summed over both critics."""
    errors = nets.values(critics, batch.obs, np.asarray(batch.actions, np.float64)) - targets
    return float(0.5 * (errors**2).mean(axis=1).sum())


def sac_actor_loss(nets: Networks, actor: Any, critics: Any, obs: Any, noise: Any, alpha: float) -> tuple[float, float]:
    """Mean of alpha times the log-density minus the smaller value; and the mean log-density."""
    actions, log_probs = squashed(nets.head(actor, obs), noise)
    values = nets.values(critics, obs, actions).min(axis=0)
    return float((alpha * log_probs - values).mean()), float(log_probs.mean())


def td3_targets(nets: Networks, target_actor: Any, targets: Any, batch: Transitions, noise: Any) -> F64:
    """Bellman targets (N,) at smoothed actions (Fujimoto et al., 2018, equation 14); `noise` is clipped already."""
    actions = np.clip(np.tanh(nets.head(target_actor, batch.next_obs)) + noise, -1.0, 1.0)
    return batch.bootstrapped(nets.values(targets, batch.next_obs, actions).min(axis=0))


def td3_critic_loss(nets: Networks, critics: Any, batch: Transitions, targets: Any) -> float:
    """Mean squared error, summed over both critics."""
    return 2.0 * sac_critic_loss(nets, critics, batch, targets)


def td3_actor_loss(nets: Networks, actor: Any, critics: Any, obs: Any) -> float:
    """Minus the mean value that the first critic gives the actor's actions."""
    return -float(nets.values(critics, obs, np.tanh(nets.head(actor, obs)))[0].mean())


def q_values(params: Any, sizes: Sequence[int], obs: Any, activation: str, dueling: bool) -> F64:
    """Action values (N, K); a dueling head holds the state's value first (Wang et al., 2016, equation 9)."""
    head = mlp(params, sizes, obs, activation)[-1]
    if not dueling:
        return head
    advantages = head[:, 1:]
    return np.asarray(head[:, :1] + advantages - advantages.mean(axis=1, keepdims=True))


def dqn_targets(batch: Transitions, online_next: F64, target_next: F64, double: bool) -> F64:
    """Bellman targets (N,): the target network's value of the action that it, or the online network, prefers."""
    choices = (online_next if double else target_next).argmax(axis=1)
    return batch.bootstrapped(target_next[np.arange(len(choices)), choices])


def huber(errors: F64, limit: float) -> F64:
    """Half the square up to `limit`, linear beyond it."""
    size = np.abs(errors)
    return np.where(size <= limit, 0.5 * errors**2, limit * (size - 0.5 * limit))
