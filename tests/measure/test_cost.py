from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, gamma, norm

from mileage.errors import UsageError
from mileage.measure import RunCosts, expected_cost, point_cost
from mileage.measure.cost import _gamma_mean, _log_normal_mean, posterior_draws


def test_failed_runs_are_paid_for() -> None:
    # Five runs: 10 + 20 + 30 reached, 40 + 40 did not. One success costs 140 / 3.
    runs = RunCosts.of([10, 40, 20, 40, 30], [True, False, True, False, True])
    cost = expected_cost(runs)
    assert cost.value == pytest.approx(140 / 3)
    assert (cost.runs, cost.successes, cost.spent) == (5, 3, 140.0)
    assert cost.interval is not None
    assert cost.value in cost.interval


@given(
    st.lists(st.tuples(st.floats(0.1, 1e4), st.booleans()), min_size=1).filter(lambda runs: any(ok for _, ok in runs))
)
def test_point_value_is_the_published_expected_running_time(runs: list[tuple[float, bool]]) -> None:
    # Auger and Hansen (2005): ERT = E[T of successes] + (1 - p) / p E[T of failures].
    costs, reached = np.array([c for c, _ in runs]), np.array([ok for _, ok in runs])
    p = reached.mean()
    failed = costs[~reached].mean() if p < 1 else 0.0
    assert point_cost(RunCosts.of(costs, reached)) == pytest.approx(costs[reached].mean() + (1 - p) / p * failed)


def test_without_a_success_there_is_no_value_but_the_money_is_shown() -> None:
    cost = expected_cost(RunCosts.of([3.0, 4.0, 5.0, 6.0], np.zeros(4, bool)))
    assert (cost.value, cost.interval, cost.spent) == (None, None, 18.0)
    assert cost.statement == "not reached in 4 runs"


def test_two_runs_have_a_statement_instead_of_an_interval() -> None:
    cost = expected_cost(RunCosts.of([3.0, 5.0], [True, True]))
    assert (cost.value, cost.interval) == (4.0, None)
    assert cost.statement == "2 runs: too few for an interval, at least 3 are needed"


def test_log_normal_part_has_its_known_posterior_median() -> None:
    # 400 runs of log-mean 1 and log-sd 0.5: the posterior of the mean concentrates at exp(1 + 0.125) with a log
    # standard error of sqrt(v / n + v² / 2n) = 0.0265.
    logs = norm.ppf((np.arange(400) + 0.5) / 400, 1.0, 0.5)
    drawn = np.log(_log_normal_mean(np.exp(logs), 50_000, np.random.default_rng(0)))
    assert np.median(drawn) == pytest.approx(1.125, abs=0.005)
    assert drawn.std() == pytest.approx(np.sqrt(0.25 / 400 + 0.25**2 / 800), rel=0.05)


def test_gamma_part_concentrates_at_the_sample_mean() -> None:
    costs = gamma.ppf((np.arange(500) + 0.5) / 500, 2.0, scale=3.0)
    drawn = _gamma_mean(costs, 50_000, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(costs.mean(), rel=0.01)
    assert drawn.std() == pytest.approx(6.0 / np.sqrt(2.0) / np.sqrt(500), rel=0.02)


def test_the_interval_spans_what_either_model_allows() -> None:
    # Gamma costs with a long lower tail: the log-normal model alone takes it for a long upper one and starts too high.
    costs = np.random.default_rng(2).gamma(0.5, 1.0, 60)
    interval = expected_cost(RunCosts.of(costs, np.ones(60, bool), 2.0)).interval
    assert interval is not None
    rng = np.random.default_rng(0)
    assert interval.low < np.quantile(_gamma_mean(costs, 20_000, rng), 0.02)
    assert interval.high > np.quantile(_log_normal_mean(costs, 20_000, rng), 0.97)
    assert np.quantile(_log_normal_mean(costs, 20_000, rng), 0.02) > 0.5  # the true mean


@pytest.mark.parametrize("budget", [None, 1.0, 2.0, 10.0, 1e6])
@pytest.mark.parametrize("reached", [[True] * 5, [True, True, True, True, False], [True, False, False, False, False]])
def test_an_interval_holds_its_point_whatever_the_budget(budget: float | None, reached: list[bool]) -> None:
    cost = expected_cost(RunCosts.of([10, 11, 9, 10.5, 9.5], reached, budget=budget))
    assert cost.value is not None
    assert cost.interval is not None
    assert cost.value in cost.interval


@given(
    st.lists(st.tuples(st.floats(1e-6, 1e6), st.booleans()), min_size=3, max_size=12).filter(
        lambda runs: any(ok for _, ok in runs)
    ),
    st.none() | st.floats(1e-9, 1e9),
)
def test_every_interval_holds_its_point(runs: list[tuple[float, bool]], budget: float | None) -> None:
    cost = expected_cost(RunCosts.of([c for c, _ in runs], [ok for _, ok in runs], budget), draws=200)
    assert cost.value is not None
    assert cost.interval is not None
    assert cost.value in cost.interval


def test_a_failure_that_nobody_has_seen_and_nobody_has_priced_has_no_upper_bound() -> None:
    costs = [1.0, 1.1, 0.9, 1.0, 1.05]
    unknown = expected_cost(RunCosts.of(costs, [True] * 5)).interval
    assert unknown is not None
    assert str(unknown).endswith("to no upper bound")
    assert unknown.as_list()[1] is None
    seen = expected_cost(RunCosts.of([*costs, 5.0], [True] * 5 + [False])).interval
    assert seen is not None
    assert seen.high < 20.0


def test_an_upper_end_of_forty_digits_is_no_upper_bound() -> None:
    # Two successes a factor of 10,000 apart: nothing is known about what the next one costs.
    interval = expected_cost(RunCosts.of([0.01, 100.0, 5.0], [True, True, False])).interval
    assert interval is not None
    assert str(interval).endswith("to no upper bound")


def test_one_success_of_three_has_an_upper_bound_somebody_can_use() -> None:
    known = expected_cost(RunCosts.of([1.0, 5.0, 5.0], [True, False, False]))
    assert known.interval is not None
    assert known.value is not None
    assert known.interval.high < 30 * known.value


def test_success_probability_part_is_the_jeffreys_posterior() -> None:
    # No success: cost of a success counts 0, so draws = (1 - p) / p × 1 with p ~ Beta(1/2, 1/2 + 4).
    drawn = posterior_draws(RunCosts.of(np.ones(4), np.zeros(4, bool)), 200_000, np.random.default_rng(3))
    p = 1 / (1 + drawn)
    for q in (0.025, 0.5, 0.975):
        assert np.quantile(p, q) == pytest.approx(beta.ppf(q, 0.5, 4.5), abs=0.005)


def test_unseen_failures_cost_the_budget() -> None:
    costs, reached = [1.0, 1.1, 0.9, 1.0, 1.05], np.ones(5, bool)
    cheap, dear = (expected_cost(RunCosts.of(costs, reached, budget)).interval for budget in (2.0, 100.0))
    assert cheap is not None
    assert dear is not None
    # The upper end of p's posterior gives (1 - p) / p = 0.66 at 2.5 %: 66 of the dear budget of 100.
    upper = (1 - beta.ppf(0.025, 5.5, 0.5)) / beta.ppf(0.025, 5.5, 0.5)
    assert dear.high == pytest.approx(1.0 + 100 * upper, rel=0.05)
    assert cheap.high < 4.0
    # Failures may also never happen.
    assert dear.low < 1.0


def test_a_cold_first_run_is_paid_for_but_is_not_a_heavy_tail() -> None:
    # Five runs train for 0.28 to 0.32 s each; the first one compiled for 10 s before.
    train = np.array([0.30, 0.32, 0.28, 0.31, 0.29])
    startup = np.array([10.0, 0.0, 0.0, 0.0, 0.0])
    reached = np.ones(5, bool)
    cold = expected_cost(RunCosts.of(train + startup, reached, 2.0, startup))
    assert cold.value == pytest.approx(11.5 / 5)
    assert cold.interval is not None
    # The share of a start-up in a mean of five is Beta(1, 4): 10 × 0.602 at 97.5 %. A run that never succeeds adds its
    # start-up and budget, (1 - p) / p times, which is 0.66 at 2.5 % of p; both extremes together are rarer than that.
    upper = (1 - beta.ppf(0.025, 5.5, 0.5)) / beta.ppf(0.025, 5.5, 0.5)
    assert (
        10 * beta.ppf(0.975, 1, 4) < cold.interval.high < (0.5 + 10 * beta.ppf(0.975, 1, 4)) * (1 + upper) + 2 * upper
    )
    assert 0.25 < cold.interval.low < 0.6
    # Taken for chance, the same costs say nothing at all.
    blind = expected_cost(RunCosts.of(train + startup, reached, None))
    assert blind.interval is not None
    assert blind.interval.high > 10 * cold.interval.high


def test_an_equal_start_up_of_all_runs_shifts_the_interval() -> None:
    train, reached = np.array([1.0, 2.0, 1.5, 3.0, 4.0]), np.array([True, True, True, True, False])
    plain = posterior_draws(RunCosts.of(train, reached), 1000, np.random.default_rng(0))
    late = posterior_draws(RunCosts.of(train + 5.0, reached, None, np.full(5, 5.0)), 1000, np.random.default_rng(0))
    # Each run costs 5 more, and there are 1 / p of them for each success.
    p = np.random.default_rng(0).beta(4.5, 1.5, 1000)
    np.testing.assert_allclose(late, plain + 5.0 / p)


def test_interval_is_seeded_and_scales_with_the_unit() -> None:
    runs = RunCosts.of([10, 40, 20, 40, 30], [True, False, True, False, True], 40)
    dollars = RunCosts.of(runs.costs / 100, runs.reached, 0.4)
    first, again, other = expected_cost(runs), expected_cost(runs), expected_cost(runs, seed=1)
    assert first == again != other
    in_dollars = expected_cost(dollars).interval
    assert in_dollars is not None
    assert first.interval is not None
    assert in_dollars.high == pytest.approx(first.interval.high / 100)


def test_one_success_among_failures_still_has_an_interval() -> None:
    cost = expected_cost(RunCosts.of([5.0, 9.0, 9.0, 9.0], [True, False, False, False], 9.0))
    assert cost.value == 32.0
    assert cost.interval is not None
    assert cost.interval.low < 32.0 < cost.interval.high


@pytest.mark.parametrize(
    ("costs", "reached", "budget", "message"),
    [
        ([1.0], [1], None, "reached must be a boolean"),
        ([1.0, 2.0], [True], None, "one entry per cost"),
        ([-1.0], [True], None, "must not be negative"),
        ([0.0], [True], None, "above 0"),
        ([np.inf], [True], None, "finite"),
        ([], [], None, "non-empty"),
        ([1.0], [True], 0.0, "budget 0.0 cannot be used"),
    ],
)
def test_unusable_runs_are_refused(costs: list[float], reached: list[bool], budget: float | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunCosts.of(costs, reached, budget)
