"""The losses of PPO, DQN, SAC and TD3 as the papers have them, and the updates that descend them.

The kernel's gradients, which it derives by hand, are tested against differences of `loss_terms`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mileage.kernels.random import KL_SLACK, n_params
from mileage.kernels.reference.networks import Adam, categorical, gaussian, mlp, numerical_gradient, parts, squashed
from mileage.types import F64, I64


@dataclasses.dataclass(frozen=True)
class Shape:
    """Widths of actor and critic, whose parameters and log deviations lie in one vector, in this order."""

    actor: tuple[int, ...]
    critic: tuple[int, ...]
    discrete: bool
    activation: str = "tanh"
    branches: tuple[int, ...] = ()
    """Of actions in several parts, how many ways there are to choose each discrete one."""

    def parts(self, params: F64) -> tuple[F64, F64, F64]:
        """Parameters of the actor, of the critic, and log deviations."""
        ends = np.cumsum([n_params(sizes) for sizes in (self.actor, self.critic)])
        return params[: ends[0]], params[ends[0] : ends[1]], params[ends[1] :]


@dataclasses.dataclass(frozen=True)
class ReferenceBatch:
    """Samples of a rollout: observations (N, O), actions (N, A), and the rest (N,)."""

    obs: Any
    actions: Any
    log_probs: Any
    values: Any
    advantages: Any
    returns: Any
    masks: Any = None
    """Of actions in several parts, (N, M)."""

    def take(self, rows: Any) -> ReferenceBatch:
        """Some of the samples."""
        found = (getattr(self, field.name) for field in dataclasses.fields(self))
        return ReferenceBatch(*(None if each is None else each[rows] for each in found))


@dataclasses.dataclass(frozen=True)
class Terms:
    """Means over samples that make up the loss, and what is reported with it."""

    policy: float
    value: float
    entropy: float
    kl: float
    clipped: float


def loss_terms(
    params: F64, shape: Shape, batch: ReferenceBatch, clip: float, value_clip: float, normalise: bool
) -> Terms:
    """Clipped surrogate, squared value error and entropy of a minibatch (Schulman et al., 2017, equations 7 and 9)."""
    actor, critic, log_std = shape.parts(params)
    head = mlp(actor, shape.actor, batch.obs, shape.activation)[-1]
    value = mlp(critic, shape.critic, batch.obs, shape.activation)[-1][:, 0]
    if shape.branches:
        log_prob, entropy = parts(head, shape.branches, log_std, batch.masks, batch.actions)
    elif shape.discrete:
        log_prob, entropy = categorical(head, batch.actions[:, 0])
    else:
        log_prob, entropy = gaussian(head, log_std, batch.actions)
    advantages = np.asarray(batch.advantages, np.float64)
    if normalise and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    log_ratio = log_prob - batch.log_probs
    ratio = np.exp(log_ratio)
    surrogate = np.minimum(ratio * advantages, np.clip(ratio, 1.0 - clip, 1.0 + clip) * advantages)
    error = (value - batch.returns) ** 2
    if value_clip > 0.0:
        moved = batch.values + np.clip(value - batch.values, -value_clip, value_clip)
        error = np.maximum(error, (moved - batch.returns) ** 2)
    return Terms(
        policy=-float(surrogate.mean()),
        value=float(error.mean()),
        entropy=float(entropy.mean()),
        kl=float((ratio - 1.0 - log_ratio).mean()),
        clipped=float((np.abs(ratio - 1.0) > clip).mean()),
    )


@dataclasses.dataclass(frozen=True)
class Optimisation:
    """How the loss is weighted and followed."""

    clip: float = 0.2
    value_clip: float = 0.0
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    normalise: bool = True
    rate: float = 1e-3
    eps: float = 1e-5
    max_norm: float = 0.5
    target_kl: float = 0.0

    def loss(self, params: F64, shape: Shape, batch: ReferenceBatch) -> float:
        """What one step descends."""
        terms = loss_terms(params, shape, batch, self.clip, self.value_clip, self.normalise)
        return terms.policy + self.value_coef * terms.value - self.entropy_coef * terms.entropy


def update(
    params: Any, shape: Shape, batch: ReferenceBatch, how: Optimisation, orders: Sequence[I64], minibatch: int
) -> tuple[F64, int, list[Terms]]:
    """Minibatch steps on `batch` in each of `orders`: parameters, steps taken, and the terms of every minibatch."""
    params = np.array(params, np.float64)
    adam = Adam(len(params), how.rate, how.eps, how.max_norm)
    seen: list[Terms] = []
    for order in orders:
        for start in range(0, len(order), minibatch):
            samples = batch.take(order[start : start + minibatch])
            terms = loss_terms(params, shape, samples, how.clip, how.value_clip, how.normalise)
            if how.target_kl > 0.0 and terms.kl > KL_SLACK * how.target_kl:
                return params, adam.steps, seen
            seen.append(terms)
            loss = functools.partial(how.loss, shape=shape, batch=samples)
            params = adam.step(params, numerical_gradient(loss, params))
    return params, adam.steps, seen


# --- What SAC and TD3 share, of `mileage.kernels.twin_critic`; the critics' parameters follow each other ---
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


# --- The targets and the loss of `mileage.kernels.dqn` ---
def q_values(params: Any, sizes: Sequence[int], obs: Any, activation: str, dueling: bool) -> F64:
    """Action values (N, K); a dueling head holds the state's value first (Wang et al., 2016, equation 9)."""
    head = mlp(params, sizes, obs, activation)[-1]
    if not dueling:
        return head
    advantages = head[:, 1:]
    return np.asarray(head[:, :1] + advantages - advantages.mean(axis=1, keepdims=True))


def dqn_targets(batch: Transitions, online_next: F64, target_next: F64, double: bool, masks: Any = None) -> F64:
    """Bellman targets (N,): the target network's value of the action that it, or the online network, prefers.

    Where `masks` (N, K) are 0, there is no such action after a transition.
    """
    judge = online_next if double else target_next
    choices = (judge if masks is None else np.where(np.asarray(masks) != 0, judge, -np.inf)).argmax(axis=1)
    return batch.bootstrapped(target_next[np.arange(len(choices)), choices])


def huber(errors: F64, limit: float) -> F64:
    """Half the square up to `limit`, linear beyond it."""
    size = np.abs(errors)
    return np.where(size <= limit, 0.5 * errors**2, limit * (size - 0.5 * limit))


# --- The losses of `mileage.kernels.sac` ---
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


# --- The losses of `mileage.kernels.td3` ---
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
