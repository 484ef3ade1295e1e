from __future__ import annotations

import numpy as np
import pytest

from mileage import stats
from mileage.stats import Interval, median_estimate


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
    assert median_estimate([1, 3]) == stats.Estimate(
        2.0, None, "2 runs: too few for an interval, at least 3 are needed"
    )


def test_median_interval_covers_the_median_of_any_distribution() -> None:
    rng = np.random.default_rng(5)
    hits = sum(np.log(2) in (median_estimate(rng.exponential(size=15)).interval or Interval(0, 0)) for _ in range(2000))
    # Nominal 96.5 %; three standard errors of 2,000 draws are 1.2 %.
    assert hits / 2000 == pytest.approx(0.965, abs=0.0125)
