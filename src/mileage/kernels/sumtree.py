"""Sum and minimum over many priorities, with updates in O(log n): a tree whose nodes have sixteen children.

A binary tree of a million leaves touches twenty cache lines per update; with sixteen children it is five levels of two
lines, and all inner nodes fit a core's cache. Nodes are always computed from their children, so no rounding piles
up. `sums` holds all levels, leaves first (float64); `mins` the same positions above the leaves. A leaf of 0 is not
there: it is never drawn and has no part in the minimum.
"""

from __future__ import annotations

import math

import numpy as np

from mileage.kernels.machine.frames import (
    Array64,
    ArrayI64,
    ArrayU64,
    Count,
    Flag,
    FrameArray,
    FrameRecord,
    Index,
    PtrI64,
    PtrU64,
    Real64,
    f64,
    frame_type,
    i64,
)
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.random import next_u64
from mileage.types import F64, I64

FANOUT = 16
BITS = 4
_S11 = np.uint64(11)
_TO_F64 = 1.0 / (1 << 53)
_INFINITE = np.inf

TREE = frame_type(
    """
    sums mins: (nodes + 1,) float64, all levels, leaves first, then the root
    offsets: (levels + 1,) int64, where each level begins
    levels size: int64
    """
)
BAD_INDEX, BAD_PRIORITY = -1, -2


def level_offsets(size: int) -> I64:
    """Where each level of a tree over `size` leaves begins, (levels + 1,) int64, leaves first; the last is the end."""
    offsets, width, total = [], size, 0
    while True:
        offsets.append(total)
        padded = -(-width // FANOUT) * FANOUT
        total += padded
        if width <= FANOUT:
            break
        width = padded // FANOUT
    return np.array([*offsets, total], np.int64)


@inner
def refresh(tree: FrameRecord, level: Index, node: Index) -> None:
    """Compute one node of `level` (1 and up) from its children; the node above the top level is the root pair."""
    sums, mins, offsets = f64(tree.sums), f64(tree.mins), i64(tree.offsets)
    first = offsets[level - 1] + node * FANOUT
    total, least = 0.0, _INFINITE
    if level == 1:
        for child in range(first, first + FANOUT):
            value = sums[child]
            total += value
            if value > 0.0 and value < least:
                least = value
    else:
        for child in range(first, first + FANOUT):
            total += sums[child]
            least = min(least, mins[child])
    sums[offsets[level] + node] = total
    mins[offsets[level] + node] = least


@inner
def propagate(tree: FrameRecord, indices: PtrI64, n: Count) -> None:
    """Bring all nodes above `n` changed leaves up to date, level by level; runs of one parent are computed once."""
    for level in range(1, tree.levels + 1):
        previous = -1
        for i in range(n):
            node = indices[i] >> (BITS * level)
            if node != previous:
                refresh(tree, level, node)
                previous = node


@inner
def total_of(tree: FrameRecord) -> Real64:
    """Sum of all leaves."""
    return f64(tree.sums)[i64(tree.offsets)[tree.levels]]


@inner
def minimum_of(tree: FrameRecord) -> Real64:
    """Smallest leaf above 0, infinite if there is none."""
    return f64(tree.mins)[i64(tree.offsets)[tree.levels]]


@inner
def find(tree: FrameRecord, target: Real64) -> Index:
    """Leaf at which the running sum of leaves exceeds `target`, 0 <= target < total."""
    sums, offsets = f64(tree.sums), i64(tree.offsets)
    node = 0
    for level in range(tree.levels - 1, -1, -1):
        first = offsets[level] + node * FANOUT
        chosen = -1
        for child in range(FANOUT):
            value = sums[first + child]
            if value > 0.0:
                chosen = child
                if target < value:
                    break
                target -= value
        # Rounding may leave a target just above the last child: then that child is meant.
        target = min(target, sums[first + chosen] * (1.0 - 1e-12))
        node = node * FANOUT + chosen
    return node


@inner
def draw_share(tree: FrameRecord, rng_state: PtrU64, i: Index, share: Real64) -> Index:
    """Draw a leaf from the `i`-th of equal shares of the total, in proportion to priority."""
    u = np.float64(next_u64(rng_state) >> _S11) * _TO_F64
    return find(tree, (i + u) * share)


@kernel
def build(trees: FrameArray) -> Flag:
    """Compute every node from the leaves."""
    tree = trees[0]
    width = tree.size
    for level in range(1, tree.levels + 1):
        width = (width + FANOUT - 1) // FANOUT
        for node in range(width):
            refresh(tree, level, node)
    return True


@kernel
def assign(trees: FrameArray, indices: ArrayI64, values: Array64) -> Count:
    """Set leaves `indices` (n,) int64 to `values` (n,) float64 as they are, 0 included."""
    tree = trees[0]
    sums = f64(tree.sums)
    for i in range(indices.shape[0]):
        sums[indices[i]] = values[i]
    propagate(tree, indices, indices.shape[0])
    return True


@kernel
def update(trees: FrameArray, indices: ArrayI64, priorities: Array64, alpha: Real64, epsilon: Real64) -> Count:
    """Set leaves that are there to (|priority| + epsilon) ** alpha, all or none.

    `indices` (n,) int64, `priorities` (n,) float32 or float64. The largest leaf that was set, or a negative code.
    """
    tree = trees[0]
    n = indices.shape[0]
    for i in range(n):
        if indices[i] < 0 or indices[i] >= tree.size:
            return np.float64(BAD_INDEX)
        if not math.isfinite(priorities[i]):
            return np.float64(BAD_PRIORITY)
    sums = f64(tree.sums)
    largest = 0.0
    for i in range(n):
        value = math.pow(abs(np.float64(priorities[i])) + epsilon, alpha)
        # A transition that has been overwritten since, or is not complete yet, stays out.
        if sums[indices[i]] > 0.0:
            sums[indices[i]] = value
            largest = max(largest, value)
    propagate(tree, indices, n)
    return largest


@kernel
def draw(trees: FrameArray, rng_state: ArrayU64, out_indices: ArrayI64) -> Flag:
    """Fill `out_indices` (n,) int64 with leaves drawn in proportion to their priority, from `rng_state` (2,) uint64."""
    tree = trees[0]
    share = total_of(tree) / out_indices.shape[0]
    for i in range(out_indices.shape[0]):
        out_indices[i] = draw_share(tree, rng_state, i, share)
    return True


class SumTree:
    """A tree over `size` leaves, all absent at first."""

    def __init__(self, size: int) -> None:
        from mileage.kernels.machine.frames import Frame

        offsets = level_offsets(size)
        self.size = size
        # One pair behind the last level holds the root's sum and minimum.
        self.sums: F64 = np.zeros(offsets[-1] + 1, np.float64)
        self.mins: F64 = np.full(offsets[-1] + 1, np.inf)
        self._frame = Frame(TREE, sums=self.sums, mins=self.mins, offsets=offsets, levels=len(offsets) - 1, size=size)
        self.record = self._frame.record

    @property
    def leaves(self) -> F64:
        """The priorities, (size,) float64; call `rebuild` after writing to them."""
        return self.sums[: self.size]

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self.sums[-1])

    @property
    def minimum(self) -> float:
        """Smallest leaf above 0; infinite if there is none."""
        return float(self.mins[-1])

    def rebuild(self) -> None:
        """Compute every node from the leaves."""
        build(self.record)

    def assign(self, indices: I64, values: F64) -> None:
        """Set leaves `indices` (n,) int64 to `values` (n,) float64."""
        assign(self.record, indices, values)
