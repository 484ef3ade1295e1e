from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from mileage.errors import UsageError
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation, Target, examined
from mileage.seeding import held_out_seeds


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


PANEL = Panel.default("CartPole-v1", 3, success="return>=475", max_episode_steps=500)


def test_an_evaluation_of_the_panel_is_judged_by_its_rule() -> None:
    judged = examined(PANEL, Evaluation.of(PANEL.seeds, [500.0, 474.0, 475.0], [500, 474, 475]))
    assert judged.successes is not None
    assert judged.successes.tolist() == [True, False, True]
    given = Evaluation.of(PANEL.seeds, [500.0, 474.0, 475.0], [500, 474, 475], [True, False, True])
    assert examined(PANEL, given) is given


@pytest.mark.parametrize(
    ("seeds", "returns", "length", "successes", "message"),
    [
        (PANEL.seeds[:1], [500.0], 500, None, "must hold the 3 episodes of its panel, not 1"),
        (range(3), [500.0] * 3, 500, None, f"episode 0 has seed 0, the panel's is {PANEL.seeds[0]}"),
        (PANEL.seeds[::-1], [500.0] * 3, 500, None, "in their order"),
        (held_out_seeds(500, 3), [500.0] * 500, 500, None, "not 500"),
        (PANEL.seeds, [10.0] * 3, 10, [True] * 3, "contradict its panel's 'return>=475.0': episode 0 with return 10"),
        (PANEL.seeds, [500.0] * 3, 501, None, "go up to 501, its panel stops at 500"),
        (PANEL.seeds, [500.0] * 3, 0, None, "episode 0 of the evaluation has length 0 and return 500"),
    ],
)
def test_any_other_evaluation_is_refused(
    seeds: Any, returns: list[float], length: int, successes: list[bool] | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        examined(PANEL, Evaluation.of(seeds, returns, [length] * len(returns), successes))


def test_success_is_said_exactly_where_the_panel_asks_who_played() -> None:
    flag = Panel("e", PANEL.seeds, success="info:is_success")
    bare = Evaluation.of(PANEL.seeds, [1.0] * 3, [1] * 3)
    said = Evaluation.of(PANEL.seeds, [1.0] * 3, [1] * 3, [True, False, True])
    assert examined(flag, said) is said
    with pytest.raises(UsageError, match="are missing"):
        examined(flag, bare)
    with pytest.raises(UsageError, match="defines no success"):
        examined(Panel("e", PANEL.seeds), said)
