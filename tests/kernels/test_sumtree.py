from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mileage.kernels import sumtree
from mileage.kernels.random import streams
from mileage.kernels.sumtree import SumTree, level_offsets


@pytest.mark.parametrize(
    ("size", "offsets"),
    [
        (1, [0, 16]),
        (16, [0, 16]),
        (17, [0, 32, 48]),  # two nodes above 32 leaves, padded to 16
        (256, [0, 256, 272]),
        (257, [0, 272, 304, 320]),  # 17 nodes above 272 leaves, then 2
    ],
)
def test_levels_hold_a_sixteenth_each(size: int, offsets: list[int]) -> None:
    assert level_offsets(size).tolist() == offsets


updates = st.lists(st.tuples(st.integers(0, 599), st.floats(0.0, 1e6)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 600), st.lists(updates, max_size=4))
def test_sum_and_minimum_follow_every_update(size: int, batches: list[list[tuple[int, float]]]) -> None:
    tree, reference = SumTree(size), np.zeros(size)
    for batch in batches:
        chosen = [(i % size, value) for i, value in batch]
        tree.assign(np.array([i for i, _ in chosen], np.int64), np.array([v for _, v in chosen], np.float64))
        for i, value in chosen:
            reference[i] = value
        np.testing.assert_array_equal(tree.leaves, reference)
        assert tree.total == pytest.approx(reference.sum(), rel=1e-12)
        assert tree.minimum == min(reference[reference > 0], default=math.inf)
    rebuilt = SumTree(size)
    rebuilt.leaves[:] = reference
    rebuilt.rebuild()
    np.testing.assert_array_equal(rebuilt.sums, tree.sums)
    np.testing.assert_array_equal(rebuilt.mins, tree.mins)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.0, 1e3), min_size=1, max_size=300).filter(lambda leaves: max(leaves) > 0), st.integers(0, 99)
)
@example([5e-324, 5e-324], 0)
def test_a_draw_finds_the_leaf_where_the_running_sum_passes_the_target(leaves: list[float], seed: int) -> None:
    tree = SumTree(len(leaves))
    tree.leaves[:] = leaves
    tree.rebuild()
    drawn = np.empty(40, np.int64)
    sumtree.draw(tree.record, streams(seed, 1, "test")[0], drawn)
    assert (np.diff(drawn) >= 0).all()
    assert (tree.leaves[drawn] > 0).all()
    # One draw from each fortieth of the total: its leaf must overlap that share.
    ends = np.cumsum(leaves)
    shares = np.arange(41) * ends[-1] / 40
    # Of the smallest numbers there are, a share is off by as much as they are.
    slack = 1e-9 * ends[-1] + 2 * np.finfo(np.float64).smallest_subnormal
    assert (ends[drawn] >= shares[:-1] - slack).all()
    assert (ends[drawn] - tree.leaves[drawn] <= shares[1:] + slack).all()


def test_draws_are_in_proportion() -> None:
    priorities = np.array([1.0, 0.0, 3.0, 6.0])
    tree = SumTree(4)
    tree.leaves[:] = priorities
    tree.rebuild()
    drawn = np.empty(100_000, np.int64)
    sumtree.draw(tree.record, streams(0, 1, "test")[0], drawn)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 100_000, priorities / 10, atol=1e-4)


def test_rounding_never_leads_to_an_absent_leaf() -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(5000)
    tree.leaves[:] = np.where(rng.random(5000) < 0.5, 0.0, rng.random(5000) ** 20)
    tree.rebuild()
    drawn = np.empty(200_000, np.int64)
    sumtree.draw(tree.record, streams(1, 1, "test")[0], drawn)
    assert (tree.leaves[drawn] > 0).all()


def test_updates_apply_alpha_and_leave_absent_leaves_alone() -> None:
    tree = SumTree(20)
    tree.assign(np.array([0, 1, 2]), np.ones(3))
    largest = sumtree.update(tree.record, np.array([0, 2, 5]), np.array([-3.0, 8.0, 100.0], np.float32), 0.5, 1.0)
    # (3 + 1) ** 0.5 and (8 + 1) ** 0.5; leaf 5 is not there.
    np.testing.assert_allclose(tree.leaves[:6], [2.0, 1.0, 3.0, 0.0, 0.0, 0.0])
    assert largest == 3.0
    assert tree.total == 6.0
    assert tree.minimum == 1.0


@pytest.mark.parametrize(
    ("indices", "priorities", "code"),
    [
        ([0, 20], [1.0, 1.0], sumtree.BAD_INDEX),
        ([0, -1], [1.0, 1.0], sumtree.BAD_INDEX),
        ([0, 1], [2.0, np.nan], sumtree.BAD_PRIORITY),
    ],
)
def test_bad_updates_change_nothing(indices: list[int], priorities: list[float], code: int) -> None:
    tree = SumTree(20)
    tree.assign(np.arange(20), np.ones(20))
    assert sumtree.update(tree.record, np.array(indices), np.array(priorities), 1.0, 0.0) == code
    assert (tree.leaves == 1.0).all()
    assert tree.total == 20.0
