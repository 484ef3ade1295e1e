from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, fisher_exact

from mileage.measure import Reliability, RunCosts, compare_failures, failure_rate
from mileage.measure.cost import fisher


def runs(reached: int, n: int) -> RunCosts:
    return RunCosts.of(np.ones(n), np.arange(n) < reached)


@pytest.mark.parametrize(("reached", "n"), [(5, 5), (0, 5), (3, 5), (9, 10), (40, 100)])
def test_the_interval_is_clopper_and_pearsons(reached: int, n: int) -> None:
    found = failure_rate(runs(reached, n))
    reference = binomtest(n - reached, n).proportion_ci(0.95, "exact")
    assert found.value == (n - reached) / n
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((reference.low, reference.high), abs=1e-9)


@pytest.mark.parametrize(("a", "n_a", "b", "n_b"), [(5, 5, 0, 5), (3, 5, 1, 5), (9, 10, 4, 12), (2, 4, 2, 4)])
def test_the_test_is_fishers_with_its_smaller_tail_doubled(a: int, n_a: int, b: int, n_b: int) -> None:
    table = [[a, n_a - a], [b, n_b - b]]
    tails = [fisher_exact(table, side).pvalue for side in ("less", "greater")]
    assert fisher(a, n_a, b, n_b) == pytest.approx(min(1.0, 2 * min(tails)))


def test_five_of_five_against_none_of_five_is_decided_and_three_against_none_is_not() -> None:
    found = compare_failures(runs(5, 5), runs(0, 5), 0.05)
    assert found.verdict is Reliability.A
    assert found.p_value == pytest.approx(2 / 252)
    assert found.statement.startswith("A fails less often: A failed in 0 of 5 runs (0 to 52 %)")
    assert compare_failures(runs(0, 5), runs(5, 5), 0.05).verdict is Reliability.B
    assert compare_failures(runs(3, 3), runs(0, 3), 0.05).verdict is Reliability.UNDECIDED
