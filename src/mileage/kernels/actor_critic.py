"""The whole policy-gradient update in one call: shuffle, gather, forward, loss, backward, clip, Adam, for all epochs.

A minibatch is cut into chunks whose number depends on its size alone. Each chunk's gradient has a buffer of its own
and buffers are added in order, so that the result does not depend on which thread computed which chunk.

A piece of work is one network on one chunk, the actor's first: ranks take neighbouring pieces, and neighbouring blocks
of parameters, so that with two ranks one has the actor's weights and gradients in its cache and the other the critic's.

With an infinite clip range, one epoch and one minibatch this is the advantage actor-critic gradient. The loss as the
paper has it is `mileage.kernels.reference.losses.loss_terms`; here stand its derivatives.

The workspace of a rank, for one network on the rows of one chunk, in floats:

    0              rows * O                  work_floats / 2      work_floats * 3 / 4      work_floats
    | (rows, O)    | (rows, widths)          | delta              | spare                  |
    | observations | activations, by layer   | gradient by a layer, two ranges in turn     |

Off-policy corrections need both under the weights that are about to be updated. Rows are cut into pieces whose size
depends on nothing, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from mileage.kernels import heads, mlp, optim, random
from mileage.kernels.machine.frames import (
    Count,
    Flag,
    FrameArray,
    FrameRecord,
    Index,
    Ptr32,
    Ptr64,
    PtrI64,
    PtrU64,
    Rank,
    Real32,
    Real64,
    extended,
    f32,
    f64,
    frame_type,
    i64,
    pointer_to,
    shift,
    u8,
    u64,
)
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.memory import flush_denormals, restore
from mileage.kernels.machine.team import ENOUGH_ROWS, MOST_CHUNKS, meet
from mileage.kernels.random import KL_SLACK

_F = np.float32
# Columns of `stats` and `totals`: sums over samples, and over minibatches for the last three.
POLICY_LOSS, VALUE_LOSS, ENTROPY, KL, CLIPPED, GRAD_NORM, SAMPLES, MINIBATCHES = range(8)
N_STATS = 8

# An update ends after `frame.stage`. Until "loss", backward starts from whatever stands where the loss puts its slopes;
# training goes to the last stage, and the time of a stage is the difference between two updates that end earlier.
STAGES = ("loop and barriers", "shuffle", "gather", "forward", "backward", "loss", "clip", "optimizer")
_SHUFFLE, _GATHER, _FORWARD, _BACKWARD, _LOSS, _CLIP, LAST_STAGE = range(1, len(STAGES))

UPDATE = frame_type(
    mlp.ACTOR_AND_CRITIC,
    """
    obs: (samples, O) float32, normalised
    actions: (samples, A) float32
    log_probs values advantages returns: (samples,) float32
    order: (samples,) int64, any permutation, shuffled on by every epoch
    shuffle_rng: (1, 2) uint64
    adam_mean adam_square: (params,) float32
    grads: (chunks, params) float32
    squares: (blocks,) float32, sums of squares of gradients
    stats: (pieces, N_STATS) float64
    totals: (N_STATS,) float64, added to
    works: (ranks, work_floats) float32
    n_params n_samples epochs minibatch chunk_rows: int64
    normalise steps stage work_floats: int64, advantages or not; optimizer steps so far; where to end
    clip value_clip entropy_coef value_coef target_kl: float64, clip infinite, value_clip and target_kl 0 for none
    rate beta1 beta2 eps max_norm: float64, of Adam; gradients' norm, 0 for any
    """,
)
# The same with actions of several parts, or masks.
MASKED_UPDATE = extended(UPDATE, heads.FIELDS, "masks: (samples, M) uint8")


def n_chunks(minibatch: int) -> int:
    """Chunks that a minibatch of this size is cut into: by rows alone, unlike batches of `machine.chunks`."""
    return min(MOST_CHUNKS, max(1, minibatch // ENOUGH_ROWS))


def n_pieces(minibatch: int) -> int:
    """Pieces of work in a minibatch of this size, each for one rank: two networks on every chunk."""
    return 2 * n_chunks(minibatch)


@inner
def _shuffle(order: PtrI64, n: Count, rng_state: PtrU64) -> None:
    """Permute in place (Fisher and Yates)."""
    for last in range(n - 1, 0, -1):
        other = random.integers(rng_state, last + 1)
        kept = order[last]
        order[last] = order[other]
        order[other] = kept


@inner
def _advantage_moments(advantages: Ptr32, order: PtrI64, size: Count) -> tuple[Real32, Real32]:
    """Mean and inverse standard deviation of a minibatch's advantages."""
    total = 0.0
    for i in range(size):
        total += advantages[order[i]]
    mean = total / size
    squares = 0.0
    for i in range(size):
        difference = advantages[order[i]] - mean
        squares += difference * difference
    return _F(mean), _F(1.0 / (math.sqrt(squares / max(size - 1, 1)) + 1e-8))


@inner
def _policy_factor(log_ratio: Real32, advantage: Real32, clip: Real32, stats: Ptr64) -> Real32:
    """Derivative of the clipped surrogate loss by the log-probability; adds to the statistics."""
    ratio = _F(math.exp(log_ratio))
    low, high = _F(1.0) - clip, _F(1.0) + clip
    inside = min(max(ratio, low), high)
    stats[POLICY_LOSS] -= min(ratio * advantage, inside * advantage)
    stats[KL] += ratio - _F(1.0) - log_ratio
    stats[CLIPPED] += 1.0 if ratio < low or ratio > high else 0.0
    if (advantage > _F(0.0) and ratio > high) or (advantage < _F(0.0) and ratio < low):
        return _F(0.0)
    return -advantage * ratio


@inner
def _categorical_slopes(
    logits: Ptr32, n: Count, action: Index, old: Real32, advantage: Real32, clip: Real32, entropy_coef: Real32,
    weight: Real32, out: Ptr32, stats: Ptr64,
) -> None:  # fmt: skip
    """Loss gradient by the logits of one sample, times `weight`, into `out`."""
    top = logits[0]
    for k in range(1, n):
        top = max(top, logits[k])
    total = _F(0.0)
    for k in range(n):
        out[k] = _F(math.exp(logits[k] - top))
        total += out[k]
    normaliser, inverse = top + _F(math.log(total)), _F(1.0) / total
    entropy = _F(0.0)
    for k in range(n):
        out[k] *= inverse
        entropy -= out[k] * (logits[k] - normaliser)
    factor = _policy_factor(logits[action] - normaliser - old, advantage, clip, stats)
    stats[ENTROPY] += entropy
    for k in range(n):
        chosen = _F(1.0) if k == action else _F(0.0)
        slope = entropy_coef * out[k] * (logits[k] - normaliser + entropy)
        out[k] = weight * (factor * (chosen - out[k]) + slope)


@inner
def _gaussian_slopes(
    mean: Ptr32, log_std: Ptr32, n: Count, action: Ptr32, old: Real32, advantage: Real32, clip: Real32,
    entropy_coef: Real32, weight: Real32, out: Ptr32, log_std_grad: Ptr32, stats: Ptr64,
) -> None:  # fmt: skip
    """Loss gradient by the means of one sample, times `weight`, into `out`; that by the log deviations is added."""
    log_prob = _F(0.0)
    entropy = _F(0.0)
    for k in range(n):
        out[k] = (action[k] - mean[k]) * _F(math.exp(-log_std[k]))
        log_prob -= _F(0.5) * out[k] * out[k] + log_std[k] + heads.HALF_LOG_TWO_PI
        entropy += log_std[k] + _F(0.5) + heads.HALF_LOG_TWO_PI
    factor = _policy_factor(log_prob - old, advantage, clip, stats)
    stats[ENTROPY] += entropy
    for k in range(n):
        z = out[k]
        out[k] = weight * factor * z * _F(math.exp(-log_std[k]))
        log_std_grad[k] += weight * (factor * (z * z - _F(1.0)) - entropy_coef)


@inner
def _value_slope(value: Real32, old: Real32, target: Real32, clip: Real32, stats: Ptr64) -> Real32:
    """Derivative of the squared value error, clipped around the old value where `clip` > 0; adds to the statistics."""
    error = value - target
    if clip > _F(0.0):
        moved = old + min(max(value - old, -clip), clip)
        if (moved - target) * (moved - target) > error * error:
            stats[VALUE_LOSS] += (moved - target) * (moved - target)
            return _F(2.0) * (moved - target) if abs(value - old) < clip else _F(0.0)
    stats[VALUE_LOSS] += error * error
    return _F(2.0) * error


@inner
def _slopes_of_parts(
    frame: FrameRecord, order: PtrI64, rows: Count, weight: Real32, centre: Real32, inverse: Real32, head: Ptr32,
    delta: Ptr32, grads: Ptr32, stats: Ptr64,
) -> None:  # fmt: skip
    """`_policy_slopes` of actions in several parts, among what the masks allow."""
    width, params = i64(frame.actor)[frame.n_actor - 1], f32(frame.params)
    log_std, log_std_grad = shift(params, frame.log_std_offset), shift(grads, frame.log_std_offset)
    for k in range(frame.n_params - frame.log_std_offset):
        log_std_grad[k] = _F(0.0)
    clip, entropy_coef = _F(frame.clip), _F(frame.entropy_coef)
    for i in range(rows):
        sample = order[i]
        advantage = (f32(frame.advantages)[sample] - centre) * inverse
        action = shift(f32(frame.actions), sample * frame.action_size)
        mask, out = shift(u8(frame.masks), sample * frame.n_choices), shift(delta, i * width)
        log_prob, entropy = heads.log_probs(frame, shift(head, i * width), log_std, mask, action, out)
        factor = _policy_factor(log_prob - f32(frame.log_probs)[sample], advantage, clip, stats)
        stats[ENTROPY] += entropy
        heads.slopes(frame, log_std, action, factor, entropy_coef, weight, out, log_std_grad)


@inner(masked=_slopes_of_parts)
def _policy_slopes(
    frame: FrameRecord, order: PtrI64, rows: Count, weight: Real32, centre: Real32, inverse: Real32, head: Ptr32,
    delta: Ptr32, grads: Ptr32, stats: Ptr64,
) -> None:  # fmt: skip
    """Gradient of the policy loss by the actor's output `head`, into `delta`, and by the log deviations."""
    width, params = i64(frame.actor)[frame.n_actor - 1], f32(frame.params)
    log_std, log_std_grad = shift(params, frame.log_std_offset), shift(grads, frame.log_std_offset)
    for k in range(frame.n_params - frame.log_std_offset):
        log_std_grad[k] = _F(0.0)
    clip, entropy_coef = _F(frame.clip), _F(frame.entropy_coef)
    for i in range(rows):
        sample = order[i]
        advantage = (f32(frame.advantages)[sample] - centre) * inverse
        old = f32(frame.log_probs)[sample]
        action = shift(f32(frame.actions), sample * frame.action_size)
        row, out = shift(head, i * width), shift(delta, i * width)
        if frame.n_actions > 0:
            _categorical_slopes(row, width, int(action[0]), old, advantage, clip, entropy_coef, weight, out, stats)
        else:
            _gaussian_slopes(
                row, log_std, width, action, old, advantage, clip, entropy_coef, weight, out, log_std_grad, stats
            )


@inner
def _value_slopes(
    frame: FrameRecord, order: PtrI64, rows: Count, weight: Real32, value: Ptr32, delta: Ptr32, stats: Ptr64
) -> None:
    """Gradient of the value loss by the critic's output `value`, into `delta`."""
    clip, factor = _F(frame.value_clip), weight * _F(frame.value_coef)
    for i in range(rows):
        sample = order[i]
        target = f32(frame.returns)[sample]
        delta[i] = factor * _value_slope(value[i], f32(frame.values)[sample], target, clip, stats)


@inner
def _scratch(frame: FrameRecord, work: Ptr32) -> tuple[Ptr32, Ptr32]:
    """Both scratch ranges for a backward pass: delta, which starts as the gradient by the output, and spare."""
    delta = shift(work, frame.work_floats // 2)
    return delta, shift(delta, frame.work_floats // 4)


@inner
def _piece(
    frame: FrameRecord, order: PtrI64, rows: Count, weight: Real32, centre: Real32, inverse: Real32, work: Ptr32,
    grads: Ptr32, stats: Ptr64, of_actor: Flag,
) -> None:  # fmt: skip
    """Gradient of one network's loss over the samples `order[:rows]`, times `weight`, into its part of `grads`."""
    size, stage, kind, params, slopes = frame.obs_size, frame.stage, frame.activation, f32(frame.params), grads
    sizes, n = i64(frame.actor), frame.n_actor
    if not of_actor:
        sizes, n = i64(frame.critic), frame.n_critic
        params, slopes = shift(params, frame.critic_offset), shift(grads, frame.critic_offset)
    for k in range(N_STATS):
        stats[k] = 0.0
    for i in range(rows):
        obs = shift(f32(frame.obs), order[i] * size)
        for k in range(size):
            work[i * size + k] = obs[k]
    hidden = shift(work, rows * size)
    delta, spare = _scratch(frame, work)
    if stage >= _FORWARD:
        head = mlp.forward(params, sizes, n, rows, work, hidden, kind)
        if stage >= _LOSS and of_actor:
            _policy_slopes(frame, order, rows, weight, centre, inverse, head, delta, grads, stats)
            stats[SAMPLES] = rows
        elif stage >= _LOSS:
            _value_slopes(frame, order, rows, weight, head, delta, stats)
    if stage >= _BACKWARD:
        mlp.backward(params, sizes, n, rows, work, hidden, delta, spare, kind, slopes)


@inner
def _too_far(frame: FrameRecord, chunks: Count, size: Count) -> Flag:
    """Whether the policy has moved beyond the KL target."""
    kl = 0.0
    for c in range(chunks):
        kl += f64(frame.stats)[c * N_STATS + KL]
    return frame.target_kl > 0.0 and kl / size > KL_SLACK * frame.target_kl


@inner
def _add_totals(frame: FrameRecord, chunks: Count, norm: Real64) -> None:
    totals, stats = f64(frame.totals), f64(frame.stats)
    for k in range(2 * chunks * N_STATS):
        totals[k % N_STATS] += stats[k]
    totals[GRAD_NORM] += norm
    totals[MINIBATCHES] += 1.0


@inner
def _minibatch(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, order: PtrI64, size: Count, step: Index,
    work: Ptr32,
) -> Flag:  # fmt: skip
    """One optimizer step on the samples `order[:size]`; returns False if the KL target ends the update instead."""
    stage, chunk_rows, n_params = frame.stage, frame.chunk_rows, frame.n_params
    chunks = (size + chunk_rows - 1) // chunk_rows
    grads, squares = f32(frame.grads), f32(frame.squares)
    centre, inverse = _F(0.0), _F(1.0)
    if frame.normalise > 0 and size > 1 and stage >= _LOSS:
        centre, inverse = _advantage_moments(f32(frame.advantages), order, size)
    pieces = 2 * chunks if stage >= _GATHER else 0
    for piece in range(rank * pieces // n_ranks, (rank + 1) * pieces // n_ranks):
        c = piece % chunks
        first = c * chunk_rows
        rows = min(chunk_rows, size - first)
        stats = shift(f64(frame.stats), piece * N_STATS)
        _piece(
            frame, shift(order, first), rows, _F(1.0 / size), centre, inverse, work, shift(grads, c * n_params), stats,
            piece < chunks,
        )  # fmt: skip
    if frame.target_kl > 0.0:
        meet(barrier, n_ranks)
        if stage >= _LOSS and _too_far(frame, chunks, size):
            return False
    clipped = n_params if stage >= _CLIP else 0
    norm, scale = optim.clip_gradients(rank, n_ranks, barrier, grads, clipped, chunks, squares, frame.max_norm)
    if stage >= LAST_STAGE:
        optim.descend(
            rank, n_ranks, f32(frame.params), grads, f32(frame.adam_mean), f32(frame.adam_square), n_params, scale,
            frame.rate, frame.beta1, frame.beta2, frame.eps, step,
        )  # fmt: skip
        if rank == 0:
            _add_totals(frame, chunks, norm)
    meet(barrier, n_ranks)
    return True


def work_floats(rows: int, *networks: tuple[int, ...]) -> int:
    """Floats of workspace per rank: half for input and activations, a quarter for each of two scratch ranges."""
    half = max(max(rows * sum(sizes), 2 * rows * max(sizes[1:])) for sizes in networks)
    return 2 * (-(-half // 32) * 32)


@kernel
def update(rank: Rank, n_ranks: Count, barrier: PtrI64, record: FrameArray) -> Count:
    """Run all epochs on all ranks (frame `UPDATE`); return the number of optimizer steps done so far."""
    mode = flush_denormals()
    frame = record[0]
    meeting = pointer_to(barrier)
    n_samples, minibatch, step = frame.n_samples, frame.minibatch, frame.steps
    order = i64(frame.order)
    work = shift(f32(frame.works), rank * frame.work_floats)
    going = True
    for _ in range(frame.epochs):
        if going:
            if rank == 0 and frame.stage >= _SHUFFLE:
                _shuffle(order, n_samples, u64(frame.shuffle_rng))
            meet(meeting, n_ranks)
            for start in range(0, n_samples, minibatch):
                if going:
                    size = min(minibatch, n_samples - start)
                    going = _minibatch(frame, rank, n_ranks, meeting, shift(order, start), size, step + 1, work)
                    step += 1 if going else 0
    meet(meeting, n_ranks)
    restore(mode)
    return step


# --- What a policy says about transitions that another one made: log-probabilities of their actions, and values ---
# Rows of one piece of work: enough for matrix products to be worth their call.
PIECE_ROWS = 128

SCORE = frame_type(
    mlp.ACTOR_AND_CRITIC,
    """
    obs: (n_valued, O) float32, normalised; the first `n_scored` have actions
    actions: (n_scored, A) float32
    log_probs: (n_scored,) float32, written
    values: (n_valued,) float32, written
    works: (ranks, work_floats) float32
    n_scored n_valued work_floats: int64
    """,
)
# The same with actions of several parts, or masks.
MASKED_SCORE = extended(SCORE, heads.FIELDS, "masks: (n_scored, M) uint8")


def pieces(n_valued: int) -> int:
    """Pieces of work that `n_valued` rows are cut into."""
    return -(-n_valued // PIECE_ROWS)


def scores_work_floats(*networks: tuple[int, ...]) -> int:
    """Floats of workspace per rank: the activations of a piece."""
    return PIECE_ROWS * max(sum(sizes[1:]) for sizes in networks)


@inner
def _gaussian_log_prob(mean: Ptr32, log_std: Ptr32, n: Count, action: Ptr32) -> Real32:
    """Log-density of `action` (n,) under independent Gaussians."""
    log_prob = _F(0.0)
    for k in range(n):
        z = (action[k] - mean[k]) * _F(math.exp(-log_std[k]))
        log_prob -= _F(0.5) * z * z + log_std[k] + heads.HALF_LOG_TWO_PI
    return log_prob


@inner
def _log_prob_of_parts(frame: FrameRecord, head: Ptr32, width: Count, row: Index) -> Real32:
    """`_log_prob` among what the masks allow; overwrites `head`."""
    action = shift(f32(frame.actions), row * frame.action_size)
    mask, log_std = shift(u8(frame.masks), row * frame.n_choices), shift(f32(frame.params), frame.log_std_offset)
    log_prob, _ = heads.log_probs(frame, head, log_std, mask, action, head)
    return log_prob


@inner(masked=_log_prob_of_parts)
def _log_prob(frame: FrameRecord, head: Ptr32, width: Count, row: Index) -> Real32:
    """Log-probability of the action in a row of the rollout, whose actor's output is `head` (width,)."""
    action = shift(f32(frame.actions), row * frame.action_size)
    if frame.n_actions > 0:
        return head[int(action[0])] - heads.log_normaliser(head, width)
    return _gaussian_log_prob(head, shift(f32(frame.params), frame.log_std_offset), width, action)


@inner
def _scores_piece(frame: FrameRecord, first: Index, rows: Count, work: Ptr32) -> None:
    """Values of `rows` rows from `first` on, and log-probabilities of those that have actions."""
    params, x = f32(frame.params), shift(f32(frame.obs), first * frame.obs_size)
    critic = shift(params, frame.critic_offset)
    value = mlp.forward(critic, i64(frame.critic), frame.n_critic, rows, x, work, frame.activation)
    for i in range(rows):
        f32(frame.values)[first + i] = value[i]
    scored = min(rows, frame.n_scored - first)
    if scored > 0:
        actor = i64(frame.actor)
        width = actor[frame.n_actor - 1]
        head = mlp.forward(params, actor, frame.n_actor, scored, x, work, frame.activation)
        for i in range(scored):
            f32(frame.log_probs)[first + i] = _log_prob(frame, shift(head, i * width), width, first + i)


@kernel
def score(rank: Rank, n_ranks: Count, barrier: PtrI64, record: FrameArray) -> None:
    """Score all rows (frame `SCORE`); `works` holds `work_floats` float32 for each rank."""
    mode = flush_denormals()
    frame = record[0]
    work = shift(f32(frame.works), rank * frame.work_floats)
    for first in range(rank * PIECE_ROWS, frame.n_valued, n_ranks * PIECE_ROWS):
        _scores_piece(frame, first, min(PIECE_ROWS, frame.n_valued - first), work)
    meet(pointer_to(barrier), n_ranks)
    restore(mode)
