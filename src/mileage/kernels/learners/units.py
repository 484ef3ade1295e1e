"""A network's update shared out by hidden units: every piece of them belongs to one thread.

Where a batch is small and a network large, cutting the batch leaves matrix products of few rows, and gradients that
are sent between cores and added up. Here a piece is a range of units of every hidden layer, with the weights that lead
away from them (rows that lie together in memory: a core fetches ahead of what it reads, and would take its neighbour's
lines), their gradients and their moments; of the first layer's weights, the columns that lead to them. Only
activations cross from core to core. How many pieces there are depends on the problem alone, and sums go over pieces in
order, so that results do not depend on the number of threads.

A frame that is learned this way has `FIELDS`. Networks lie in memory as in `mileage.kernels.learners.mlp`.
"""

from __future__ import annotations

import numpy as np

from mileage.kernels.definitions import n_params
from mileage.kernels.learners import mlp, optim
from mileage.kernels.machine import chunks
from mileage.kernels.machine.blas import sgemm
from mileage.kernels.machine.jit import inner
from mileage.kernels.machine.kinds import Count, FrameRecord, Index, Ptr32, PtrI64, Rank, Real32, Real64
from mileage.kernels.machine.pointers import f32, i64, shift
from mileage.kernels.machine.team import meet

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
    most = min(_MOST_PIECES, min(sizes[1:-1]) // _LEAST_UNITS, batch * n_params(sizes) // chunks.LEAST_WORK)
    return 1 << max(0, most.bit_length() - 1)


def layout(batch: int, sizes: tuple[int, ...], pieces: int) -> dict[str, int]:
    """Where the parts of the memory that ranks share start, and how many floats it has.

    Pieces' parts of the hidden layers from the second on, twice for two forward passes side by side; loss gradients by
    the hidden layers between the first and the last.
    """
    parts = pieces * batch * sum(sizes[2:-1])
    deltas = batch * sum(sizes[2:-2])
    return chunks.layout({"at_parts": parts, "at_more_parts": parts, "at_deltas": deltas}, "shared_floats")


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
