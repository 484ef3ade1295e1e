"""Running mean and variance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mileage.kernels import RunningMoments, reference

shapes = st.sampled_from([(), (1,), (4,), (2, 3)])


def samples(seed: int, count: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).normal(5.0, 3.0, (count, *shape)).astype(dtype)


def test_worked_example() -> None:
    # 2, 4, 4, 4, 5, 5, 7, 9: sum 40, mean 5; squares of deviations 9 1 1 1 0 0 4 16 = 32; variance 32/8 = 4.
    moments = RunningMoments()
    moments.update(np.array([2.0, 4.0, 4.0]))
    moments.update(np.array([4.0, 5.0, 5.0, 7.0, 9.0]))
    assert moments.count == 8
    assert moments.mean == pytest.approx(5.0)
    assert moments.variance() == pytest.approx(4.0)
    assert moments.std() == pytest.approx(2.0)
    assert moments.variance(ddof=1) == pytest.approx(32 / 7)


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(0, 30), shapes, st.sampled_from([np.float32, np.float64]))
def test_equals_reference_however_the_stream_is_cut(
    seed: int, first: int, second: int, shape: tuple[int, ...], dtype: Any
) -> None:
    data = samples(seed, first + second, shape, dtype)
    moments = RunningMoments(shape)
    moments.update(data[:first])
    moments.update(data[first:])
    mean, variance = reference.mean_and_variance(data)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(moments.variance(), variance, rtol=1e-10, atol=1e-12)


@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(0, 30), shapes)
def test_merge_equals_one_stream(seed: int, first: int, second: int, shape: tuple[int, ...]) -> None:
    data = samples(seed, first + second, shape)
    left, right, whole = RunningMoments(shape), RunningMoments(shape), RunningMoments(shape)
    left.update(data[:first])
    right.update(data[first:])
    whole.update(data)
    before = right.state()
    left.merge(right)
    assert left.count == whole.count
    np.testing.assert_allclose(left.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(left.variance(), whole.variance(), rtol=1e-10, atol=1e-12)
    for name, array in right.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_keeps_its_accuracy_far_from_zero() -> None:
    # The textbook formula E[x²] - E[x]² would lose all digits here.
    data = 1e9 + np.array([4.0, 7.0, 13.0, 16.0])
    moments = RunningMoments()
    moments.update(data)
    assert moments.variance(ddof=1) == pytest.approx(30.0)


def test_state_continues_bit_for_bit() -> None:
    data = samples(0, 40, (3,))
    moments = RunningMoments((3,))
    moments.update(data[:20])
    resumed = RunningMoments.from_state(moments.state())
    for each in (moments, resumed):
        each.update(data[20:])
    for name, array in moments.state().items():
        np.testing.assert_array_equal(array, resumed.state()[name])


def test_no_variance_before_there_are_samples() -> None:
    moments = RunningMoments((2,))
    assert moments.count == 0
    np.testing.assert_array_equal(moments.mean, [0.0, 0.0])
    assert np.isnan(moments.variance()).all()
    moments.update(np.ones((1, 2)))
    np.testing.assert_array_equal(moments.variance(), [0.0, 0.0])
    assert np.isnan(moments.variance(ddof=1)).all()


def test_wrong_arguments_are_named() -> None:
    moments = RunningMoments((3,))
    for bad in (
        np.ones((4, 2)),
        np.ones(3),
        np.float64(1.0),
        np.ones((4, 3), np.int64),
        np.ones((3, 4)).T,
        [[1.0] * 3],
    ):
        with pytest.raises(ValueError, match=r"^batch must"):
            moments.update(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^batch holds nan at index \(0, 1\)"):
        moments.update(np.array([[0.0, np.nan, 0.0]]), check_finite=True)
    for odd in (None, 2.5, (2.5,), "ab", (-1,)):
        with pytest.raises(ValueError, match=r"^shape must be a tuple of whole numbers"):
            RunningMoments(odd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^other must be RunningMoments, not NoneType"):
        RunningMoments((2,)).merge(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^other must"):
        moments.merge(RunningMoments((2,)))
    with pytest.raises(ValueError, match=r"^state lacks count, m2"):
        RunningMoments.from_state({"mean": np.zeros(3)})
    with pytest.raises(ValueError, match=r"^state\['m2'\] must have shape"):
        RunningMoments.from_state({"mean": np.zeros(3), "count": np.zeros(1), "m2": np.zeros(2)})
    assert moments.count == 0
