"""Deep Q-learning in one call: double, dueling, n-step, prioritised; updates are shared out by hidden units.

Targets bootstrap from the target network at the online network's choice (van Hasselt et al., 2016,
arXiv:1509.06461) or at its own; a dueling head holds the state's value first and the actions' advantages after it
(Wang et al., 2016, arXiv:1511.06581). The loss is Huber's. Threads share the network by hidden units
(below): results do not depend on their number. The target network stands still for many updates: what
it says of all their samples is computed before them, as matrix products of many rows are faster than those of few.

Where a batch is small and a network large, cutting the batch leaves matrix products of few rows, and gradients that
are sent between cores and added up. Here a piece is a range of units of every hidden layer, with the weights that lead
away from them (rows that lie together in memory: a core fetches ahead of what it reads, and would take its neighbour's
lines), their gradients and their moments; of the first layer's weights, the columns that lead to them. Only
activations cross from core to core. How many pieces there are depends on the problem alone, and sums go over pieces in
order, so that results do not depend on the number of threads.

A frame that is learned this way has `FIELDS`. Networks lie in memory as in `mileage.kernels.mlp`.
"""

from __future__ import annotations

import numpy as np

from mileage.kernels import heads, mlp, optim, random
from mileage.kernels.machine import team
from mileage.kernels.machine.blas import sgemm
from mileage.kernels.machine.frames import (
    Count,
    FrameArray,
    FrameRecord,
    Index,
    Ptr32,
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
    shift,
    u8,
    u64,
)
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.memory import flush_denormals, restore
from mileage.kernels.machine.team import meet
from mileage.kernels.random import n_params

# --- A network's update shared out by hidden units: every piece of them belongs to one thread ---
_F = np.float32
# Smaller pieces make matrix products that spend their time rearranging numbers.
_LEAST_UNITS = 32
_MOST_PIECES = 16
_SQUARES, _STEP = 0, 1
FIELDS = """
    params target_params grads adam_mean adam_square: (n_params,) float32
    sizes: (n_sizes,) int64, widths, inputs first
    squares: (pieces,) float32, sums of squares of gradients
    shared: (floats,) float32, what ranks send each other, in the parts of `layout`
    n_params n_sizes pieces batch activation at_parts at_more_parts at_deltas: int64
    rate beta1 beta2 eps max_norm: float64, of Adam; gradients' norm, 0 for any
"""


def n_pieces(batch: int, sizes: tuple[int, ...]) -> int:
    """Pieces that a network with these widths is cut into: a power of two, so that threads have equal shares."""
    most = min(_MOST_PIECES, min(sizes[1:-1]) // _LEAST_UNITS, batch * n_params(sizes) // team.LEAST_WORK)
    return 1 << max(0, most.bit_length() - 1)


def units_layout(batch: int, sizes: tuple[int, ...], pieces: int) -> dict[str, int]:
    """Where the parts of the memory that ranks share start, and how many floats it has.

    Pieces' parts of the hidden layers from the second on, twice for two forward passes side by side; loss gradients by
    the hidden layers between the first and the last.
    """
    parts = pieces * batch * sum(sizes[2:-1])
    deltas = batch * sum(sizes[2:-2])
    return team.layout({"at_parts": parts, "at_more_parts": parts, "at_deltas": deltas}, "shared_floats")


def own_floats(batch: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Floats of a rank's own memory for `hidden` of `forward`, and for `delta` of `backward`."""
    return batch * sum(sizes[1:-1]), 2 * batch * max(sizes[1:-1])


@inner
def _first(units: Count, piece: Index, pieces: Count) -> Index:
    """First unit of a piece."""
    return units * piece // pieces


@inner(fastmath=True)
def _add_parts(parts: Ptr32, n: Count, pieces: Count, out: Ptr32) -> None:
    """Write the sum of `pieces` ranges of `n` floats each, at least two, to `out`."""
    other = shift(parts, n)
    for i in range(n):
        out[i] = parts[i] + other[i]
    for p in range(2, pieces):
        other = shift(parts, p * n)
        for i in range(n):
            out[i] += other[i]


@inner
def forward(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, x: Ptr32, hidden: Ptr32, parts: Ptr32, out: Ptr32
) -> None:
    """Write the network's output (batch, sizes[-1]) for `x` (batch, sizes[0]) to `out`.

    `hidden` and `out` are the rank's own: all ranks end with the same, as adding up the pieces' `parts` of a layer, and
    the first and the last one whole, costs little. `parts` is shared, and free again after two more meetings.
    """
    sizes, rows, pieces, kind = i64(frame.sizes), frame.batch, frame.pieces, frame.activation
    inputs, outputs, weights = sizes[0], sizes[1], f32(frame.params)
    sgemm(0, 0, rows, outputs, inputs, x, inputs, weights, outputs, hidden, outputs)
    mlp.add_bias(hidden, rows, outputs, outputs, shift(weights, inputs * outputs), kind)
    source, weights = hidden, shift(weights, inputs * outputs + outputs)
    for layer in range(1, frame.n_sizes - 2):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        target = shift(source, rows * inputs)
        for p in range(rank, pieces, n_ranks):
            at = _first(inputs, p, pieces)
            n, part = _first(inputs, p + 1, pieces) - at, shift(parts, p * rows * outputs) if pieces > 1 else target
            sgemm(
                0, 0, rows, outputs, n, shift(source, at), inputs, shift(weights, at * outputs), outputs, part, outputs
            )
        if pieces > 1:
            meet(barrier, n_ranks)
            _add_parts(parts, rows * outputs, pieces, target)
            parts = shift(parts, pieces * rows * outputs)
        biases = shift(weights, inputs * outputs)
        mlp.add_bias(target, rows, outputs, outputs, biases, kind)
        source, weights = target, shift(biases, outputs)
    inputs, outputs = sizes[frame.n_sizes - 2], sizes[frame.n_sizes - 1]
    sgemm(0, 0, rows, outputs, inputs, source, inputs, weights, outputs, out, outputs)
    mlp.add_bias(out, rows, outputs, outputs, shift(weights, inputs * outputs), -1)


@inner
def _weights_gradient(
    frame: FrameRecord, rank: Rank, n_ranks: Count, layer: Index, weights: Index, source: Ptr32, delta: Ptr32
) -> None:
    """Gradient by the weights away from a rank's units of a hidden layer, and by the biases after them."""
    sizes, rows, pieces, grads = i64(frame.sizes), frame.batch, frame.pieces, shift(f32(frame.grads), weights)
    inputs, outputs = sizes[layer], sizes[layer + 1]
    for p in range(rank, pieces, n_ranks):
        at = _first(inputs, p, pieces)
        n, out = _first(inputs, p + 1, pieces) - at, shift(grads, at * outputs)
        sgemm(1, 0, n, outputs, rows, shift(source, at), inputs, delta, outputs, out, outputs)
        if p == pieces - 1:
            mlp.column_sums(delta, rows, outputs, outputs, shift(grads, inputs * outputs))


@inner
def backward(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, x: Ptr32, hidden: Ptr32, slopes: Ptr32,
    delta: Ptr32,
) -> None:  # fmt: skip
    """Write the gradient of every parameter to `grads`; each piece's is its rank's alone.

    `slopes` (batch, sizes[-1]) is the loss gradient by the output; it, `hidden` as `forward` left it and the scratch
    memory `delta` are the rank's own.
    """
    sizes, rows, pieces, kind = i64(frame.sizes), frame.batch, frame.pieces, frame.activation
    params, deltas, last = f32(frame.params), shift(f32(frame.shared), frame.at_deltas), frame.n_sizes - 2
    inputs, outputs = sizes[last], sizes[last + 1]
    weights, activations = frame.n_params - outputs - inputs * outputs, 0
    for layer in range(1, last):
        activations += rows * sizes[layer]
    source, spare = shift(hidden, activations), shift(delta, rows * inputs)
    _weights_gradient(frame, rank, n_ranks, last, weights, source, slopes)
    sgemm(0, 1, rows, inputs, outputs, slopes, outputs, shift(params, weights), outputs, delta, inputs)
    mlp.through_activation(delta, source, 1, rows * inputs, 0, kind)
    for step in range(last - 1):
        layer = last - 1 - step
        inputs, outputs = sizes[layer], sizes[layer + 1]
        weights -= inputs * outputs + outputs
        activations -= rows * inputs
        source = shift(hidden, activations)
        _weights_gradient(frame, rank, n_ranks, layer, weights, source, delta)
        # Of the first layer a rank needs its own units alone, of the others all.
        target = spare if layer == 1 else deltas
        for p in range(rank, pieces, n_ranks):
            at = _first(inputs, p, pieces)
            n, away = _first(inputs, p + 1, pieces) - at, shift(params, weights + at * outputs)
            sgemm(0, 1, rows, n, outputs, delta, outputs, away, outputs, shift(target, at), inputs)
            mlp.through_activation(shift(target, at), shift(source, at), rows, n, inputs, kind)
        if layer > 1:
            meet(barrier, n_ranks)
            deltas = shift(deltas, rows * inputs)
        delta = target
    inputs, outputs, grads = sizes[0], sizes[1], f32(frame.grads)
    for p in range(rank, pieces, n_ranks):
        at = _first(outputs, p, pieces)
        n, mine, out = _first(outputs, p + 1, pieces) - at, shift(delta, at), shift(grads, at)
        sgemm(1, 0, inputs, n, rows, x, inputs, mine, outputs, out, outputs)
        mlp.column_sums(mine, rows, n, outputs, shift(out, inputs * outputs))


@inner
def _on_range(
    frame: FrameRecord, job: Count, at: Index, n: Count, scale: Real32, length: Real32, unbias: Real32, tau: Real64
) -> Real64:
    """Do a job on the `n` parameters from `at` on; return their gradients' sum of squares if that is the job."""
    total = 0.0
    for first in range(at, at + n, optim.BLOCK):
        size, grads = min(optim.BLOCK, at + n - first), shift(f32(frame.grads), first)
        if job == _SQUARES:
            total += optim.square_sum(grads, size)
        else:
            params = shift(f32(frame.params), first)
            optim.adam_range(
                params, grads, shift(f32(frame.adam_mean), first), shift(f32(frame.adam_square), first), size, scale,
                length, unbias, frame.beta1, frame.beta2, frame.eps,
            )  # fmt: skip
            if tau > 0.0:
                optim.polyak_range(shift(f32(frame.target_params), first), params, size, tau)
    return total


@inner
def _on_piece(
    frame: FrameRecord, piece: Index, job: Count, scale: Real32, length: Real32, unbias: Real32, tau: Real64
) -> Real64:
    """Do a job on all parameters of a piece; return the sum of what it returns."""
    sizes, pieces = i64(frame.sizes), frame.pieces
    if pieces == 1:
        return _on_range(frame, job, 0, frame.n_params, scale, length, unbias, tau)
    outputs, total = sizes[1], 0.0
    at = _first(outputs, piece, pieces)
    n = _first(outputs, piece + 1, pieces) - at
    # The biases are one more row.
    for row in range(sizes[0] + 1):
        total += _on_range(frame, job, row * outputs + at, n, scale, length, unbias, tau)
    weights = (sizes[0] + 1) * outputs
    for layer in range(1, frame.n_sizes - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        at = _first(inputs, piece, pieces) * outputs
        # The biases after the weights are the last piece's.
        end = (inputs + 1 if piece == pieces - 1 else _first(inputs, piece + 1, pieces)) * outputs
        total += _on_range(frame, job, weights + at, end - at, scale, length, unbias, tau)
        weights += (inputs + 1) * outputs
    return total


@inner
def descend_and_follow(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, step: Index, tau: Real64
) -> None:
    """Clip the gradients, take an Adam step, and move `target_params` a share `tau` towards `params` (0: leave them).

    Waits once: for the other ranks' sums of squares, and until nobody reads the old parameters any more. A rank's own
    pieces are new when this returns, the others' after the next `meet`.
    """
    scale, sums = _F(1.0), f32(frame.squares)
    if frame.max_norm > 0.0:
        for p in range(rank, frame.pieces, n_ranks):
            sums[p] = _F(_on_piece(frame, p, _SQUARES, scale, scale, scale, 0.0))
    meet(barrier, n_ranks)
    if frame.max_norm > 0.0:
        _, scale = optim.clip_scale(sums, frame.pieces, frame.max_norm)
    length, unbias = optim.adam_lengths(frame.rate, frame.beta1, frame.beta2, step)
    for p in range(rank, frame.pieces, n_ranks):
        _on_piece(frame, p, _STEP, scale, length, unbias, tau)


# Entries of `totals`: sums over samples.
LOSS, Q_VALUE, SAMPLES = range(3)
N_STATS = 3

# An update ends after `frame.stage`, as in `actor_critic`.
STAGES = ("loop and barriers", "target", "forward and backward", "optimizer", "target network")
_TARGET, _GRADIENT, _OPTIMIZER, LAST_STAGE = range(1, len(STAGES))

# S = n_updates * batch samples, K actions.
DQN = frame_type(
    FIELDS,
    """
    obs next_obs: (S, O) float32
    actions rewards discounts weights: (S,) float32
    terminated: (S,) uint8
    td_errors: (S,) float32, receives value minus target
    next_q: (S, K) float32, receives the target network's values
    totals: (N_STATS,) float64, added to
    works: (ranks, work_floats) float32
    n_actions obs_size dueling double n_updates ahead_rows: int64
    steps stage target_every: int64, updates so far; where to end; updates between two target networks
    work_floats at_delta at_q at_slopes: int64, of a rank's own memory
    tau huber: float64, share by which the target network follows; where the loss turns linear
    """,
)
# The same with masks.
MASKED_DQN = extended(DQN, "masks: (S, K) uint8, what is possible in `next_obs`")
# Rows that the target network sees at a time: more are no faster.
AHEAD_ROWS = 128


def layout(batch: int, ahead_rows: int, sizes: tuple[int, ...], pieces: int) -> dict[str, int]:
    """Where the parts of a rank's own memory and of that which ranks share start, and how many floats both have."""
    hidden, delta = own_floats(batch, sizes)
    own = {"at_delta": hidden, "at_q": hidden + delta, "at_slopes": hidden + delta + 2 * batch * sizes[-1]}
    floats = max(own["at_slopes"] + batch * sizes[-1], ahead_rows * sum(sizes[1:]))
    return own | {"work_floats": -(-floats // 16) * 16} | units_layout(batch, sizes, pieces)


@inner
def _q_rows(frame: FrameRecord, head: Ptr32, rows: Count) -> Ptr32:
    """Action values: pointer to the first row; rows are `n_actions + dueling` apart.

    Turns rows of a dueling head (value, advantages) into action values in place, from their second entry on.
    """
    n = frame.n_actions
    if frame.dueling == 0:
        return head
    for i in range(rows):
        row = shift(head, i * (n + 1))
        mean = _F(0.0)
        for k in range(n):
            mean += row[1 + k]
        mean /= _F(n)
        for k in range(n):
            row[1 + k] += row[0] - mean
    return shift(head, 1)


@inner
def _next_values(frame: FrameRecord, rank: Rank, n_ranks: Count, first: Index, samples: Count, work: Ptr32) -> None:
    """Write `next_q`, the target network's action values, for `samples` samples from `first` on."""
    stride, n = frame.n_actions + frame.dueling, frame.n_actions
    block = min(frame.ahead_rows, (samples + frame.pieces - 1) // frame.pieces)
    for b in range(rank, (samples + block - 1) // block, n_ranks):
        start, rows = first + b * block, min(block, samples - b * block)
        head = mlp.forward(
            f32(frame.target_params), i64(frame.sizes), frame.n_sizes, rows,
            shift(f32(frame.next_obs), start * frame.obs_size), work, frame.activation,
        )  # fmt: skip
        q = _q_rows(frame, head, rows)
        for i in range(rows):
            for k in range(n):
                f32(frame.next_q)[(start + i) * n + k] = q[i * stride + k]


@inner
def _look_ahead(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, update: Index, step: Index, work: Ptr32
) -> None:
    """Before an update that meets a new target network, or the call's first one: see to all updates until the next."""
    since = (step - 1) % frame.target_every
    if update == 0 or since == 0:
        updates = min(frame.target_every - since, frame.n_updates - update)
        _next_values(frame, rank, n_ranks, update * frame.batch, updates * frame.batch, work)
        meet(barrier, n_ranks)


@inner
def _best_allowed(frame: FrameRecord, values: Ptr32, sample: Index) -> Index:
    """`_best` among what the mask allows."""
    return heads.parts_argmax(values, shift(u8(frame.masks), sample * frame.n_actions), frame.n_actions)


@inner(masked=_best_allowed)
def _best(frame: FrameRecord, values: Ptr32, sample: Index) -> Index:
    """The best action after a sample by its `values`."""
    return heads.argmax(values, frame.n_actions)


@inner
def _slopes(frame: FrameRecord, rank: Rank, first: Index, q: Ptr32, choosers: Ptr32, out: Ptr32) -> None:
    """Gradient of the weighted mean Huber loss by the network's output, for the samples from `first` on.

    `q` and `choosers` are action values of the observations and, for double learning, of those that follow. Every rank
    does this for itself; the first writes the temporal-difference errors and adds up `totals`.
    """
    stride, n, huber = frame.n_actions + frame.dueling, frame.n_actions, _F(frame.huber)
    loss, values = 0.0, 0.0
    for i in range(frame.batch):
        s = first + i
        next_q = shift(f32(frame.next_q), s * n)
        choice = _best(frame, shift(choosers, i * stride) if frame.double > 0 else next_q, s)
        alive = _F(0.0) if u8(frame.terminated)[s] else f32(frame.discounts)[s]
        action = int(f32(frame.actions)[s])
        value = q[i * stride + action]
        error = value - (f32(frame.rewards)[s] + alive * next_q[choice])
        size, weight = abs(error), f32(frame.weights)[s]
        slope = weight * min(max(error, -huber), huber) / _F(frame.batch)
        row = shift(out, i * stride)
        if frame.dueling > 0:
            row[0] = slope
        for k in range(n):
            chosen = _F(1.0) if k == action else _F(0.0)
            share = _F(1.0) / _F(n) if frame.dueling > 0 else _F(0.0)
            row[frame.dueling + k] = slope * (chosen - share)
        if rank == 0:
            f32(frame.td_errors)[s] = error
            loss += weight * (_F(0.5) * error * error if size <= huber else huber * (size - _F(0.5) * huber))
            values += value
    if rank == 0:
        totals = f64(frame.totals)
        totals[LOSS] += loss
        totals[Q_VALUE] += values
        totals[SAMPLES] += frame.batch


@inner
def _forward_and_back(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, first: Index, work: Ptr32
) -> None:
    """Write the gradient of the loss on the samples from `first` on, once `next_q` is there."""
    shared, obs = f32(frame.shared), shift(f32(frame.obs), first * frame.obs_size)
    q, slopes = shift(work, frame.at_q), shift(work, frame.at_slopes)
    choosers = shift(q, frame.batch * (frame.n_actions + frame.dueling))
    if frame.double > 0:
        next_obs, parts = shift(f32(frame.next_obs), first * frame.obs_size), shift(shared, frame.at_more_parts)
        forward(frame, rank, n_ranks, barrier, next_obs, work, parts, choosers)
        choosers = _q_rows(frame, choosers, frame.batch)
    forward(frame, rank, n_ranks, barrier, obs, work, shift(shared, frame.at_parts), q)
    _slopes(frame, rank, first, _q_rows(frame, q, frame.batch), choosers, slopes)
    backward(frame, rank, n_ranks, barrier, obs, work, slopes, shift(work, frame.at_delta))


@inner
def _update(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, start: Index, step: Index, work: Ptr32
) -> None:
    """One update on the samples from `start` on."""
    if frame.stage >= _TARGET:
        _look_ahead(frame, rank, n_ranks, barrier, start // frame.batch, step, work)
    if frame.stage >= _GRADIENT:
        _forward_and_back(frame, rank, n_ranks, barrier, start, work)
    if frame.stage >= _OPTIMIZER:
        tau = frame.tau if frame.stage >= LAST_STAGE and step % frame.target_every == 0 else 0.0
        descend_and_follow(frame, rank, n_ranks, barrier, step, tau)
    meet(barrier, n_ranks)


dqn_update = optim.update_kernel("dqn_update", _update)
"""Updates with a frame `DQN`."""

ACT = frame_type(
    """
    params: (n_params,) float32
    sizes: (n_sizes,) int64
    obs: (N, O) float32
    actions: (N,) int64
    action_rng: (N, 2) uint64
    works: (floats,) float32
    n_sizes n_actions obs_size activation dueling n_envs: int64
    epsilon: float64
    """
)
MASKED_ACT = extended(ACT, "masks: (N, K) uint8")


@inner
def _explore_allowed(frame: FrameRecord, values: Ptr32, i: Index, rng_state: PtrU64) -> Index:
    """`_explore` among what the mask allows."""
    n = frame.n_actions
    mask = shift(u8(frame.masks), i * n)
    choice = heads.parts_argmax(values, mask, n)
    if random.uniform01(rng_state) < _F(frame.epsilon):
        choice = heads.any_allowed(mask, n, rng_state)
    return choice


@inner(masked=_explore_allowed)
def _explore(frame: FrameRecord, values: Ptr32, i: Index, rng_state: PtrU64) -> Index:
    """The best action of environment `i` by its `values`, or a random one."""
    choice = heads.argmax(values, frame.n_actions)
    if random.uniform01(rng_state) < _F(frame.epsilon):
        choice = random.integers(rng_state, frame.n_actions)
    return choice


@kernel
def dqn_act(record: FrameArray) -> None:
    """Epsilon-greedy actions (N,) int64 for all environments (frame `ACT`)."""
    mode = flush_denormals()
    frame = record[0]
    rows, stride = frame.n_envs, frame.n_actions + frame.dueling
    head = mlp.forward(
        f32(frame.params), i64(frame.sizes), frame.n_sizes, rows, f32(frame.obs), f32(frame.works), frame.activation
    )
    for i in range(rows):
        rng_state = shift(u64(frame.action_rng), 2 * i)
        # The value of a dueling head moves all actions alike: the largest advantage is the largest action value.
        i64(frame.actions)[i] = _explore(frame, shift(head, i * stride + frame.dueling), i, rng_state)
    restore(mode)
