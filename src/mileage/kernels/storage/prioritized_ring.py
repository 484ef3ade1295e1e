"""A ring and a tree of priorities together: admitting new rows, and sampling in one call."""

from __future__ import annotations

import math

import numpy as np

from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.kinds import Flag, FrameArray, FrameRecord, Index, Real64
from mileage.kernels.machine.pointers import f32, f64, i64, u64
from mileage.kernels.storage import ring as rings_
from mileage.kernels.storage import sumtree


@inner
def _set_row(ring: FrameRecord, tree: FrameRecord, number: Index, value: Real64) -> None:
    """Give row `number` the priority `value` in all environments."""
    sums = f64(tree.sums)
    row = number % ring.rows
    for env in range(ring.n_envs):
        sums[row * ring.n_envs + env] = value
    for level in range(1, tree.levels + 1):
        previous = -1
        for env in range(ring.n_envs):
            node = (row * ring.n_envs + env) >> (sumtree.BITS * level)
            if node != previous:
                sumtree.refresh(tree, level, node)
                previous = node


@inner
def admit_rows(ring: FrameRecord, tree: FrameRecord, before: Index, value: Real64) -> None:
    """Bring the tree up to date with the rows begun since `before`: sampleable rows get `value`, a pending one 0."""
    counters = i64(ring.counters)
    written, begun = counters[rings_.WRITTEN], counters[rings_.BEGUN]
    if ring.next_at > 0:
        for number in range(max(before, written - ring.rows), written):
            _set_row(ring, tree, number, value)
    else:
        # The row that was newest before has got its successor.
        for number in range(max(before - 1, written - ring.rows, 0), written - 1):
            _set_row(ring, tree, number, value)
        if written > 0:
            _set_row(ring, tree, written - 1, 0.0)
    if begun > written:
        _set_row(ring, tree, begun - 1, 0.0)


@kernel
def admit(rings: FrameArray, trees: FrameArray, before: Index, value: Real64) -> Flag:
    """`admit_rows` from Python."""
    admit_rows(rings[0], trees[0], before, value)
    return True


@kernel
def sample(rings: FrameArray, trees: FrameArray, batches: FrameArray, beta: Real64, with_rows: Flag) -> Flag:
    """Draw the indices and importance weights of a batch, and gather its rows if asked."""
    ring, tree, batch = rings[0], trees[0], batches[0]
    indices, weights, leaves = i64(batch.indices), f32(batch.weights), f64(tree.sums)
    rng, share = u64(ring.rng), sumtree.total_of(tree) / batch.size
    for b in range(batch.size):
        indices[b] = sumtree.draw_share(tree, rng, b, share)
        rings_.prefetch_record(ring, indices[b])
    least = sumtree.minimum_of(tree)
    for b in range(batch.size):
        weights[b] = np.float32(math.pow(leaves[indices[b]] / least, -beta))
    if with_rows:
        rings_.gather(ring, batch, 0, batch.size)
    return True
