"""Kernels that only measure: matrix products alone, memory alone, and a call that does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mileage.description import Product
from mileage.kernels.machine.blas import sgemm
from mileage.kernels.machine.frames import Frame, f32, frame_type, i64, pointer_to, shift
from mileage.kernels.machine.jit import kernel
from mileage.kernels.machine.team import meet

PRODUCTS = frame_type(
    """
    shapes: (n_products, 5) int64
    scratch: (ranks, floats) float32
    n_products pieces repeats floats: int64
    """
)
STREAM = frame_type("a b c: (size,) float32", "size: int64")


@kernel
def products(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> None:
    """Do all products of all pieces (frame `PRODUCTS`), `repeats` times, ranks meeting after every repeat.

    `shapes` (n_products, 5) int64 are `description.Product`s; `scratch` holds `floats` float32 for each rank, three
    parts of equal size for the factors and the result.
    """
    frame = record[0]
    meeting = pointer_to(barrier)
    third = frame.floats // 3
    a = shift(f32(frame.scratch), rank * frame.floats)
    b, out = shift(a, third), shift(a, 2 * third)
    for _ in range(frame.repeats):
        for _piece in range(rank, frame.pieces, n_ranks):
            for p in range(frame.n_products):
                shape = shift(i64(frame.shapes), 5 * p)
                m, n, k = shape[2], shape[3], shape[4]
                lda = m if shape[0] > 0 else k
                ldb = k if shape[1] > 0 else n
                sgemm(shape[0], shape[1], m, n, k, a, lda, b, ldb, out, n)
        meet(meeting, n_ranks)


@kernel
def stream(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> None:
    """a = b + c over `size` float32 (frame `STREAM`), shared out over the ranks."""
    frame = record[0]
    a, b, c = f32(frame.a), f32(frame.b), f32(frame.c)
    share = frame.size // n_ranks
    for i in range(rank * share, (rank + 1) * share):
        a[i] = b[i] + c[i]
    meet(pointer_to(barrier), n_ranks)


@kernel
def nothing(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> None:
    """Meet the other ranks, as every kernel of a team does at its end, and nothing else."""
    frame = record[0]
    if frame.size >= 0:
        meet(pointer_to(barrier), n_ranks)


def product_frame(shapes: Sequence[Product], pieces: int, repeats: int, ranks: int) -> Frame:
    """Arguments for `products`."""
    third = max(max(m * k, k * n, m * n) for _, _, m, n, k in shapes)
    third = -(-third // 16) * 16
    return Frame(
        PRODUCTS, shapes=np.array(shapes, np.int64), scratch=np.full((ranks, 3 * third), 0.5, np.float32),
        n_products=len(shapes), pieces=pieces, repeats=repeats, floats=3 * third,
    )  # fmt: skip
