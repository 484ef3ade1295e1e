"""PPO's loss as the paper has it, and the update of `mileage.kernels.learners.actor_critic` that descends it.

The kernel's gradients, which it derives by hand, are tested against differences of `loss_terms`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mileage._types import F64, I64
from mileage.kernels.definitions import KL_SLACK, n_params
from mileage.kernels.reference.heads import categorical, gaussian, parts
from mileage.kernels.reference.mlp import mlp
from mileage.kernels.reference.optim import Adam, numerical_gradient


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
class Batch:
    """Samples of a rollout: observations (N, O), actions (N, A), and the rest (N,)."""

    obs: Any
    actions: Any
    log_probs: Any
    values: Any
    advantages: Any
    returns: Any
    masks: Any = None
    """Of actions in several parts, (N, M)."""

    def take(self, rows: Any) -> Batch:
        """Some of the samples."""
        found = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Batch(*(None if each is None else each[rows] for each in found))


@dataclasses.dataclass(frozen=True)
class Terms:
    """Means over samples that make up the loss, and what is reported with it."""

    policy: float
    value: float
    entropy: float
    kl: float
    clipped: float


def loss_terms(params: F64, shape: Shape, batch: Batch, clip: float, value_clip: float, normalise: bool) -> Terms:
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

    def loss(self, params: F64, shape: Shape, batch: Batch) -> float:
        """What one step descends."""
        terms = loss_terms(params, shape, batch, self.clip, self.value_clip, self.normalise)
        return terms.policy + self.value_coef * terms.value - self.entropy_coef * terms.entropy


def update(
    params: Any, shape: Shape, batch: Batch, how: Optimisation, orders: Sequence[I64], minibatch: int
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
