from __future__ import annotations

import math

import numpy as np
import pytest

from mileage import measure
from mileage.errors import UsageError
from mileage.measure import Interval, Verdict, median_estimate, median_ratio_estimate, verdict_of_ratio


@pytest.mark.parametrize(
    # From tables of the sign test: n, rank of the lower end, coverage.
    ("n", "rank", "level"),
    [(6, 1, 0.96875), (10, 2, 0.978515625), (15, 4, 0.96484375), (20, 6, 0.95861053), (25, 8, 0.95671)],
)
def test_median_interval_runs_between_tabled_order_statistics(n: int, rank: int, level: float) -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    estimate = median_estimate(values)
    assert estimate.value == (n + 1) / 2
    assert estimate.interval is not None
    assert (estimate.interval.low, estimate.interval.high) == (rank, n + 1 - rank)
    assert estimate.interval.level == pytest.approx(level, abs=1e-5)
    assert estimate.statement == ""


def test_few_values_say_what_their_interval_reaches() -> None:
    five = median_estimate([3, 1, 2, 5, 4])
    # All five on one side of the median: 2 / 2**5.
    assert five.interval == Interval(1.0, 5.0, 0.9375)
    assert "covers 94%, not 95%" in five.statement
    assert median_estimate([1, 3, 2]).interval == Interval(1.0, 3.0, 0.75)
    assert median_estimate([1, 3]) == measure.Estimate(
        2.0, None, "2 runs: too few for an interval, at least 3 are needed"
    )


def test_median_interval_covers_the_median_of_any_distribution() -> None:
    rng = np.random.default_rng(5)
    hits = sum(np.log(2) in (median_estimate(rng.exponential(size=15)).interval or Interval(0, 0)) for _ in range(2000))
    # Nominal 96.5 %; three standard errors of 2,000 draws are 1.2 %.
    assert hits / 2000 == pytest.approx(0.965, abs=0.0125)


def test_ratio_of_medians_by_hand() -> None:
    # Logs of both sides: standard deviation 1, so each median's variance is pi/2 / 3; Welch's freedom is 4, and
    # t(4, 97.5 %) is 2.776445.
    above, below = [1.0, math.e, math.e**2], [1.0, math.e, math.e**2]
    found = median_ratio_estimate(above, below)
    half = 2.776445 * math.sqrt(2 * math.pi / 2 / 3)
    assert found.value == 1.0
    assert found.interval is not None
    assert found.interval.low == pytest.approx(math.exp(-half), rel=1e-6)
    assert found.interval.high == pytest.approx(math.exp(half), rel=1e-6)


def test_two_runs_have_a_ratio_and_no_interval() -> None:
    found = median_ratio_estimate([2.0, 4.0], [1.0, 1.0, 1.0])
    assert (found.value, found.interval, found.runs) == (3.0, None, 2)
    with pytest.raises(UsageError, match="denominator must be"):
        median_ratio_estimate([1.0], [])


def test_identical_runs_give_an_exact_ratio() -> None:
    assert median_ratio_estimate([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]).interval == Interval(2.0, 2.0)


def test_scaling_both_sides_leaves_the_ratio_alone() -> None:
    slow, fast = [10.0, 11.0, 12.5], [5.0, 5.5, 5.2]
    one = median_ratio_estimate(slow, fast)
    two = median_ratio_estimate([60 * s for s in slow], [60 * s for s in fast])
    assert one.interval is not None
    assert two.interval is not None
    assert two.value == pytest.approx(one.value)
    assert two.interval.low == pytest.approx(one.interval.low)


@pytest.mark.parametrize("runs", [3, 5, 10])
@pytest.mark.parametrize("heavy_tail", [False, True])
def test_ratio_interval_covers_the_truth_at_least_as_often_as_it_says(runs: int, heavy_tail: bool) -> None:
    rng = np.random.default_rng(7)
    trials, covered = 600, 0
    for _ in range(trials):
        noise = rng.standard_t(3, (2, runs)) if heavy_tail else rng.standard_normal((2, runs))
        slow, fast = 100 * np.exp(0.03 * noise[0]), 80 * np.exp(0.06 * noise[1])
        covered += 1.25 in (median_ratio_estimate(slow, fast).interval or Interval(0, 0))
    # Three standard errors below 95 %.
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (Interval(1.1, 1.3), Verdict.B_CHEAPER),
        (Interval(0.7, 0.9), Verdict.A_CHEAPER),
        (Interval(0.9, 1.1), Verdict.UNDECIDED),
        (None, Verdict.UNDECIDED),
    ],
)
def test_a_ratio_decides_if_its_interval_leaves_out_one(interval: Interval | None, verdict: Verdict) -> None:
    assert verdict_of_ratio(measure.Estimate(1.0, interval)) is verdict
