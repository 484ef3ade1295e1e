"""The whole policy-gradient update in one call: shuffle, gather, forward, loss, backward, clip, Adam, for all epochs.

A minibatch is cut into chunks whose number depends on its size alone. Each chunk's gradient has a buffer of its own and buffers
are added in order, so that the result does not depend on which thread computed which chunk.

With an infinite clip range, one epoch and one minibatch this is the advantage actor-critic gradient.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mileage.kernels import heads, mlp, optim, random
from mileage.kernels._jit import kernel
from mileage.kernels._team import meet

_F = np.float32
# Columns of `stats`, sums over samples.
POLICY_LOSS, VALUE_LOSS, ENTROPY, KL, CLIPPED, GRAD_NORM, SAMPLES, MINIBATCHES = range(8)
N_STATS = 8
# Fewer rows than this per chunk cost more in matrix products than a second thread brings.
_MIN_CHUNK_ROWS = 128
_MAX_CHUNKS = 16
# A KL above this multiple of the target ends the update, as in Stable-Baselines3.
_KL_SLACK = 1.5


def n_chunks(minibatch: int) -> int:
    """Pieces that a minibatch of this size is cut into."""
    return min(_MAX_CHUNKS, max(1, minibatch // _MIN_CHUNK_ROWS))


@kernel
def _shuffle(order: Any, rng_state: Any) -> None:
    """Permute in place (Fisher and Yates)."""
    for last in range(order.shape[0] - 1, 0, -1):
        other = random.integers(rng_state, last + 1)
        kept = order[last]
        order[last] = order[other]
        order[other] = kept


@kernel
def _advantage_moments(advantages: Any, order: Any, start: Any, size: Any) -> Any:
    """Mean and inverse standard deviation of a minibatch's advantages."""
    total = 0.0
    for i in range(size):
        total += advantages[order[start + i]]
    mean = total / size
    squares = 0.0
    for i in range(size):
        difference = advantages[order[start + i]] - mean
        squares += difference * difference
    return _F(mean), _F(1.0 / (math.sqrt(squares / max(size - 1, 1)) + 1e-8))


@kernel
def _policy_factor(log_ratio: Any, advantage: Any, clip: Any, stats: Any) -> Any:
    """Derivative of the clipped surrogate loss by the log-probability; adds to the statistics."""
    ratio = _F(math.exp(log_ratio))
    low, high = _F(1.0) - clip, _F(1.0) + clip
    inside = min(max(ratio, low), high)
    stats[POLICY_LOSS] -= min(ratio * advantage, inside * advantage)
    stats[KL] += ratio - _F(1.0) - log_ratio
    outside = ratio < low or ratio > high
    if outside:
        stats[CLIPPED] += 1.0
    if (advantage > _F(0.0) and ratio > high) or (advantage < _F(0.0) and ratio < low):
        return _F(0.0)
    return -advantage * ratio


@kernel
def _categorical_row(
    work: Any,
    head: Any,
    width: Any,
    action: Any,
    old: Any,
    advantage: Any,
    clip: Any,
    entropy_coef: Any,
    inverse: Any,
    delta: Any,
    stats: Any,
) -> None:
    """Write the loss gradient by the logits of one sample to `work[delta:]`."""
    normaliser = heads.log_normaliser(work, head, width)
    entropy = _F(0.0)
    for k in range(width):
        log_p = work[head + k] - normaliser
        p = _F(math.exp(log_p))
        work[delta + k] = p
        entropy -= p * log_p
    factor = _policy_factor(work[head + action] - normaliser - old, advantage, clip, stats)
    stats[ENTROPY] += entropy
    for k in range(width):
        p = work[delta + k]
        chosen = _F(1.0) if k == action else _F(0.0)
        slope = entropy_coef * p * (work[head + k] - normaliser + entropy)
        work[delta + k] = inverse * (factor * (chosen - p) + slope)


@kernel
def _gaussian_row(
    work: Any,
    head: Any,
    width: Any,
    actions: Any,
    row: Any,
    params: Any,
    log_std: Any,
    old: Any,
    advantage: Any,
    clip: Any,
    entropy_coef: Any,
    inverse: Any,
    delta: Any,
    grad: Any,
    stats: Any,
) -> None:
    """Write the loss gradient by the means of one sample to `work[delta:]`, and add that by log-std to `grad[log_std:]`."""
    log_prob = _F(0.0)
    entropy = _F(0.0)
    for k in range(width):
        spread = params[log_std + k]
        z = (actions[row, k] - work[head + k]) * _F(math.exp(-spread))
        work[delta + k] = z
        log_prob -= _F(0.5) * z * z + spread + heads.HALF_LOG_TWO_PI
        entropy += spread + _F(0.5) + heads.HALF_LOG_TWO_PI
    factor = _policy_factor(log_prob - old, advantage, clip, stats)
    stats[ENTROPY] += entropy
    for k in range(width):
        z = work[delta + k]
        work[delta + k] = inverse * factor * z * _F(math.exp(-params[log_std + k]))
        grad[log_std + k] += inverse * (factor * (z * z - _F(1.0)) - entropy_coef)


@kernel
def _value_slope(value: Any, old: Any, target: Any, clip: Any, stats: Any) -> Any:
    """Derivative of the squared value error, clipped around the old value where `clip` > 0; adds to the statistics."""
    error = value - target
    if clip > _F(0.0):
        moved = old + min(max(value - old, -clip), clip)
        if (moved - target) * (moved - target) > error * error:
            stats[VALUE_LOSS] += (moved - target) * (moved - target)
            return _F(2.0) * (moved - target) if abs(value - old) < clip else _F(0.0)
    stats[VALUE_LOSS] += error * error
    return _F(2.0) * error


@kernel
def chunk_gradients(
    data: Any,
    order: Any,
    start: Any,
    rows: Any,
    inverse: Any,
    moments: Any,
    net: Any,
    n_actions: Any,
    coefs: Any,
    work: Any,
    grad: Any,
    stats: Any,
) -> None:
    """Gradient of the loss summed over `rows` samples and divided by the minibatch size, into `grad` (params,).

    `data` = (obs, actions, log-probs, values, advantages, returns), flat over time and environments; `moments` = mean and
    inverse deviation of the advantages; `coefs` = (clip, value clip, entropy coefficient, value coefficient).
    """
    obs, actions, log_probs, values, advantages, returns = data
    params, actor, critic, critic_offset, log_std_offset, kind = net
    clip, value_clip, entropy_coef, value_coef = coefs
    size, width = obs.shape[1], actor[actor.shape[0] - 1]
    for i in range(rows):
        sample = order[start + i]
        for k in range(size):
            work[i * size + k] = obs[sample, k]
    hidden = rows * size
    widest, total = 0, 0
    for layer in range(1, max(actor.shape[0], critic.shape[0])):
        a = actor[layer] if layer < actor.shape[0] else 0
        c = critic[layer] if layer < critic.shape[0] else 0
        widest = max(widest, max(a, c))
        total += max(a, c)
    delta = hidden + rows * total
    spare = delta + rows * widest
    for k in range(log_std_offset, params.shape[0]):
        grad[k] = _F(0.0)

    head = mlp.forward(params, 0, actor, rows, work, 0, hidden, kind)
    for i in range(rows):
        sample = order[start + i]
        advantage = (advantages[sample] - moments[0]) * moments[1]
        if n_actions > 0:
            _categorical_row(
                work,
                head + i * width,
                width,
                int(actions[sample, 0]),
                log_probs[sample],
                advantage,
                clip,
                entropy_coef,
                inverse,
                delta + i * width,
                stats,
            )
        else:
            _gaussian_row(
                work,
                head + i * width,
                width,
                actions,
                sample,
                params,
                log_std_offset,
                log_probs[sample],
                advantage,
                clip,
                entropy_coef,
                inverse,
                delta + i * width,
                grad,
                stats,
            )
    mlp.backward(params, 0, actor, rows, work, 0, hidden, delta, spare, kind, grad, 0)

    value = mlp.forward(params, critic_offset, critic, rows, work, 0, hidden, kind)
    for i in range(rows):
        sample = order[start + i]
        slope = _value_slope(work[value + i], values[sample], returns[sample], value_clip, stats)
        work[delta + i] = inverse * value_coef * slope
    mlp.backward(params, critic_offset, critic, rows, work, 0, hidden, delta, spare, kind, grad, critic_offset)
    stats[SAMPLES] += rows


def work_floats(rows: int, actor: tuple[int, ...], critic: tuple[int, ...]) -> int:
    """Floats of workspace that `chunk_gradients`, a rollout or an evaluation of `rows` rows needs."""
    depth = max(len(actor), len(critic))
    padded = [tuple(sizes[1:]) + (0,) * (depth - len(sizes)) for sizes in (actor, critic)]
    widths = [max(pair) for pair in zip(*padded, strict=True)]
    return rows * (actor[0] + sum(widths) + 2 * max(widths))


@kernel
def update(
    rank: Any,
    n_ranks: Any,
    barrier_state: Any,
    data: Any,
    net: Any,
    n_actions: Any,
    epochs: Any,
    minibatch: Any,
    chunk_rows: Any,
    normalise: Any,
    coefs: Any,
    optimizer: Any,
    target_kl: Any,
    moments: Any,
    order: Any,
    rng_state: Any,
    grads: Any,
    squares: Any,
    stats: Any,
    totals: Any,
    works: Any,
) -> Any:
    """Run all epochs on all ranks; return the number of optimizer steps done so far.

    `optimizer` = (learning rate, beta1, beta2, epsilon, maximal gradient norm, steps done before); `moments` = Adam's (mean, square);
    `grads` (chunks, params) float32; `stats` (chunks, 8) and `totals` (8,) float64; `order` (samples,) int64 is any permutation.
    """
    params = net[0]
    rate, beta1, beta2, eps, max_norm, step = optimizer
    n_samples = order.shape[0]
    n_blocks = squares.shape[0]
    work = works[rank]
    stopped = False
    for _ in range(epochs):
        if rank == 0:
            _shuffle(order, rng_state)
        meet(barrier_state, n_ranks)
        for start in range(0, n_samples, minibatch):
            size = min(minibatch, n_samples - start)
            chunks = -(-size // chunk_rows)
            centre = (_F(0.0), _F(1.0))
            if normalise and size > 1:
                centre = _advantage_moments(data[4], order, start, size)
            for c in range(rank, chunks, n_ranks):
                first = c * chunk_rows
                row_stats = stats[c]
                for k in range(N_STATS):
                    row_stats[k] = 0.0
                rows = min(chunk_rows, size - first)
                chunk_gradients(
                    data,
                    order,
                    start + first,
                    rows,
                    _F(1.0 / size),
                    centre,
                    net,
                    n_actions,
                    coefs,
                    work,
                    grads[c],
                    row_stats,
                )
            meet(barrier_state, n_ranks)
            if target_kl > 0.0:
                kl = 0.0
                for c in range(chunks):
                    kl += stats[c, KL]
                stopped = kl / size > _KL_SLACK * target_kl
                if stopped:
                    break
            for b in range(rank, n_blocks, n_ranks):
                squares[b] = optim.reduce_gradients(grads, chunks, b)
            meet(barrier_state, n_ranks)
            norm, scale = optim.clip_scale(squares, n_blocks, max_norm)
            step += 1
            for b in range(rank, n_blocks, n_ranks):
                optim.adam(params, grads[0], moments[0], moments[1], b, scale, rate, beta1, beta2, eps, step)
            if rank == 0:
                for c in range(chunks):
                    for k in range(N_STATS):
                        totals[k] += stats[c, k]
                totals[GRAD_NORM] += norm
                totals[MINIBATCHES] += 1.0
            meet(barrier_state, n_ranks)
        if stopped:
            break
    meet(barrier_state, n_ranks)
    return step
