from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mileage._errors import UsageError
from mileage.ledger.targets import Evaluation, Target


def evaluation(returns: list[float], successes: list[bool] | None = None) -> Evaluation:
    n = len(returns)
    return Evaluation.of(range(n), returns, [1] * n, successes)


def test_aggregates_by_hand() -> None:
    e = evaluation([0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 1000.0], [True] * 6 + [False] * 2)
    assert e.mean_return == 151.25
    assert e.median_return == 35.0
    assert e.iqm_return == (20 + 30 + 40 + 50) / 4
    assert e.success_rate == 0.75


@pytest.mark.parametrize("n", range(1, 12))
def test_iqm_is_the_trimmed_mean(n: int) -> None:
    returns = np.random.default_rng(n).normal(size=n)
    assert Evaluation.of(range(n), returns, [1] * n).iqm_return == pytest.approx(stats.trim_mean(returns, 0.25))


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("mean_return>=475", "mean_return>=475.0"),
        (" success_rate >= 0.90 ", "success_rate>=0.9"),
        ("median_return>=-1e3", "median_return>=-1000.0"),
        ("iqm_return ≥ 3", "iqm_return>=3.0"),
    ],
)
def test_parse_and_print(text: str, spelled: str) -> None:
    target = Target.parse(text)
    assert str(target) == spelled
    assert Target.parse(spelled) == target
    assert Target.parse(target) is target


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("mean_return", "cannot be read"),
        ("mean_return<=3", "cannot be read"),
        ("reward>=3", "unknown metric"),
        ("mean_return>=much", "no number"),
        ("mean_return>=nan", "finite"),
        ("success_rate>=90", "between 0 and 1"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Target.parse(text)


def test_met_is_inclusive_and_nan_never_meets() -> None:
    target = Target.parse("mean_return>=475")
    assert target.met(evaluation([474.0, 476.0]))
    assert not target.met(evaluation([474.0, 475.9]))
    assert not target.met(evaluation([float("nan"), 500.0]))


def test_success_target_needs_a_success_definition() -> None:
    target = Target.parse("success_rate>=0.5")
    assert target.met(evaluation([0.0, 0.0], [True, False]))
    with pytest.raises(UsageError, match="success definition"):
        target.met(evaluation([0.0, 0.0]))


def test_evaluation_is_immutable_and_checked() -> None:
    e = evaluation([1.0, 2.0])
    with pytest.raises(ValueError, match="read-only"):
        e.returns[0] = 9.0
    with pytest.raises(UsageError, match="lengths of an evaluation"):
        Evaluation.of([1, 2], [1.0, 2.0], [1])
    with pytest.raises(UsageError, match="not empty"):
        Evaluation.of([], [], [])
