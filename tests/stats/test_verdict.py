from __future__ import annotations

import numpy as np
import pytest

from mileage._errors import UsageError
from mileage.stats import LOOK_ALPHAS, LOOKS, RunCosts, Verdict, compare_at_looks, compare_costs


def panel(seed: int, n: int, mean: float, spread: float = 0.2) -> RunCosts:
    costs = mean * np.exp(spread * np.random.default_rng(seed).standard_normal(n))
    return RunCosts.of(costs, np.ones(n, bool), budget=3 * mean)


def test_a_large_gap_is_decided_either_way() -> None:
    cheap, dear = panel(0, 20, 1.0), panel(1, 20, 5.0)
    ahead, behind = compare_costs(cheap, dear), compare_costs(dear, cheap)
    assert ahead.verdict is Verdict.A_CHEAPER
    assert behind.verdict is Verdict.B_CHEAPER
    assert ahead.ratio is not None
    assert behind.ratio == pytest.approx(1 / ahead.ratio)
    assert ahead.interval is not None
    assert ahead.ratio in ahead.interval
    assert ahead.interval.high < 1.0
    assert str(ahead).startswith("A cheaper: A costs 0.191 times what B costs (0.1")


def test_equal_panels_are_undecided() -> None:
    outcome = compare_costs(panel(0, 5, 1.0), panel(1, 5, 1.0))
    assert outcome.verdict is Verdict.UNDECIDED
    assert outcome.more_runs is not None
    assert "more run" in outcome.statement


def test_more_runs_are_about_what_a_decision_takes() -> None:
    few = compare_costs(panel(2, 5, 1.0, 0.6), panel(3, 5, 2.0, 0.6))
    assert few.verdict is Verdict.UNDECIDED
    assert few.more_runs is not None
    assert 1 <= few.more_runs <= 50
    enough = 5 + few.more_runs
    decided = [
        compare_costs(panel(2 * s, enough, 1.0, 0.6), panel(2 * s + 1, enough, 2.0, 0.6)).verdict for s in range(10)
    ]
    assert decided.count(Verdict.A_CHEAPER) >= 7


def test_an_arm_that_never_reaches_the_target_can_lose_and_not_win() -> None:
    reached = panel(0, 20, 1.0)
    never = RunCosts.of(np.full(20, 0.5), np.zeros(20, bool))
    outcome = compare_costs(reached, never)
    assert outcome.verdict is Verdict.A_CHEAPER
    assert outcome.ratio is None
    assert "B did not reach the target in 20 runs" in outcome.statement
    cheap_but_never = RunCosts.of(np.full(20, 1e-6), np.zeros(20, bool))
    assert compare_costs(reached, cheap_but_never).verdict is Verdict.UNDECIDED
    assert "neither" in compare_costs(never, never).statement


def test_too_few_runs_are_a_statement() -> None:
    outcome = compare_costs(panel(0, 2, 1.0), panel(1, 9, 1.0))
    assert outcome.verdict is Verdict.UNDECIDED
    assert outcome.more_runs == 1
    assert "2 runs: too few" in outcome.statement


def test_looks_are_planned() -> None:
    assert LOOKS == (5, 10, 20, 30)
    assert LOOK_ALPHAS == (0.00005, 0.0039, 0.0184, 0.0412)
    early = compare_at_looks(panel(0, 4, 1.0), panel(1, 30, 9.0))
    assert early.verdict is Verdict.UNDECIDED
    assert early.more_runs == 1


def test_between_looks_the_answer_stands() -> None:
    a, b = panel(0, 30, 1.0, 0.5), panel(1, 30, 1.5, 0.5)
    at_ten = compare_at_looks(a.first(10), b.first(10))
    assert compare_at_looks(a.first(19), b.first(13)) == at_ten
    assert at_ten.runs_used == (10, 10)
    assert at_ten.alpha == 0.0039


def test_a_decision_is_not_taken_back() -> None:
    # A is far cheaper in the first ten runs and far dearer afterwards.
    costs = np.concatenate([panel(0, 10, 1.0).costs, panel(1, 20, 100.0).costs])
    a, b = RunCosts.of(costs, np.ones(30, bool)), panel(2, 30, 60.0)
    early, late = compare_at_looks(a.first(10), b.first(10)), compare_at_looks(a, b)
    assert early.verdict is Verdict.A_CHEAPER
    assert late == early


def test_error_rate_between_equal_arms_is_small() -> None:
    wrong = sum(
        compare_at_looks(panel(2 * s, 30, 1.0, 0.5), panel(2 * s + 1, 30, 1.0, 0.5), draws=2000).verdict
        is not Verdict.UNDECIDED
        for s in range(60)
    )
    # 5 % of 60 is 3; more than 8 has a probability below 0.4 %.
    assert wrong <= 8


def test_a_comparison_is_seeded() -> None:
    a, b = panel(0, 6, 1.0), panel(1, 6, 1.3)
    assert compare_costs(a, b, seed=3) == compare_costs(a, b, seed=3)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1])
def test_unusable_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(UsageError, match="alpha"):
        compare_costs(panel(0, 5, 1.0), panel(1, 5, 1.0), alpha=alpha)
