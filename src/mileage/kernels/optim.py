"""Gradient reduction, clipping and Adam over flat parameter vectors, cut into fixed blocks.

Blocks are what keeps sums independent of the number of threads: each block's sum of squares is stored, and every
thread adds the stored sums in the same order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mileage.kernels.machine.frames import (
    Count,
    FrameArray,
    Index,
    Ptr32,
    PtrI64,
    Rank,
    Real32,
    Real64,
    f32,
    pointer_to,
    shift,
)
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.memory import flush_denormals, restore
from mileage.kernels.machine.team import meet

_F = np.float32
BLOCK = 1024


def adam_fields(rate: float, eps: float, max_norm: float) -> dict[str, float]:
    """The numbers of a frame that learns with Adam, with the betas that everybody uses."""
    return {"rate": rate, "beta1": 0.9, "beta2": 0.999, "eps": eps, "max_norm": max_norm}


@inner(fastmath=True)
def reduce_gradients(grads: Ptr32, n_params: Count, n_chunks: Count, block: Index) -> Real32:
    """Sum one block of the gradients `(chunks, params)` over chunks into row 0; return the block's sum of squares."""
    first = block * BLOCK
    size = min(BLOCK, n_params - first)
    total = shift(grads, first)
    for c in range(1, n_chunks):
        other = shift(total, c * n_params)
        for i in range(size):
            total[i] += other[i]
    squares = _F(0.0)
    for i in range(size):
        squares += total[i] * total[i]
    return squares


@inner
def clip_scale(squares: Ptr32, n_blocks: Count, max_norm: Real64) -> tuple[Real64, Real32]:
    """Gradient norm from the blocks' sums of squares, and the factor that clips it to `max_norm` (<= 0: none)."""
    total = 0.0
    for b in range(n_blocks):
        total += squares[b]
    norm = math.sqrt(total)
    scale = 1.0
    if max_norm > 0.0 and norm > max_norm:
        scale = max_norm / (norm + 1e-6)
    return norm, _F(scale)


@inner(fastmath=True)
def square_sum(values: Ptr32, n: Count) -> Real32:
    """Sum of squares of `n` float32."""
    total = _F(0.0)
    for i in range(n):
        total += values[i] * values[i]
    return total


@inner
def adam_lengths(rate: Real64, beta1: Real64, beta2: Real64, step: Index) -> tuple[Real32, Real32]:
    """Adam's step length and what its squares are multiplied with, both corrected for a start at 0, as float32."""
    length = _F(rate / (1.0 - math.pow(beta1, 1.0 * step)))
    return length, _F(1.0 / (1.0 - math.pow(beta2, 1.0 * step)))


@inner(fastmath=True)
def adam_range(
    params: Ptr32, grads: Ptr32, means: Ptr32, squares: Ptr32, n: Count, scale: Real32, length: Real32, unbias: Real32,
    beta1: Real64, beta2: Real64, eps: Real64,
) -> None:  # fmt: skip
    """One Adam step (Kingma and Ba, 2015) on `n` parameters, in place, with what `adam_lengths` returned."""
    b1, b2 = _F(beta1), _F(beta2)
    c1, c2 = _F(1.0 - beta1), _F(1.0 - beta2)
    small = _F(eps)
    for i in range(n):
        slope = grads[i] * scale
        mean = b1 * means[i] + c1 * slope
        square = b2 * squares[i] + c2 * slope * slope
        means[i] = mean
        squares[i] = square
        params[i] -= length * mean / (_F(math.sqrt(square * unbias)) + small)


@inner(fastmath=True)
def polyak_range(targets: Ptr32, params: Ptr32, n: Count, tau: Real64) -> None:
    """Move `n` parameters of the target network a share `tau` towards the parameters, in place."""
    share = _F(tau)
    for i in range(n):
        targets[i] += share * (params[i] - targets[i])


@inner
def adam(
    params: Ptr32, grads: Ptr32, means: Ptr32, squares: Ptr32, n_params: Count, block: Index, scale: Real32,
    rate: Real64, beta1: Real64, beta2: Real64, eps: Real64, step: Index,
) -> None:  # fmt: skip
    """One Adam step (Kingma and Ba, 2015) on one block of `params`, in place; `step` counts from 1."""
    first = block * BLOCK
    size = min(BLOCK, n_params - first)
    length, unbias = adam_lengths(rate, beta1, beta2, step)
    adam_range(
        shift(params, first), shift(grads, first), shift(means, first), shift(squares, first), size, scale, length,
        unbias, beta1, beta2, eps,
    )  # fmt: skip


@inner
def polyak(targets: Ptr32, params: Ptr32, n_params: Count, block: Index, tau: Real64) -> None:
    """Move one block of the target network a share `tau` towards the parameters, in place."""
    first = block * BLOCK
    polyak_range(shift(targets, first), shift(params, first), min(BLOCK, n_params - first), tau)


@inner
def n_blocks(n_params: Count) -> Count:
    """Blocks that `n_params` parameters are cut into."""
    return (n_params + BLOCK - 1) // BLOCK


@inner
def own_blocks(rank: Rank, n_ranks: Count, n_params: Count) -> tuple[Index, Index]:
    """First block of a rank, and the one after its last.

    Neighbouring blocks belong to one rank: a core fetches ahead of what it reads, and would take another's lines.
    """
    blocks = n_blocks(n_params)
    return rank * blocks // n_ranks, (rank + 1) * blocks // n_ranks


@inner
def clip_gradients(
    rank: Rank, n_ranks: Count, barrier: PtrI64, grads: Ptr32, n_params: Count, chunks: Count, sums: Ptr32,
    max_norm: Real64,
) -> tuple[Real64, Real32]:  # fmt: skip
    """Add up the chunks' gradients, blocks shared out over the ranks; returns their norm and what clips it.

    Waits twice: for the other ranks' gradients before, and for their sums of squares after.
    """
    first, last = own_blocks(rank, n_ranks, n_params)
    meet(barrier, n_ranks)
    for b in range(first, last):
        sums[b] = reduce_gradients(grads, n_params, chunks, b)
    meet(barrier, n_ranks)
    norm, scale = clip_scale(sums, n_blocks(n_params), max_norm)
    return norm, scale


@inner
def descend(
    rank: Rank, n_ranks: Count, params: Ptr32, grads: Ptr32, means: Ptr32, squares: Ptr32, n_params: Count,
    scale: Real32, rate: Real64, beta1: Real64, beta2: Real64, eps: Real64, step: Index,
) -> None:  # fmt: skip
    """Take an Adam step along what `clip_gradients` added up, scaled by what it returned.

    A rank's own blocks of `params` are new when this returns, the others' after the next `meet`.
    """
    first, last = own_blocks(rank, n_ranks, n_params)
    for b in range(first, last):
        adam(params, grads, means, squares, n_params, b, scale, rate, beta1, beta2, eps, step)


@inner
def descend_and_follow(
    rank: Rank, n_ranks: Count, barrier: PtrI64, params: Ptr32, grads: Ptr32, means: Ptr32, squares: Ptr32,
    targets: Ptr32, n_params: Count, chunks: Count, sums: Ptr32, max_norm: Real64, rate: Real64, beta1: Real64,
    beta2: Real64, eps: Real64, step: Index, tau: Real64,
) -> None:  # fmt: skip
    """`clip_gradients` and `descend`, after which `targets` move a share `tau` towards `params` (0: they stay).

    Without clipping (`max_norm` <= 0) nothing has to be known about other blocks: each is reduced, stepped and followed
    while it is in the first-level cache, and the ranks wait once instead of twice.
    """
    first, last = own_blocks(rank, n_ranks, n_params)
    scale = _F(1.0)
    if max_norm > 0.0:
        _, scale = clip_gradients(rank, n_ranks, barrier, grads, n_params, chunks, sums, max_norm)
    else:
        meet(barrier, n_ranks)
    for b in range(first, last):
        if max_norm <= 0.0:
            reduce_gradients(grads, n_params, chunks, b)
        adam(params, grads, means, squares, n_params, b, scale, rate, beta1, beta2, eps, step)
        if tau > 0.0:
            polyak(targets, params, n_params, b, tau)


def update_kernel(name: str, update: Any) -> Any:
    """The kernel that runs `n_updates` updates, each on its own `batch` samples; returns the number of updates so far.

    `update(frame, rank, n_ranks, barrier, start, step, work)` is an inner function that learns from the samples from
    `start` on as update number `step`, and lets the ranks meet at its end.
    """

    def updates(rank: Rank, n_ranks: Count, barrier: PtrI64, record: FrameArray) -> Count:
        mode = flush_denormals()
        frame = record[0]
        meeting = pointer_to(barrier)
        work = shift(f32(frame.works), rank * frame.work_floats)
        for u in range(frame.n_updates):
            update(frame, rank, n_ranks, meeting, u * frame.batch, frame.steps + u + 1, work)
        meet(meeting, n_ranks)
        restore(mode)
        return frame.steps + frame.n_updates

    updates.__name__ = updates.__qualname__ = name
    return kernel(updates)
