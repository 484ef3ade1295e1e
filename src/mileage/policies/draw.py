"""From what a network says to actions of the environment: the best ones, or drawn where a generator is given.

Native and torch policies act alike: both end here, with NumPy arrays.
"""

from __future__ import annotations

import numpy as np

from mileage._types import F32, I64
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


def from_tanh(head: F32, rng: Rng) -> F32:
    """Actions (N, A) in [-1, 1] from outputs (N, A) before tanh; drawn ones have a little noise."""
    action = np.tanh(head)
    if rng is None:
        return action
    noisy = action + _DEVIATION * rng.standard_normal(action.shape, np.float32)
    return np.asarray(np.clip(noisy, np.float32(-1.0), np.float32(1.0)), np.float32)


def from_values(values: F32, rng: Rng) -> I64:
    """Best actions (N,) int64 by values (N, n); of drawn ones, one in twenty is random."""
    best = np.asarray(np.argmax(values, axis=1))
    if rng is None:
        return best
    return np.where(rng.random(len(best)) < _EPSILON, rng.integers(0, values.shape[1], len(best)), best)


def to_bounds(action: F32, low: F32, high: F32) -> F32:
    """Actions (N, A) mapped from [-1, 1] to the bounds (A,) of each dimension; unbounded ones pass as they are."""
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, np.float32(-1.0)), np.where(bounded, high, np.float32(1.0))
    scaled = low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
    return np.where(bounded, scaled, action).astype(np.float32)
