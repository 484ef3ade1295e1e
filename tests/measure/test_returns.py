from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import mannwhitneyu, trim_mean

from mileage import measure
from mileage.errors import UsageError


def test_iqm_is_the_mean_of_the_middle_half() -> None:
    # Of eight scores two are cut off on either side: (3 + 4 + 5 + 6) / 4.
    assert measure.iqm([8, 1, 7, 2, 6, 3, 5, 4]) == 4.5
    # Of six, one on either side: (2 + 3 + 4 + 5) / 4; the outlier has no say.
    assert measure.iqm([1, 2, 3, 4, 5, 1e9]) == 3.5
    # Of three, none.
    assert measure.iqm([1, 2, 6]) == 3.0


def test_iqm_pools_runs_and_tasks() -> None:
    assert measure.iqm([[1, 100], [2, 200], [3, 300], [4, 400]]) == (3 + 4 + 100 + 200) / 4


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.floats(-1e6, 1e6)))
def test_iqm_equals_the_trimmed_mean_of_scipy(scores: np.ndarray) -> None:
    assert measure.iqm(scores) == pytest.approx(trim_mean(scores, 0.25, axis=None), rel=1e-9, abs=1e-9)


def test_bootstrap_resamples_runs_within_each_task() -> None:
    # One task is always 0, the other always 1: whatever is drawn, the mean is one half.
    scores = np.array([[0.0, 1.0]] * 4)
    drawn = measure.bootstrap_draws(scores, lambda values: values.mean(axis=-1), resamples=500)
    assert (drawn == 0.5).all()


def test_bootstrap_of_a_mean_has_the_known_spread() -> None:
    values = np.arange(20.0)
    drawn = measure.bootstrap_draws(values, lambda resample: resample.mean(axis=-1), resamples=40_000)
    # The standard deviation of the mean of n draws with replacement is the population's over √n.
    assert drawn.std() == pytest.approx(values.std() / np.sqrt(20), rel=0.02)
    assert drawn.mean() == pytest.approx(9.5, abs=0.03)


def test_bootstrap_is_seeded_and_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(10, 3))
    first = measure.bootstrap_draws(values, seed=4, resamples=100)
    assert (measure.bootstrap_draws(values, seed=4, resamples=100) == first).all()
    assert (measure.bootstrap_draws(values, seed=5, resamples=100) != first).any()
    monkeypatch.setattr("mileage.measure.returns._BLOCK_ELEMENTS", 30 * 7)
    assert (measure.bootstrap_draws(values, seed=4, resamples=100) == first).all()


def test_iqm_interval_surrounds_the_value_and_needs_three_runs() -> None:
    estimate = measure.iqm_estimate(np.random.default_rng(1).normal(10, 1, 30))
    assert estimate.interval is not None
    assert estimate.value in estimate.interval
    # IQM of 30 normal values: standard error about 1.1 / √30 = 0.2, so the interval is about 0.8 wide.
    assert 0.5 < estimate.interval.high - estimate.interval.low < 1.2
    few = measure.iqm_estimate([1.0, 2.0])
    assert (few.value, few.interval) == (1.5, None)
    assert few.statement == "2 runs: too few for an interval, at least 3 are needed"


def test_probability_of_improvement_counts_pairs() -> None:
    # Pairs (a, b): 3>1, 3>2, 3=3, 5>1, 5>2, 5>3: five and a half of six.
    assert measure.probability_of_improvement([3, 5], [1, 2, 3]) == pytest.approx(5.5 / 6)
    assert measure.probability_of_improvement([1, 1], [1, 1]) == 0.5


def test_probability_of_improvement_is_the_mean_over_tasks() -> None:
    a, b = [[1.0, 9.0], [1.0, 9.0]], [[2.0, 3.0], [2.0, 3.0]]
    assert measure.probability_of_improvement(a, b) == 0.5


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_probability_of_improvement_equals_the_mann_whitney_statistic(a: list[int], b: list[int]) -> None:
    expected = mannwhitneyu(a, b, method="asymptotic").statistic / (len(a) * len(b)) if {*a, *b} != {a[0]} else 0.5
    assert measure.probability_of_improvement(a, b) == pytest.approx(expected)


def test_improvement_interval_of_separated_panels_is_one() -> None:
    estimate = measure.improvement_estimate([5, 6, 7], [1, 2, 3])
    assert estimate.value == 1.0
    assert estimate.interval == measure.Interval(1.0, 1.0)
    assert measure.improvement_estimate([5, 6], [1, 2, 3]).interval is None


def test_unlike_tasks_and_empty_scores_are_refused() -> None:
    with pytest.raises(UsageError, match="a has 2 tasks and b has 3"):
        measure.probability_of_improvement(np.ones((2, 2)), np.ones((2, 3)))
    for bad in ([], [np.nan], np.ones((2, 2, 2))):
        with pytest.raises(UsageError, match="scores must be"):
            measure.iqm(bad)
