from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mileage.measure import RunCosts
from mileage.measure.verdict import Relabelled, labellings


def test_few_runs_have_all_their_labellings_and_the_real_one_is_first() -> None:
    marks = labellings(3, 2)
    assert marks.shape == (10, 5)
    assert marks[0].tolist() == [1, 1, 1, 0, 0]
    assert len({tuple(row) for row in marks.tolist()}) == 10


def test_of_many_labellings_some_are_drawn() -> None:
    marks = labellings(20, 20, 500)
    assert marks.shape == (501, 40)
    assert (marks.sum(axis=1) == 20).all()
    assert marks[0, :20].all()


def test_the_p_value_is_counted_by_hand() -> None:
    costs, reached = np.array([1.0, 2.0, 3.0, 10.0, 20.0, 9.0]), np.array([True, True, True, True, True, False])
    a, b = RunCosts.of(costs[:3], reached[:3]), RunCosts.of(costs[3:], reached[3:])
    gaps = []
    for chosen in itertools.combinations(range(6), 3):
        mine = np.isin(np.arange(6), chosen)
        gaps.append(math.log(costs[mine].sum() / reached[mine].sum() / (costs[~mine].sum() / reached[~mine].sum())))
    low = sum(gap <= gaps[0] + 1e-9 for gap in gaps) / len(gaps)
    assert Relabelled.of(a, b).p_value() == pytest.approx(2 * low)


def test_three_runs_each_cannot_be_decisive() -> None:
    far = Relabelled.of(RunCosts.of([1.0, 1.1, 1.2], [True] * 3), RunCosts.of([100.0, 101.0, 102.0], [True] * 3))
    assert far.p_value() == pytest.approx(0.1)
    interval = far.interval(0.0109, 0.05)
    assert (interval.low, str(interval)) == (0.0, "0 to no upper bound")


def test_the_interval_holds_what_cannot_be_told_apart_and_nothing_else() -> None:
    rng = np.random.default_rng(4)
    a = RunCosts.of(rng.gamma(2.0, 1.0, 8), rng.random(8) < 0.8)
    b = RunCosts.of(3 * rng.gamma(2.0, 1.0, 8), rng.random(8) < 0.8)
    relabelled = Relabelled.of(a, b)
    ratio = (a.spent / a.successes) / (b.spent / b.successes)
    interval = relabelled.interval(ratio, 0.05)
    assert ratio in interval
    for end, outwards in ((interval.low, 0.98), (interval.high, 1.02)):
        assert relabelled.p_value(end) > 0.05
        assert relabelled.p_value(end * outwards) <= 0.05
