from __future__ import annotations

import math

import numpy as np
import pytest

from mileage.coderl.intervals import median_estimate, ratio_estimate


def test_two_runs_have_a_median_and_no_interval() -> None:
    estimate = median_estimate([2.0, 4.0])
    assert estimate is not None
    assert (estimate.value, estimate.low, estimate.high) == (3.0, None, None)


def test_nothing_has_no_median() -> None:
    assert median_estimate([]) is None
    assert ratio_estimate([1.0], []) is None


def test_interval_of_three_runs_by_hand() -> None:
    # logs of e^0, e^1, e^2: mean 1, standard deviation 1; t(2 df, 97.5 %) = 4.302653.
    estimate = median_estimate([1.0, math.e, math.e**2])
    assert estimate is not None
    half = 4.302653 * math.sqrt(math.pi / 2) / math.sqrt(3)
    assert estimate.value == pytest.approx(math.e)
    assert estimate.low == pytest.approx(math.exp(1 - half), rel=1e-6)
    assert estimate.high == pytest.approx(math.exp(1 + half), rel=1e-6)


def test_identical_runs_give_an_exact_ratio() -> None:
    estimate = ratio_estimate([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    assert estimate is not None
    assert (estimate.low, estimate.value, estimate.high) == (2.0, 2.0, 2.0)


def test_scaling_both_sides_leaves_the_ratio_alone() -> None:
    slow, fast = [10.0, 11.0, 12.5], [5.0, 5.5, 5.2]
    one = ratio_estimate(slow, fast)
    two = ratio_estimate([60 * s for s in slow], [60 * s for s in fast])
    assert one is not None
    assert two is not None
    assert two.value == pytest.approx(one.value)
    assert two.low == pytest.approx(one.low)


@pytest.mark.parametrize("runs", [3, 5, 10])
@pytest.mark.parametrize("heavy_tail", [False, True])
def test_ratio_interval_covers_the_truth_at_least_as_often_as_it_says(runs: int, heavy_tail: bool) -> None:
    rng = np.random.default_rng(7)
    trials, covered = 600, 0
    for _ in range(trials):
        noise = rng.standard_t(3, (2, runs)) if heavy_tail else rng.standard_normal((2, runs))
        slow, fast = 100 * np.exp(0.03 * noise[0]), 80 * np.exp(0.06 * noise[1])
        estimate = ratio_estimate(slow.tolist(), fast.tolist())
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= 1.25 <= estimate.high
    # Three standard errors below 95 %.
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)
