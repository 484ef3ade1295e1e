"""A network's update shared out by columns of its hidden layers: every piece of them belongs to one thread.

Where a batch is small and a network large, cutting the batch leaves matrix products of few rows, and gradients that
are sent between cores and added up. Here a piece is a range of columns of every hidden layer, with the weights that
lead to it, their gradients and their moments; the head's weights are cut by rows. Only activations cross from core to
core. How many pieces there are depends on the problem alone, and sums go over pieces in order, so that results do not
depend on the number of threads.

A frame that is learned this way has the fields `params`, `grads`, `adam_mean`, `adam_square`, `target_params` (all of
`n_params` float32), `squares` (pieces,) float32, `sizes` (`n_sizes`,) int64, `shared` float32 as `layout` says,
`pieces`, `batch`, `activation`, and Adam's. Networks lie in memory as in `mileage.kernels.mlp`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.kernels import mlp, optim
from mileage.kernels._blas import sgemm
from mileage.kernels._jit import inner
from mileage.kernels._pointers import f32, i64, shift
from mileage.kernels._team import meet

_F = np.float32
# Below this many multiplications per piece, meeting at a barrier costs more than a second thread brings.
_LEAST_WORK = 1_200_000
# Narrower pieces make matrix products that spend their time rearranging numbers.
_LEAST_COLUMNS = 32
_MOST_PIECES = 16
_SQUARES, _STEP = 0, 1


def n_pieces(batch: int, sizes: tuple[int, ...]) -> int:
    """Pieces that a network with these widths is cut into for a batch: a power of two, so that threads have equal shares."""
    most = min(_MOST_PIECES, min(sizes[1:-1]) // _LEAST_COLUMNS, batch * mlp.n_params(sizes) // _LEAST_WORK)
    return 1 << max(0, most.bit_length() - 1)


def layout(batch: int, sizes: tuple[int, ...], pieces: int) -> dict[str, int]:
    """Where the parts of the memory that threads share start, and how many floats it has.

    Twice, for two forward passes side by side: hidden layers from the second on, and the pieces' shares of the head.
    """
    parts = {
        "at_hidden": batch * sum(sizes[2:-1]),
        "at_more_hidden": batch * sum(sizes[2:-1]),
        "at_shares": pieces * batch * sizes[-1],
        "at_more_shares": pieces * batch * sizes[-1],
        "at_delta": batch * sizes[-2],
        "at_partial": pieces * batch * max(sizes[1:-1]),
        "at_more_partial": pieces * batch * max(sizes[1:-1]),
    }
    offsets, start = {}, 0
    for name, size in parts.items():
        offsets[name] = start
        start += -(-size // 16) * 16
    return offsets | {"shared_floats": start}


@inner
def _first(width: Any, piece: Any, pieces: Any) -> Any:
    """First column of a piece."""
    return width * piece // pieces


@inner
def forward(
    frame: Any, rank: Any, n_ranks: Any, barrier: Any, x: Any, own: Any, hidden: Any, shares: Any
) -> None:  # fmt: skip
    """Run the network on `x` (batch, sizes[0]); others' parts of the results are there after the next `meet`.

    `own` (batch, sizes[1]) receives the first hidden layer, which every rank computes whole as that is cheaper than
    sending it; `hidden` the others, one after the other; `shares` (pieces, batch, sizes[-1]) what each piece adds to the
    output.
    """
    sizes, rows, pieces, kind = i64(frame.sizes), frame.batch, frame.pieces, frame.activation
    layers = frame.n_sizes - 1
    inputs, outputs, weights = sizes[0], sizes[1], f32(frame.params)
    sgemm(0, 0, rows, outputs, inputs, x, inputs, weights, outputs, own, outputs)
    mlp.add_bias(own, rows, outputs, outputs, shift(weights, inputs * outputs), kind)
    source, target, weights = own, hidden, shift(weights, inputs * outputs + outputs)
    for layer in range(1, layers - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        if layer > 1:
            meet(barrier, n_ranks)
        biases = shift(weights, inputs * outputs)
        for p in range(rank, pieces, n_ranks):
            at = _first(outputs, p, pieces)
            n, out = _first(outputs, p + 1, pieces) - at, shift(target, at)
            sgemm(0, 0, rows, n, inputs, source, inputs, shift(weights, at), outputs, out, outputs)
            mlp.add_bias(out, rows, n, outputs, shift(biases, at), kind)
        source, target, weights = target, shift(target, rows * outputs), shift(biases, outputs)
    inputs, outputs = sizes[layers - 1], sizes[layers]
    for p in range(rank, pieces, n_ranks):
        at = _first(inputs, p, pieces)
        n, out = _first(inputs, p + 1, pieces) - at, shift(shares, p * rows * outputs)
        sgemm(0, 0, rows, outputs, n, shift(source, at), inputs, shift(weights, at * outputs), outputs, out, outputs)


@inner
def add_shares(frame: Any, shares: Any, out: Any) -> None:
    """Write the network's output (batch, sizes[-1]) to `out`: the head's biases and all pieces' shares."""
    outputs = i64(frame.sizes)[frame.n_sizes - 1]
    biases = shift(f32(frame.params), frame.n_params - outputs)
    for i in range(frame.batch):
        for k in range(outputs):
            total = biases[k]
            for p in range(frame.pieces):
                total += shares[(p * frame.batch + i) * outputs + k]
            out[i * outputs + k] = total


@inner(fastmath=True)
def _add_partials(partial: Any, rows: Any, width: Any, at: Any, n: Any, pieces: Any) -> None:
    """Add the columns from `at` on of all pieces' (rows, width) to those of the first piece."""
    for p in range(1, pieces):
        for i in range(rows):
            row, other = shift(partial, i * width + at), shift(partial, (p * rows + i) * width + at)
            for j in range(n):
                row[j] += other[j]


@inner
def backward(
    frame: Any, rank: Any, n_ranks: Any, barrier: Any, x: Any, own: Any, hidden: Any, slopes: Any
) -> None:  # fmt: skip
    """Write the gradient of every parameter to `grads`; each piece's is its rank's alone.

    `slopes` (batch, sizes[-1]) is the loss gradient by the output, of which every rank has a copy; the rest is as
    `forward` left it.
    """
    sizes, rows, pieces, kind = i64(frame.sizes), frame.batch, frame.pieces, frame.activation
    params, grads, shared = f32(frame.params), f32(frame.grads), f32(frame.shared)
    layers = frame.n_sizes - 1
    inputs, outputs = sizes[layers - 1], sizes[layers]
    weights, activations = frame.n_params - outputs - inputs * outputs, 0
    for layer in range(2, layers - 1):
        activations += rows * sizes[layer]
    source = shift(hidden, activations) if layers > 2 else own
    delta = shift(shared, frame.at_delta)
    for p in range(rank, pieces, n_ranks):
        at = _first(inputs, p, pieces)
        n, head = _first(inputs, p + 1, pieces) - at, weights + at * outputs
        sgemm(1, 0, n, outputs, rows, shift(source, at), inputs, slopes, outputs, shift(grads, head), outputs)
        if p == pieces - 1:
            mlp.column_sums(slopes, rows, outputs, outputs, shift(grads, weights + inputs * outputs))
        sgemm(0, 1, rows, n, outputs, slopes, outputs, shift(params, head), outputs, shift(delta, at), inputs)
        mlp.through_activation(shift(delta, at), shift(source, at), rows, n, inputs, kind)
    for step in range(layers - 1):
        layer = layers - 2 - step
        inputs, outputs = sizes[layer], sizes[layer + 1]
        weights -= inputs * outputs + outputs
        partial = shift(shared, frame.at_partial if step % 2 == 0 else frame.at_more_partial)
        if layer == 0:
            source = x
        elif layer == 1:
            source = own
        else:
            activations -= rows * inputs
            source = shift(hidden, activations)
        for p in range(rank, pieces, n_ranks):
            at = _first(outputs, p, pieces)
            n, share = _first(outputs, p + 1, pieces) - at, shift(partial, p * rows * inputs)
            mine, out = shift(delta, at), shift(grads, weights + at)
            sgemm(1, 0, inputs, n, rows, source, inputs, mine, outputs, out, outputs)
            mlp.column_sums(mine, rows, n, outputs, shift(out, inputs * outputs))
            if layer > 0:
                sgemm(0, 1, rows, inputs, n, mine, outputs, shift(params, weights + at), outputs, share, inputs)
        if layer > 0:
            meet(barrier, n_ranks)
            for p in range(rank, pieces, n_ranks):
                at = _first(inputs, p, pieces)
                n = _first(inputs, p + 1, pieces) - at
                _add_partials(partial, rows, inputs, at, n, pieces)
                mlp.through_activation(shift(partial, at), shift(source, at), rows, n, inputs, kind)
            delta = partial


@inner
def _on_range(frame: Any, job: Any, at: Any, n: Any, scale: Any, length: Any, unbias: Any, tau: Any) -> Any:
    """Do a job on the `n` parameters from `at` on; return their gradients' sum of squares if that is the job."""
    if job == _SQUARES:
        return optim.square_sum(shift(f32(frame.grads), at), n)
    params = shift(f32(frame.params), at)
    optim.adam_range(
        params, shift(f32(frame.grads), at), shift(f32(frame.adam_mean), at), shift(f32(frame.adam_square), at), n,
        scale, length, unbias, frame.beta1, frame.beta2, frame.eps,
    )  # fmt: skip
    if tau > 0.0:
        optim.polyak_range(shift(f32(frame.target_params), at), params, n, tau)
    return _F(0.0)


@inner
def _on_piece(frame: Any, piece: Any, job: Any, scale: Any, length: Any, unbias: Any, tau: Any) -> Any:
    """Do a job on all parameters of a piece; return the sum of what it returns."""
    total, sizes, pieces = 0.0, i64(frame.sizes), frame.pieces
    if pieces == 1:
        for b in range(optim.n_blocks(frame.n_params)):
            n = min(optim.BLOCK, frame.n_params - b * optim.BLOCK)
            total += _on_range(frame, job, b * optim.BLOCK, n, scale, length, unbias, tau)
        return _F(total)
    layers, weights = frame.n_sizes - 1, 0
    for layer in range(layers - 1):
        inputs, outputs = sizes[layer], sizes[layer + 1]
        at = _first(outputs, piece, pieces)
        n = _first(outputs, piece + 1, pieces) - at
        # The biases are one more row.
        for row in range(inputs + 1):
            total += _on_range(frame, job, weights + row * outputs + at, n, scale, length, unbias, tau)
        weights += (inputs + 1) * outputs
    inputs, outputs = sizes[layers - 1], sizes[layers]
    at = _first(inputs, piece, pieces) * outputs
    # The head's biases are the last piece's.
    end = inputs + 1 if piece == pieces - 1 else _first(inputs, piece + 1, pieces)
    total += _on_range(frame, job, weights + at, end * outputs - at, scale, length, unbias, tau)
    return _F(total)


@inner
def descend_and_follow(frame: Any, rank: Any, n_ranks: Any, barrier: Any, step: Any, tau: Any) -> None:
    """Clip the gradients, take an Adam step, and move `target_params` a share `tau` towards `params` (0: leave them).

    Waits once: for the other ranks' sums of squares, and until nobody reads the old parameters any more. A rank's own
    pieces are new when this returns, the others' after the next `meet`.
    """
    scale, sums = _F(1.0), f32(frame.squares)
    if frame.max_norm > 0.0:
        for p in range(rank, frame.pieces, n_ranks):
            sums[p] = _on_piece(frame, p, _SQUARES, scale, scale, scale, 0.0)
    meet(barrier, n_ranks)
    if frame.max_norm > 0.0:
        _, scale = optim.clip_scale(sums, frame.pieces, frame.max_norm)
    length, unbias = optim.adam_lengths(frame.rate, frame.beta1, frame.beta2, step)
    for p in range(rank, frame.pieces, n_ranks):
        _on_piece(frame, p, _STEP, scale, length, unbias, tau)
