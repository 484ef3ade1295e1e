"""Gradient reduction, clipping and Adam over flat parameter vectors, cut into fixed blocks.

Blocks are what keeps sums independent of the number of threads: each block's sum of squares is stored, and every
thread adds the stored sums in the same order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mileage.kernels._jit import kernel

_F = np.float32
_U = np.uint64
BLOCK = 1024


@kernel(fastmath=True)
def reduce_gradients(grads: Any, n_chunks: Any, block: Any) -> Any:
    """Sum one block of the gradients `(chunks, params)` over chunks into row 0; return the block's sum of squares."""
    n_params = grads.shape[1]
    first, last = block * BLOCK, min((block + 1) * BLOCK, n_params)
    total = grads[0]
    for c in range(1, n_chunks):
        other = grads[c]
        for i in range(_U(first), _U(last)):
            total[i] += other[i]
    squares = _F(0.0)
    for i in range(_U(first), _U(last)):
        squares += total[i] * total[i]
    return squares


@kernel
def clip_scale(squares: Any, n_blocks: Any, max_norm: Any) -> Any:
    """Global gradient norm from the blocks' sums of squares, and the factor that clips it to `max_norm` (<= 0: none)."""
    total = 0.0
    for b in range(n_blocks):
        total += squares[b]
    norm = math.sqrt(total)
    scale = 1.0
    if max_norm > 0.0 and norm > max_norm:
        scale = max_norm / (norm + 1e-6)
    return _F(norm), _F(scale)


@kernel(fastmath=True)
def adam(
    params: Any,
    grad: Any,
    mean: Any,
    square: Any,
    block: Any,
    scale: Any,
    rate: Any,
    beta1: Any,
    beta2: Any,
    eps: Any,
    step: Any,
) -> None:
    """One Adam step (Kingma and Ba, 2015) on one block of `params`, in place; `step` counts from 1."""
    first, last = _U(block * BLOCK), _U(min((block + 1) * BLOCK, params.shape[0]))
    b1, b2 = _F(beta1), _F(beta2)
    c1, c2 = _F(1.0 - beta1), _F(1.0 - beta2)
    size = _F(rate / (1.0 - beta1**step))
    unbias = _F(1.0 / (1.0 - beta2**step))
    small = _F(eps)
    for i in range(first, last):
        g = grad[i] * scale
        m = b1 * mean[i] + c1 * g
        v = b2 * square[i] + c2 * g * g
        mean[i] = m
        square[i] = v
        params[i] -= size * m / (_F(math.sqrt(v * unbias)) + small)
