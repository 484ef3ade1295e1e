"""Running normalisation against statistics of everything seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mileage.envs import ObsNormalizer, RewardScaler
from mileage.envs.normalise import RunningMoments
from mileage.errors import UsageError


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.floats(-1e4, 1e4))
def test_merged_batches_equal_one_batch(lengths: list[int], offset: float) -> None:
    rng = np.random.default_rng(sum(lengths))
    batches = [offset + rng.normal(size=(length, 3)) for length in lengths]
    moments = RunningMoments(3)
    for batch in batches:
        moments.update(batch)
    everything = np.concatenate(batches)
    assert moments.count == len(everything)
    if len(everything):
        np.testing.assert_allclose(moments.mean, everything.mean(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(moments.var, everything.var(axis=0), rtol=1e-9, atol=1e-9)


def test_observations_by_hand() -> None:
    normalizer = ObsNormalizer(2, clip=1.5)
    # Column 0: 1, 3 (mean 2, variance 1). Column 1: 0, 8 (mean 4, variance 16).
    normalizer.update(np.array([[1.0, 0.0], [3.0, 8.0]], np.float32))
    obs = np.array([[3.0, 2.0], [9.0, 4.0]], np.float32)
    expected = np.array([[1.0, -0.5], [1.5, 0.0]], np.float32)
    np.testing.assert_allclose(normalizer.apply(obs), expected, rtol=1e-6)
    assert obs[0, 0] == 3.0
    assert normalizer.apply(obs, out=obs) is obs
    np.testing.assert_allclose(obs, expected, rtol=1e-6)


def test_nothing_seen_changes_nothing() -> None:
    obs = np.array([[1.0, -2.0]], np.float32)
    np.testing.assert_array_equal(ObsNormalizer(2).apply(obs), obs)


def test_time_major_batches_count_every_row() -> None:
    batch = np.random.default_rng(0).normal(3.0, 2.0, (16, 4, 2)).astype(np.float32)
    normalizer = ObsNormalizer(2)
    normalizer.update(batch)
    assert normalizer.moments.count == 64
    normal = normalizer.apply(batch)
    np.testing.assert_allclose(normal.mean(axis=(0, 1)), 0.0, atol=1e-6)
    np.testing.assert_allclose(normal.std(axis=(0, 1)), 1.0, rtol=1e-6)


def test_shift_and_scale_stay_the_same_arrays() -> None:
    normalizer = ObsNormalizer(1)
    shift, scale = normalizer.shift, normalizer.scale
    normalizer.update(np.array([[1.0], [3.0]]))
    assert normalizer.shift is shift
    assert normalizer.scale is scale
    assert shift[0] == 2.0


def test_frozen_learns_nothing() -> None:
    normalizer, scaler = ObsNormalizer(1), RewardScaler(1)
    normalizer.frozen = scaler.frozen = True
    normalizer.update(np.ones((5, 1)))
    scaler.update(np.ones((5, 1)), np.zeros((5, 1), bool), 0.9)
    assert normalizer.moments.count == scaler.moments.count == 0
    assert scaler.returns[0] == 0.0


def test_discounted_returns_by_hand() -> None:
    scaler = RewardScaler(2)
    rewards = np.array([[1.0, 2.0], [1.0, 0.0], [1.0, 4.0]], np.float32)
    dones = np.array([[False, True], [False, False], [True, False]])
    scaler.update(rewards, dones, 0.5)
    # Environment 0: 1, 1.5, 1.75 then the end. Environment 1: 2, end, 0, 4.
    seen = np.array([1.0, 1.5, 1.75, 2.0, 0.0, 4.0])
    np.testing.assert_allclose(scaler.moments.var[0], seen.var(), rtol=1e-12)
    np.testing.assert_array_equal(scaler.returns, [0.0, 4.0])
    np.testing.assert_allclose(scaler.apply(rewards), rewards / seen.std(), rtol=1e-6)


def test_a_split_rollout_gives_the_same_as_a_whole_one() -> None:
    rng = np.random.default_rng(3)
    rewards, dones = rng.normal(size=(40, 3)), rng.random((40, 3)) < 0.1
    whole, split = RewardScaler(3), RewardScaler(3)
    whole.update(rewards, dones, 0.99)
    split.update(rewards[:13], dones[:13], 0.99)
    split.update(rewards[13:], dones[13:], 0.99)
    np.testing.assert_allclose(split.scale, whole.scale, rtol=1e-12)
    np.testing.assert_array_equal(split.returns, whole.returns)


def test_saved_and_loaded_goes_on_identically() -> None:
    rng = np.random.default_rng(4)
    first, second = ObsNormalizer(2), ObsNormalizer(2)
    first.update(rng.normal(size=(10, 2)))
    second.load_arrays(first.to_arrays())
    scaler, other = RewardScaler(2), RewardScaler(2)
    scaler.update(rng.normal(size=(10, 2)), np.zeros((10, 2), np.uint8), 0.9)
    other.load_arrays(scaler.to_arrays())
    batch = rng.normal(size=(10, 2))
    for normalizer in (first, second):
        normalizer.update(batch)
    for item in (scaler, other):
        item.update(batch, np.zeros((10, 2), np.uint8), 0.9)
    np.testing.assert_array_equal(first.scale, second.scale)
    np.testing.assert_array_equal(first.shift, second.shift)
    assert scaler.scale == other.scale


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="clip must be above 0, not 0"):
        ObsNormalizer(2, clip=0)
    with pytest.raises(UsageError, match="clip must be above 0, not -1"):
        RewardScaler(2, clip=-1)
    with pytest.raises(UsageError, match="for 3 values, not 2"):
        ObsNormalizer(2).load_arrays(ObsNormalizer(3).to_arrays())
    with pytest.raises(UsageError, match="of 3 environments, not 2"):
        RewardScaler(2).load_arrays(RewardScaler(3).to_arrays())
    with pytest.raises(UsageError, match=r"must both have shape \(T, 2\)"):
        RewardScaler(2).update(np.ones((5, 3)), np.zeros((5, 3)), 0.9)
