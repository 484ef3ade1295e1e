from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t, ttest_ind

from mileage.measure import RunCosts, typical_cost
from mileage.measure.cost import typical_ratio


def costs(values: list[float], failed: int = 0) -> RunCosts:
    return RunCosts.of([*values, *[99.0] * failed], [True] * len(values) + [False] * failed)


def test_the_typical_cost_is_the_geometric_mean_of_successes_with_students_interval() -> None:
    found = typical_cost(costs([1.0, 2.0, 4.0, 8.0, 16.0], failed=2))
    assert found.value == pytest.approx(4.0)
    half = t.ppf(0.9875, 4) * np.log([1, 2, 4, 8, 16]).std(ddof=1) / math.sqrt(5)
    assert found.interval is not None
    assert found.interval.high == pytest.approx(4.0 * math.exp(half))
    assert found.interval.low == pytest.approx(4.0 * math.exp(-half))


def test_three_runs_that_agree_do_not_show_that_a_fourth_would() -> None:
    found = typical_cost(costs([10.0, 10.0, 10.0])).interval
    assert found is not None
    assert (found.low, found.high) == pytest.approx((10 / 3.5, 35.0))
    assert typical_cost(costs([10.0, 10.1])).interval is None
    assert typical_cost(costs([10.0])).statement.startswith("reached by 1 run: too few for an interval")
    assert typical_cost(costs([], failed=3)).value is None


def test_the_ratio_is_welchs_test_of_logarithms() -> None:
    a, b = [1.0, 1.3, 0.8, 1.1], [2.0, 2.9, 1.8, 2.2, 3.0]
    found = typical_ratio(costs(a), costs(b), 0.05)
    reference = ttest_ind(np.log(a), np.log(b), equal_var=False)
    ends = reference.confidence_interval(0.95)
    assert found is not None
    assert found.interval.low == pytest.approx(math.exp(ends.low))
    assert found.interval.high == pytest.approx(math.exp(ends.high))
    assert found.confidence_a_cheaper == pytest.approx(1 - reference.pvalue / 2)
    assert typical_ratio(costs(a[:2]), costs(b), 0.05) is None


def test_equal_costs_leave_no_doubt() -> None:
    found = typical_ratio(costs([2.0] * 3), costs([1.0] * 3), 0.05)
    assert found is not None
    assert (found.ratio, found.interval.low, found.interval.high) == (2.0, 2.0, 2.0)
    assert found.confidence_a_cheaper == 0.0
