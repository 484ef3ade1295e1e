"""Action distributions on network outputs: categorical, Gaussian, and actions of several parts with masks.

All functions work on one row, `logits` or `mean`, a float32 pointer. Log-probabilities of Gaussian actions are
those of the unclipped action, summed over its dimensions.

An actor's output is the logits of one choice after the other, `n_choices` in all, then the means of the numbers. An
action is the index of every choice, then the numbers. Parts are independent: log-probabilities and entropies add up. A
mask has one byte for every logit, 0 for what is impossible; a plain discrete action is one choice.

Kernels work like this where their frame has `masks` (see `inner`); others never come here.
"""

from __future__ import annotations

import math

import numpy as np

from mileage.kernels import random
from mileage.kernels.machine.frames import (
    Count,
    Flag,
    FrameRecord,
    Index,
    Ptr32,
    PtrU8,
    PtrU64,
    Real32,
    f32,
    i64,
    shift,
)
from mileage.kernels.machine.jit import inner
from mileage.kernels.mlp import tanh

_F = np.float32
_INFINITE = _F(np.inf)
HALF_LOG_TWO_PI, SQUASH_EPS = _F(random.HALF_LOG_TWO_PI), _F(random.SQUASH_EPS)
LOG_STD_LOW, LOG_STD_HIGH = _F(random.LOG_STD_LOW), _F(random.LOG_STD_HIGH)


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


# --- Actions of several parts, and masks: categorical choices first, then Gaussian numbers ---
# Stands for the log-probability of what is impossible: its exponential is 0, and 0 times it is 0 as well.
NEVER = _F(-1e30)

FIELDS = """
    branches: (n_branches,) int64, how many ways there are to choose each discrete part
    n_branches n_choices: int64, discrete parts; M, the sum of their choices
"""


@inner
def allow_all_if_none(frame: FrameRecord, mask: PtrU8) -> Flag:
    """Allow everything where a choice (of the row `mask`) has nothing that is possible; whether that had to be done."""
    branches, start, broken = i64(frame.branches), 0, False
    for b in range(frame.n_branches):
        allowed = 0
        for k in range(start, start + branches[b]):
            allowed += mask[k] != 0
        if allowed == 0:
            broken = True
            for k in range(start, start + branches[b]):
                mask[k] = 1
        start += branches[b]
    return broken


@inner
def parts_log_normaliser(logits: Ptr32, mask: PtrU8, n: Count) -> Real32:
    """log(sum(exp(logits))) over what is possible, computed without overflow."""
    top = NEVER
    for k in range(n):
        if mask[k] != 0:
            top = max(top, logits[k])
    total = _F(0.0)
    for k in range(n):
        if mask[k] != 0:
            total += _F(math.exp(logits[k] - top))
    return top + _F(math.log(total))


@inner
def parts_argmax(logits: Ptr32, mask: PtrU8, n: Count) -> Index:
    """Index of the largest logit that is possible, the first of equals."""
    choice = -1
    for k in range(n):
        if mask[k] != 0 and (choice < 0 or logits[k] > logits[choice]):
            choice = k
    return choice


@inner
def any_allowed(mask: PtrU8, n: Count, rng_state: PtrU64) -> Index:
    """A uniform draw among what is possible."""
    allowed = 0
    for k in range(n):
        allowed += mask[k] != 0
    left = random.integers(rng_state, allowed)
    choice = 0
    for k in range(n):
        if mask[k] != 0:
            if left == 0:
                choice = k
            left -= 1
    return choice


@inner
def _sample_choice(logits: Ptr32, mask: PtrU8, n: Count, rng_state: PtrU64) -> tuple[Index, Real32]:
    """Draw what is possible; return its index and log-probability."""
    normaliser = parts_log_normaliser(logits, mask, n)
    left = random.uniform01(rng_state)
    choice = -1
    for k in range(n):
        # Rounding may leave a little at the end: then it is the last one that is possible.
        if mask[k] != 0 and left >= _F(0.0):
            choice = k
            left -= _F(math.exp(logits[k] - normaliser))
    return choice, logits[choice] - normaliser


@inner
def sample(frame: FrameRecord, head: Ptr32, log_std: Ptr32, mask: PtrU8, rng_state: PtrU64, action: Ptr32) -> Real32:
    """Draw an action; return its log-probability."""
    branches, start, log_prob = i64(frame.branches), 0, _F(0.0)
    for b in range(frame.n_branches):
        choice, part = _sample_choice(shift(head, start), shift(mask, start), branches[b], rng_state)
        action[b] = _F(choice)
        log_prob += part
        start += branches[b]
    numbers = frame.action_size - frame.n_branches
    return log_prob + sample_gaussian(shift(head, start), log_std, numbers, rng_state, shift(action, frame.n_branches))


@inner
def mode(frame: FrameRecord, head: Ptr32, mask: PtrU8, action: Ptr32) -> None:
    """The most probable action."""
    branches, start = i64(frame.branches), 0
    for b in range(frame.n_branches):
        action[b] = _F(parts_argmax(shift(head, start), shift(mask, start), branches[b]))
        start += branches[b]
    for k in range(frame.action_size - frame.n_branches):
        action[frame.n_branches + k] = head[start + k]


@inner
def parts_to_env_action(frame: FrameRecord, action: Ptr32, out: Ptr32) -> None:
    """The environment's action; choices have no bounds and pass as they are."""
    if frame.n_actions > 0:
        out[0] = action[0]
    else:
        to_env_action(frame, action, out)


@inner
def log_probs(
    frame: FrameRecord, head: Ptr32, log_std: Ptr32, mask: PtrU8, action: Ptr32, out: Ptr32
) -> tuple[Real32, Real32]:
    """Log-probability of an action, and the entropy; `out` gets the log-probability of every choice, and of numbers
    their distance from the mean in deviations."""
    branches, start = i64(frame.branches), 0
    log_prob, entropy = _F(0.0), _F(0.0)
    for b in range(frame.n_branches):
        normaliser = parts_log_normaliser(shift(head, start), shift(mask, start), branches[b])
        for k in range(start, start + branches[b]):
            out[k] = head[k] - normaliser if mask[k] != 0 else NEVER
            entropy -= _F(math.exp(out[k])) * out[k]
        log_prob += out[start + int(action[b])]
        start += branches[b]
    for k in range(frame.action_size - frame.n_branches):
        z = (action[frame.n_branches + k] - head[start + k]) * _F(math.exp(-log_std[k]))
        out[start + k] = z
        log_prob -= _F(0.5) * z * z + log_std[k] + HALF_LOG_TWO_PI
        entropy += log_std[k] + _F(0.5) + HALF_LOG_TWO_PI
    return log_prob, entropy


@inner
def slopes(
    frame: FrameRecord, log_std: Ptr32, action: Ptr32, factor: Real32, entropy_coef: Real32, weight: Real32,
    out: Ptr32, log_std_grad: Ptr32,
) -> None:  # fmt: skip
    """Loss gradient by the actor's output, from what `log_probs` left in `out`; that by log deviations is added.

    `factor` is the derivative of the loss by the log-probability of the whole action.
    """
    branches, start = i64(frame.branches), 0
    for b in range(frame.n_branches):
        end, chosen = start + branches[b], start + int(action[b])
        entropy = _F(0.0)
        for k in range(start, end):
            entropy -= _F(math.exp(out[k])) * out[k]
        for k in range(start, end):
            p = _F(math.exp(out[k]))
            taken = _F(1.0) if k == chosen else _F(0.0)
            out[k] = weight * (factor * (taken - p) + entropy_coef * p * (out[k] + entropy))
        start = end
    for k in range(frame.action_size - frame.n_branches):
        z = out[start + k]
        out[start + k] = weight * factor * z * _F(math.exp(-log_std[k]))
        log_std_grad[k] += weight * (factor * (z * z - _F(1.0)) - entropy_coef)
