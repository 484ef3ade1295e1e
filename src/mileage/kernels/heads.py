"""Action distributions on network outputs: categorical over logits, and diagonal Gaussian.

All functions work on one row of a flat float32 buffer that starts at `offset`. Log-probabilities of Gaussian actions are those of
the unclipped action, summed over its dimensions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mileage.kernels import random
from mileage.kernels._jit import kernel

_F = np.float32
HALF_LOG_TWO_PI = _F(0.5 * math.log(2.0 * math.pi))


@kernel
def log_normaliser(logits: Any, offset: Any, n: Any) -> Any:
    """log(sum(exp(logits))), computed without overflow."""
    top = logits[offset]
    for k in range(1, n):
        top = max(top, logits[offset + k])
    total = _F(0.0)
    for k in range(n):
        total += _F(math.exp(logits[offset + k] - top))
    return top + _F(math.log(total))


@kernel
def sample_categorical(logits: Any, offset: Any, n: Any, rng_state: Any) -> Any:
    """Draw an index; return it and its log-probability."""
    normaliser = log_normaliser(logits, offset, n)
    left = random.uniform01(rng_state)
    choice = n - 1
    for k in range(n - 1):
        left -= _F(math.exp(logits[offset + k] - normaliser))
        if left < _F(0.0):
            choice = k
            break
    return choice, logits[offset + choice] - normaliser


@kernel
def argmax(logits: Any, offset: Any, n: Any) -> Any:
    """Index of the largest logit, the first of equals."""
    choice = 0
    for k in range(1, n):
        if logits[offset + k] > logits[offset + choice]:
            choice = k
    return choice


@kernel
def sample_gaussian(
    mean: Any, offset: Any, log_std: Any, log_std_offset: Any, n: Any, rng_state: Any, out: Any, row: Any
) -> Any:
    """Draw an action into `out[row]`; return its log-probability."""
    log_prob = _F(0.0)
    for k in range(n):
        noise = random.normal(rng_state)
        spread = log_std[log_std_offset + k]
        out[row, k] = mean[offset + k] + noise * _F(math.exp(spread))
        log_prob -= _F(0.5) * noise * noise + spread + HALF_LOG_TWO_PI
    return log_prob
