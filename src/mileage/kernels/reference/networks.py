"""Networks, action distributions, the actor-critic loss and its optimisation once more, as plain as can be.

Float64 throughout. Losses are differentiated numerically, which leaves nothing to get wrong twice: what the compiled
kernels derive by hand is tested against differences of the loss itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mileage._types import F64, I64


def mlp(params: Any, sizes: Sequence[int], x: Any, activation: str = "tanh") -> list[F64]:
    """Outputs of every layer, the input first; the last layer is linear. `params` is flat: weights, biases, …"""
    outputs = [np.asarray(x, np.float64)]
    start = 0
    for layer, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        weights = np.asarray(params[start : start + n_in * n_out], np.float64).reshape(n_in, n_out)
        biases = np.asarray(params[start + n_in * n_out : start + n_in * n_out + n_out], np.float64)
        start += n_in * n_out + n_out
        out = outputs[-1] @ weights + biases
        if layer < len(sizes) - 2:
            out = np.tanh(out) if activation == "tanh" else np.maximum(out, 0.0)
        outputs.append(out)
    return outputs


def mlp_gradient(params: Any, sizes: Sequence[int], x: Any, slopes: Any, activation: str = "tanh") -> F64:
    """Gradient of `sum(slopes * output)` by the flat parameters, by the chain rule."""
    outputs = mlp(params, sizes, x, activation)
    pieces: list[F64] = []
    stop = len(params)
    delta = np.asarray(slopes, np.float64)
    for layer in reversed(range(len(sizes) - 1)):
        n_in, n_out = sizes[layer], sizes[layer + 1]
        stop -= n_in * n_out + n_out
        weights = np.asarray(params[stop : stop + n_in * n_out], np.float64).reshape(n_in, n_out)
        pieces = [(outputs[layer].T @ delta).ravel(), delta.sum(axis=0), *pieces]
        if layer > 0:
            h = outputs[layer]
            delta = (delta @ weights.T) * (1.0 - h * h if activation == "tanh" else h > 0.0)
    return np.concatenate(pieces)


def numerical_gradient(function: Callable[[F64], float], params: Any, step: float = 1e-6) -> F64:
    """Gradient of `function` by central differences, (P,) float64."""
    params = np.array(params, np.float64)
    gradient: F64 = np.zeros(len(params))
    for i in range(len(params)):
        params[i] += step
        above = function(params)
        params[i] -= 2.0 * step
        below = function(params)
        params[i] += step
        gradient[i] = (above - below) / (2.0 * step)
    return gradient


def categorical(logits: Any, actions: Any) -> tuple[F64, F64]:
    """Log-probabilities of `actions` (N,) and entropies (N,) under `logits` (N, K)."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    chosen: F64 = log_p[np.arange(len(log_p)), np.asarray(actions, np.int64)]
    entropy: F64 = -(np.exp(log_p) * log_p).sum(axis=1)
    return chosen, entropy


def gaussian(mean: Any, log_std: Any, actions: Any) -> tuple[F64, F64]:
    """Log-probabilities of `actions` (N, A) and entropies (N,) under independent normals of `mean` (N, A)."""
    log_std = np.asarray(log_std, np.float64)
    z = (np.asarray(actions, np.float64) - mean) / np.exp(log_std)
    log_prob: F64 = (-0.5 * z * z - log_std - 0.5 * math.log(2.0 * math.pi)).sum(axis=1)
    entropy = (log_std + 0.5 + 0.5 * math.log(2.0 * math.pi)).sum()
    return log_prob, np.full(len(z), entropy)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Widths of actor and critic, whose parameters and log deviations lie in one vector, in this order."""

    actor: tuple[int, ...]
    critic: tuple[int, ...]
    discrete: bool
    activation: str = "tanh"

    def parts(self, params: F64) -> tuple[F64, F64, F64]:
        """Parameters of the actor, of the critic, and log deviations."""
        ends = np.cumsum([sum(a * b + b for a, b in itertools.pairwise(sizes)) for sizes in (self.actor, self.critic)])
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

    def take(self, rows: Any) -> Batch:
        """Some of the samples."""
        return Batch(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))


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
    if shape.discrete:
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


class Adam:
    """Adam (Kingma and Ba, 2015) with clipping to a global norm; `max_norm` 0 for none."""

    def __init__(self, n: int, rate: float, eps: float, max_norm: float = 0.0) -> None:
        self.rate, self.eps, self.max_norm = rate, eps, max_norm
        self.mean, self.square, self.steps = np.zeros(n), np.zeros(n), 0

    def step(self, params: F64, gradient: F64) -> F64:
        """Parameters after one step."""
        norm = float(np.linalg.norm(gradient))
        if 0.0 < self.max_norm < norm:
            gradient = gradient * (self.max_norm / (norm + 1e-6))
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean = self.mean / (1.0 - 0.9**self.steps)
        square = self.square / (1.0 - 0.999**self.steps)
        return params - self.rate * mean / (np.sqrt(square) + self.eps)


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
            if how.target_kl > 0.0 and terms.kl > 1.5 * how.target_kl:
                return params, adam.steps, seen
            seen.append(terms)
            loss = _Loss(how, shape, samples)
            params = adam.step(params, numerical_gradient(loss, params))
    return params, adam.steps, seen


@dataclasses.dataclass(frozen=True)
class _Loss:
    """The loss as a function of the parameters alone."""

    how: Optimisation
    shape: Shape
    samples: Batch

    def __call__(self, params: F64) -> float:
        return self.how.loss(params, self.shape, self.samples)
