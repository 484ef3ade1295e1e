"""Action distributions on network outputs: categorical over logits, and diagonal Gaussian.

All functions work on one row, `logits` or `mean`, a float32 pointer. Log-probabilities of Gaussian actions are
those of the unclipped action, summed over its dimensions.
"""

from __future__ import annotations

import math

import numpy as np

from mileage.kernels import definitions
from mileage.kernels.arrays import random
from mileage.kernels.learners.mlp import tanh
from mileage.kernels.machine.jit import inner
from mileage.kernels.machine.kinds import Count, FrameRecord, Index, Ptr32, PtrU64, Real32
from mileage.kernels.machine.pointers import f32

_F = np.float32
_INFINITE = _F(np.inf)
HALF_LOG_TWO_PI, SQUASH_EPS = _F(definitions.HALF_LOG_TWO_PI), _F(definitions.SQUASH_EPS)
LOG_STD_LOW, LOG_STD_HIGH = _F(definitions.LOG_STD_LOW), _F(definitions.LOG_STD_HIGH)


@inner
def log_normaliser(logits: Ptr32, n: Count) -> Real32:
    """log(sum(exp(logits))), computed without overflow."""
    top = logits[0]
    for k in range(1, n):
        top = max(top, logits[k])
    total = _F(0.0)
    for k in range(n):
        total += _F(math.exp(logits[k] - top))
    return top + _F(math.log(total))


@inner
def sample_categorical(logits: Ptr32, n: Count, rng_state: PtrU64) -> tuple[Index, Real32]:
    """Draw an index; return it and its log-probability."""
    normaliser = log_normaliser(logits, n)
    left = random.uniform01(rng_state)
    choice = n - 1
    for k in range(n - 1):
        left -= _F(math.exp(logits[k] - normaliser))
        if left < _F(0.0):
            choice = k
            break
    return choice, logits[choice] - normaliser


@inner
def argmax(logits: Ptr32, n: Count) -> Index:
    """Index of the largest logit, the first of equals."""
    choice = 0
    for k in range(1, n):
        if logits[k] > logits[choice]:
            choice = k
    return choice


@inner
def sample_squashed(head: Ptr32, n: Count, rng_state: PtrU64, action: Ptr32, noise: Ptr32) -> Real32:
    """Draw an action in (-1, 1) from means and log deviations, `head` (2n,); return its log-density.

    `noise` (n,) receives the standard normal draws.
    """
    log_prob = _F(0.0)
    for k in range(n):
        log_std = min(max(head[n + k], LOG_STD_LOW), LOG_STD_HIGH)
        noise[k] = random.normal(rng_state)
        action[k] = tanh(head[k] + noise[k] * _F(math.exp(log_std)))
        log_prob -= _F(0.5) * noise[k] * noise[k] + log_std + HALF_LOG_TWO_PI
        log_prob -= _F(math.log(_F(1.0) - action[k] * action[k] + SQUASH_EPS))
    return log_prob


@inner
def sample_gaussian(mean: Ptr32, log_std: Ptr32, n: Count, rng_state: PtrU64, out: Ptr32) -> Real32:
    """Draw an action into `out`; return its log-probability."""
    log_prob = _F(0.0)
    for k in range(n):
        noise = random.normal(rng_state)
        out[k] = mean[k] + noise * _F(math.exp(log_std[k]))
        log_prob -= _F(0.5) * noise * noise + log_std[k] + HALF_LOG_TWO_PI
    return log_prob


@inner
def to_env_action(frame: FrameRecord, action: Ptr32, out: Ptr32) -> None:
    """Map a policy's action in [-1, 1] to the environment's bounds; dimensions without a width are only clipped."""
    low, high = f32(frame.low), f32(frame.high)
    for k in range(frame.action_size):
        value = action[k]
        width = high[k] - low[k]
        if width < _INFINITE:
            value = min(max(value, _F(-1.0)), _F(1.0))
            value = low[k] + (value + _F(1.0)) * _F(0.5) * width
        elif value < low[k]:
            value = low[k]
        elif value > high[k]:
            value = high[k]
        out[k] = value
