"""From what a network says to actions of the environment: the best ones, or drawn where a generator is given.

Native and torch policies act alike: both end here, with NumPy arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mileage._types import F32, I64, U8, Bool
from mileage.contracts import Distribution
from mileage.kernels.definitions import LOG_STD_HIGH, LOG_STD_LOW

# Share of random actions of a Q-network, and deviation of a deterministic actor, that are asked for a draw.
_EPSILON = 0.05
_DEVIATION = np.float32(0.1)

Rng = np.random.Generator | None


def from_logits(logits: F32, rng: Rng) -> I64:
    """Choices (N,) int64 from logits (N, n)."""
    if rng is not None:
        logits = logits + rng.gumbel(size=logits.shape).astype(np.float32)
    return np.asarray(np.argmax(logits, axis=1))


def only_possible(values: F32, masks: U8 | None) -> F32:
    """Logits or action values (N, n) with those that masks (N, n) rule out at minus infinity."""
    return values if masks is None else np.where(masks != 0, values, np.float32(-np.inf))


def from_parts(head: F32, branches: Sequence[int], log_std: F32, rng: Rng, masks: U8 | None) -> F32:
    """Actions (N, A) before bounds, indices before numbers, from logits of every choice and means (N, M + G)."""
    stops = np.cumsum(branches)
    logits = only_possible(head[:, : stops[-1]], masks)
    choices = [from_logits(each, rng)[:, None] for each in np.split(logits, stops[:-1], axis=1)]
    return np.concatenate([*choices, from_gaussian(head[:, stops[-1] :], log_std, rng)], axis=1).astype(np.float32)


def probabilities(head: F32, branches: Sequence[int], masks: U8 | None) -> tuple[F32, ...]:
    """Probability of every way to choose each part, (N, n) each, from logits (N, M + G)."""
    stops = np.cumsum(branches)
    found = []
    for logits in np.split(only_possible(head[:, : stops[-1]], masks), stops[:-1], axis=1):
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        found.append(weights / weights.sum(axis=1, keepdims=True))
    return tuple(found)


def distribution(head: F32, branches: Sequence[int], log_std: F32, value: F32, masks: U8 | None) -> Distribution:
    """Of an actor's output (N, M + G), a critic's (N,) and log deviations (G,)."""
    mean = head[:, sum(branches) :]
    found = Distribution(probabilities(head, branches, masks) if branches else (), value=value)
    if not mean.shape[1]:
        return found
    deviation = np.broadcast_to(np.exp(log_std), mean.shape).astype(np.float32)
    return dataclasses.replace(found, mean=mean, deviation=deviation)


def from_gaussian(mean: F32, log_std: F32, rng: Rng) -> F32:
    """Actions (N, A) before bounds, from means (N, A) and log deviations (A,) or (N, A)."""
    if rng is None:
        return mean
    return np.asarray(mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32), np.float32)


def from_squashed(head: F32, rng: Rng) -> F32:
    """Actions (N, A) in (-1, 1) from means and log deviations (N, 2A)."""
    size = head.shape[1] // 2
    log_std = np.clip(head[:, size:], np.float32(LOG_STD_LOW), np.float32(LOG_STD_HIGH))
    return np.asarray(np.tanh(from_gaussian(head[:, :size], log_std, rng)), np.float32)


def squashed_distribution(head: F32) -> Distribution:
    """Means and deviations before tanh, from means and log deviations (N, 2A)."""
    mean, log_std = np.split(head, 2, axis=1)
    log_std = np.clip(log_std, np.float32(LOG_STD_LOW), np.float32(LOG_STD_HIGH))
    return Distribution(mean=mean, deviation=np.exp(log_std))


def from_tanh(head: F32, rng: Rng) -> F32:
    """Actions (N, A) in [-1, 1] from outputs (N, A) before tanh; drawn ones have a little noise."""
    action = np.tanh(head)
    if rng is None:
        return action
    noisy = action + _DEVIATION * rng.standard_normal(action.shape, np.float32)
    return np.asarray(np.clip(noisy, np.float32(-1.0), np.float32(1.0)), np.float32)


def from_values(values: F32, rng: Rng, masks: U8 | None = None) -> I64:
    """Best actions (N,) int64 by values (N, n) that masks (N, n) allow; of drawn ones, one in twenty is random."""
    best = np.asarray(np.argmax(only_possible(values, masks), axis=1))
    if rng is None:
        return best
    if masks is not None:
        anywhere = from_logits(only_possible(np.zeros_like(values), masks), rng)
        return np.where(rng.random(len(best)) < _EPSILON, anywhere, best)
    return np.where(rng.random(len(best)) < _EPSILON, rng.integers(0, values.shape[1], len(best)), best)


def greedy(values: F32, masks: U8 | None) -> Distribution:
    """What a Q-network does by action values (N, n): the best possible action, always."""
    possible = only_possible(values, masks)
    best = np.argmax(possible, axis=1)
    chosen = np.eye(values.shape[1], dtype=np.float32)[best]
    return Distribution((chosen,), value=possible.max(axis=1), action_values=values)


def to_bounds(action: F32, low: F32, high: F32) -> F32:
    """Actions (N, A) mapped from [-1, 1] to the bounds (A,) of each dimension; those without a width only clipped."""
    wide = has_width(low, high)
    least, most = np.where(wide, low, np.float32(-1.0)), np.where(wide, high, np.float32(1.0))
    scaled = least + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (most - least)
    return np.where(wide, scaled, np.clip(action, low, high)).astype(np.float32)


def has_width(low: F32, high: F32) -> Bool:
    """Which dimensions (A,) have bounds that an action from -1 to 1 can be mapped to: both, and not too far apart."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isfinite(high - low))
