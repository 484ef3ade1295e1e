"""Group-normalised advantages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mileage.kernels import group_advantages, reference

DTYPES = st.sampled_from([np.float32, np.float64])


def test_worked_example() -> None:
    # Group 0: mean 3, deviations -2 -2 2 2, standard deviation 2: -1 -1 1 1. Group 1: all equal: zeros.
    rewards = np.array([[1.0, 1.0, 5.0, 5.0], [7.0, 7.0, 7.0, 7.0]])
    want = np.array([[-1.0, -1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(group_advantages(rewards), want, atol=1e-6)
    np.testing.assert_array_equal(group_advantages(rewards, normalize_std=False), 2.0 * want)


@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 40), DTYPES, st.booleans())
def test_equals_reference(seed: int, groups: int, size: int, dtype: Any, normalize_std: bool) -> None:
    rewards = np.random.default_rng(seed).normal(3.0, 2.0, size=(groups, size)).astype(dtype)
    got = group_advantages(rewards, normalize_std=normalize_std, epsilon=1e-3)
    assert got.dtype == dtype
    tolerance = 1e-4 if dtype is np.float32 else 1e-12
    want = reference.group_advantages(rewards, normalize_std=normalize_std, epsilon=1e-3)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@given(st.integers(0, 2**32), st.floats(-100, 100), st.floats(0.1, 10))
def test_shift_and_scale_of_rewards_do_not_matter(seed: int, shift: float, scale: float) -> None:
    rewards = np.random.default_rng(seed).normal(size=(3, 8))
    np.testing.assert_allclose(
        group_advantages(rewards * scale + shift, epsilon=1e-12), group_advantages(rewards, epsilon=1e-12), atol=1e-9
    )


def test_out_may_be_the_rewards_themselves() -> None:
    rewards = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    want = group_advantages(rewards)
    assert group_advantages(rewards, out=rewards) is rewards
    np.testing.assert_array_equal(rewards, want)


def test_wrong_arguments_are_named() -> None:
    rewards = np.ones((4, 8), np.float32)
    memory = np.ones(40, np.float32)
    for bad in (rewards[0], np.ones((0, 8)), rewards.astype(np.int64), rewards[:, ::2], [[1.0]]):
        with pytest.raises(ValueError, match=r"^rewards must"):
            group_advantages(bad)  # type: ignore[arg-type]
    for odd in (None, "small", np.array(1e-6)):
        with pytest.raises(ValueError, match=r"^epsilon must be a number, not"):
            group_advantages(rewards, epsilon=odd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^normalize_std must be True or False, not 'yes'"):
        group_advantages(rewards, normalize_std="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^epsilon"):
        group_advantages(rewards, epsilon=0.0)
    with pytest.raises(ValueError, match=r"^out"):
        group_advantages(rewards, out=np.empty((4, 8)))
    with pytest.raises(ValueError, match=r"^out shares memory"):
        group_advantages(memory[:32].reshape(4, 8), out=memory[8:].reshape(4, 8))
    rewards[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"^rewards holds nan at index \(1, 2\)"):
        group_advantages(rewards, check_finite=True)
