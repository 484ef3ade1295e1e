"""Expected cost to target, how often runs fail, and what a run costs that reaches the target, with intervals.

The point value is the expected running time of black-box optimisation (Auger and Hansen, 2005): the cost of all runs
over the number that reached the target. The interval is a posterior, because a failure that has not been seen cannot
be resampled and a percentile bootstrap of five runs covers about 70 % where it claims 95 %:

- success probability: Beta(1/2, 1/2) prior;
- cost of a success: a log-normal and a gamma model; the interval spans what either allows. Log-normal alone misses
  costs with a heavy lower tail, gamma alone those with a heavy upper one (docs/statistics.md has the study);
- cost of a failure: Bayesian bootstrap of the failures seen, or the budget if none was. Without a failure and without a
  budget nobody knows what one would cost, and there is no upper bound;
- start-up, such as compiling kernels that later runs load: Bayesian bootstrap of what was seen, added to every run. It
  has nothing to do with how training went, and one cold run among warm ones would look like a very heavy tail.

The typical cost is the geometric mean, the middle of costs on a logarithmic scale. Where one arm's costs are those of
the other times a factor, the ratio of typical costs is that factor, as are the ratios of medians and of means; of the
three it is the one that few runs with heavy tails still show.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from mileage.errors import UsageError
from mileage.measure.intervals import DEFAULT_LEVEL, FEWEST_RUNS, Estimate, Interval, samples, too_few, welch_half_width
from mileage.types import F64, Bool

DEFAULT_DRAWS = 20_000
# The prior on the log-scale variance weighs as much as five runs whose log-costs deviate by 0.9 each, a factor of 2.4:
# three runs that happen to agree do not show that a fourth one would (costs with two modes, ten times apart), and three
# that do not say nothing of factors of a million.
PRIOR_RUNS = 5.0
PRIOR_SCATTER = 4.0
# Successes are few whole numbers, and the lower end of an interval errs where the upper one does not: it asks for this
# share of the error.
_LOWER_SHARE = 0.4
NO_UPPER_BOUND = 1000.0
"""An upper end this many times the value says nothing that "no upper bound" does not."""
_GAMMA_SHAPES = np.geomspace(0.1, 1000.0, 160)
_LARGEST_EXPONENT = 700.0
_LARGEST_STARTUP = 0.999


@dataclass(frozen=True, slots=True)
class RunCosts:
    """Costs of a panel of runs up to their stop, in launch order: reached, not reached, crashed and killed alike.

    `costs` is (n,) float64 and positive, in dollars or seconds; `reached` is (n,) bool; `startup` is (n,) float64, the
    part of each cost that was spent before training; `budget` is what a run that never reaches the target costs before
    it is stopped, start-up left out, if there is such a limit. It prices failures that nobody has seen, in the interval
    of the expected cost and nowhere else: no verdict looks at it.
    """

    costs: F64
    reached: Bool
    budget: float | None
    startup: F64

    @classmethod
    def of(
        cls, costs: ArrayLike, reached: ArrayLike, budget: float | None = None, startup: ArrayLike | None = None
    ) -> RunCosts:
        """Check and copy; `costs`, `reached` and `startup` have one entry per run, `startup` is 0 if left out."""
        cost_array = samples(costs, "costs").copy()
        reached_array = np.array(reached)
        if reached_array.dtype != np.bool_ or reached_array.shape != cost_array.shape:
            raise UsageError("reached must be a boolean array with one entry per cost")
        if (cost_array < 0).any() or (cost_array[reached_array] == 0).any():
            raise UsageError("costs must not be negative, and a run that reached the target must have a cost above 0")
        if budget is not None and not budget > 0:
            raise UsageError(f"budget {budget} cannot be used: give a positive cost, or None if runs have no limit")
        startup_array = np.zeros_like(cost_array) if startup is None else samples(startup, "startup").copy()
        if startup_array.shape != cost_array.shape or (startup_array < 0).any():
            raise UsageError("startup must have one entry per cost, none of them negative")
        # Something of a cost is always left to chance; otherwise its logarithm does not exist.
        startup_array = np.minimum(startup_array, _LARGEST_STARTUP * cost_array)
        cost_array.flags.writeable = reached_array.flags.writeable = startup_array.flags.writeable = False
        return cls(cost_array, reached_array, budget, startup_array)

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def successes(self) -> int:
        """How many runs reached the target."""
        return int(self.reached.sum())

    @property
    def spent(self) -> float:
        """Cost of all runs together."""
        return float(self.costs.sum())

    @property
    def training(self) -> F64:
        """Costs without start-up, (n,) float64."""
        return self.costs - self.startup

    def first(self, n: int) -> RunCosts:
        """The first `n` runs in launch order."""
        return RunCosts(self.costs[:n], self.reached[:n], self.budget, self.startup[:n])


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """Expected cost to target; `value` is None if no run reached it, `spent` is what was paid all the same."""

    value: float | None
    interval: Interval | None
    runs: int
    successes: int
    spent: float
    statement: str = ""


def point_cost(runs: RunCosts) -> float | None:
    """Cost of all runs over the number that reached the target; None if none did."""
    return runs.spent / runs.successes if runs.successes else None


def expected_cost(
    runs: RunCosts, *, level: float = DEFAULT_LEVEL, draws: int = DEFAULT_DRAWS, seed: int = 0
) -> ExpectedCost:
    """Expected cost to target of a panel of runs with its posterior interval."""
    n, successes = len(runs), runs.successes
    if successes == 0:
        return ExpectedCost(None, None, n, 0, runs.spent, f"not reached in {n} run{'' if n == 1 else 's'}")
    if n < FEWEST_RUNS:
        return ExpectedCost(point_cost(runs), None, n, successes, runs.spent, too_few(n))
    interval = _interval(runs, level, draws, np.random.default_rng(seed))
    return ExpectedCost(point_cost(runs), interval, n, successes, runs.spent)


def _interval(runs: RunCosts, level: float, draws: int, rng: np.random.Generator) -> Interval:
    """What any of the models allows, the point value included."""
    value = runs.spent / runs.successes
    success_costs, failures_paid = _posterior_parts(runs, draws, rng)
    tail = (1.0 - level) / 2.0
    lows, highs = [value], [value]
    for success_cost in success_costs:
        total = success_cost + failures_paid
        lows.append(float(np.quantile(total, _LOWER_SHARE * tail)))
        highs.append(float(np.quantile(total, 1.0 - tail)))
        if runs.successes == len(runs):
            # Failures may also never happen. An equal-tailed interval leaves out that edge; as for a proportion (Brown,
            # Cai and DasGupta, 2001), the end that nothing speaks against is extended to it.
            lows.append(float(np.quantile(success_cost, _LOWER_SHARE * tail)))
    unpriced = runs.successes == len(runs) and runs.budget is None
    high = max(highs)
    return Interval(min(lows), math.inf if unpriced or high > NO_UPPER_BOUND * value else high, level)


def posterior_draws(runs: RunCosts, draws: int, rng: np.random.Generator) -> F64:
    """Draw `draws` expected costs to target from their posterior under the log-normal model, (draws,) float64.

    Without a success the cost of one is unknown: it counts as 0 and the draws are a lower bound.
    """
    success_costs, failures_paid = _posterior_parts(runs, draws, rng)
    return success_costs[0] + failures_paid


def _posterior_parts(runs: RunCosts, draws: int, rng: np.random.Generator) -> tuple[list[F64], F64]:
    """Draws of the cost of one success, model by model, and of the failures paid for it, (draws,) float64 each."""
    successes, n = runs.successes, len(runs)
    p = rng.beta(0.5 + successes, 0.5 + n - successes, draws)
    costs = runs.training[runs.reached]
    success_costs = [_log_normal_mean(costs, draws, rng)] if successes else [np.zeros(draws)]
    if successes > 1:
        success_costs.append(_gamma_mean(costs, draws, rng))
    failure_cost = _failure_cost(runs, draws, rng)
    if runs.startup.any():
        startup = rng.dirichlet(np.ones(n), draws) @ runs.startup
        failure_cost = failure_cost + startup
        success_costs = [each + startup for each in success_costs] if successes else success_costs
    return success_costs, (1.0 - p) / p * failure_cost


def _failure_cost(runs: RunCosts, draws: int, rng: np.random.Generator) -> F64:
    """Posterior draws of the mean cost of a failed run, start-up left out."""
    failed = runs.training[~runs.reached]
    if len(failed):
        return np.asarray(rng.dirichlet(np.ones(len(failed)), draws) @ failed)
    # A budget below what runs have cost is no limit to anything.
    return np.full(draws, max(runs.budget or 0.0, runs.training.max()))


def _log_normal_mean(costs: F64, draws: int, rng: np.random.Generator) -> F64:
    """Mean exp(mu + v / 2), with a scaled inverse chi-square posterior on v and a normal one on mu given v."""
    logs = np.log(costs)
    n = len(logs)
    scatter = PRIOR_SCATTER + float(((logs - logs.mean()) ** 2).sum())
    variance = scatter / rng.chisquare(PRIOR_RUNS + n - 1, draws)
    mu = logs.mean() + np.sqrt(variance / n) * rng.standard_normal(draws)
    return np.asarray(np.exp(np.minimum(mu + variance / 2, _LARGEST_EXPONENT)))


def _gamma_mean(costs: F64, draws: int, rng: np.random.Generator) -> F64:
    """Mean shape × scale, the scale integrated out under its reference prior, the log of the shape flat on a grid."""
    n, total, log_sum = len(costs), costs.sum(), np.log(costs).sum()
    k = _GAMMA_SHAPES
    log_likelihood = _shape_terms(n) + k * log_sum - n * k * np.log(total)
    weight = np.exp(log_likelihood - log_likelihood.max())
    shape = rng.choice(k, draws, p=weight / weight.sum())
    return np.asarray(shape * total / rng.gamma(n * shape))


@functools.cache
def _shape_terms(n: int) -> F64:
    """What the likelihood of each shape has from `n` costs, whatever they are. SciPy's function imports too slowly."""
    return np.array([math.lgamma(n * k) - n * math.lgamma(k) for k in _GAMMA_SHAPES])


# --- How often runs fail: the second question that a comparison of costs asks. Exact, by counting ---
_BISECTIONS = 60


class Reliability(StrEnum):
    """Which arm fails less often."""

    A = "A fails less often"
    B = "B fails less often"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class FailureComparison:
    """How often the runs of two arms fail."""

    verdict: Reliability
    a: Estimate
    b: Estimate
    p_value: float
    """Of Fisher's exact test, two-sided by doubling."""

    @property
    def statement(self) -> str:
        """One sentence."""
        return f"{self.verdict}: A {_spelled(self.a)}, B {_spelled(self.b)}"


def failure_rate(runs: RunCosts, level: float = DEFAULT_LEVEL) -> Estimate:
    """Share of the runs that did not reach the target, with the exact interval of Clopper and Pearson (1934)."""
    n, failed = len(runs), len(runs) - runs.successes
    tail = (1 - level) / 2
    low = 0.0 if failed == 0 else _crossing(lambda p: 1 - _at_most(failed - 1, n, p) - tail)
    high = 1.0 if failed == n else _crossing(lambda p: tail - _at_most(failed, n, p))
    return Estimate(failed / n, Interval(low, high, level), "", n)


def compare_failures(a: RunCosts, b: RunCosts, alpha: float) -> FailureComparison:
    """Fisher's exact test of whether the runs of one arm fail more often than those of the other."""
    value = fisher(a.successes, len(a), b.successes, len(b))
    verdict = Reliability.UNDECIDED
    if value <= alpha:
        verdict = Reliability.A if a.successes * len(b) > b.successes * len(a) else Reliability.B
    return FailureComparison(verdict, failure_rate(a), failure_rate(b), value)


def fisher(successes_a: int, n_a: int, successes_b: int, n_b: int) -> float:
    """Two-sided p-value, twice the smaller tail, of equal success rates given the number of all successes."""
    total, whole = successes_a + successes_b, comb(n_a + n_b, successes_a + successes_b)
    weights = {k: comb(n_a, k) * comb(n_b, total - k) for k in range(max(0, total - n_b), min(n_a, total) + 1)}
    below = sum(weight for k, weight in weights.items() if k <= successes_a)
    above = sum(weight for k, weight in weights.items() if k >= successes_a)
    return min(1.0, 2 * min(below, above) / whole)


def _at_most(k: int, n: int, p: float) -> float:
    """Probability of at most `k` failures in `n` runs."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def _crossing(rising: Callable[[float], float]) -> float:
    """Where a function that rises over 0 to 1 crosses 0."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def _spelled(rate: Estimate) -> str:
    assert rate.value is not None
    assert rate.interval is not None
    failed = round(rate.value * rate.runs)
    return f"failed in {failed} of {rate.runs} runs ({100 * rate.interval.low:.0f} to {100 * rate.interval.high:.0f} %)"


# --- What a run costs that reaches the target: the first of the questions that a comparison of costs asks ---
ENOUGH_RUNS = 5
"""Fewer may easily all be of one kind where there are two: 25 % of the time for three runs, 6 % for five."""
LEAST_HALF_WIDTH = math.log(3.5)
"""Of the interval of so few, on logarithms."""


@dataclass(frozen=True, slots=True)
class TypicalRatio:
    """A's typical cost over B's, with what is needed to say how many runs would settle it."""

    ratio: float
    interval: Interval
    confidence_a_cheaper: float
    """One minus the one-sided p-value of the opposite."""
    needed: float
    """Runs per arm that decide a gap like this with 80 % power; infinite if there is none."""


def typical_cost(runs: RunCosts, level: float = DEFAULT_LEVEL) -> Estimate:
    """Geometric mean of the costs of the runs that reached the target, with Student's interval on logarithms.

    Costs are skewed even then, so the interval is the one for half the error. Fewer than five runs that agree may all
    be of one kind where there are two, ten times apart: their interval spans a factor of 3.5 either way at least.
    """
    from scipy.special import stdtrit  # takes a while to import, which listing runs does not need

    logs = _logs(runs)
    n = len(logs)
    if n == 0:
        return Estimate(None, None, "not reached", 0)
    middle = float(logs.mean())
    if n < FEWEST_RUNS:
        return Estimate(math.exp(middle), None, too_few_reached(n), n)
    half = float(stdtrit(n - 1, typical_quantile(level))) * float(logs.std(ddof=1)) / math.sqrt(n)
    half = half if n >= ENOUGH_RUNS else max(half, LEAST_HALF_WIDTH)
    return Estimate(math.exp(middle), Interval(math.exp(middle - half), math.exp(middle + half), level), "", n)


def typical_quantile(level: float) -> float:
    """The quantile of Student's distribution that bounds the typical cost: that of half the error."""
    return 1.0 - (1.0 - level) / 4.0


def typical_ratio(a: RunCosts, b: RunCosts, alpha: float) -> TypicalRatio | None:
    """A's typical cost over B's with Welch's interval on logarithms; None with fewer than 3 successes in an arm.

    The scatter is what was seen: what a single arm's interval has to allow for, that its costs have a shape that three
    runs do not show, concerns both arms alike and cancels in their ratio.
    """
    from scipy.special import ndtri, stdtr

    logs = _logs(a), _logs(b)
    sizes = len(logs[0]), len(logs[1])
    if min(sizes) < FEWEST_RUNS:
        return None
    variances = [float(side.var(ddof=1)) for side in logs]
    gap = float(logs[0].mean() - logs[1].mean())
    half = welch_half_width(variances, sizes, alpha)
    interval = Interval(math.exp(gap - half), math.exp(gap + half), 1 - alpha)
    errors = [variance / n for variance, n in zip(variances, sizes, strict=True)]
    if sum(errors) == 0.0:
        cheaper = 0.5 if gap == 0 else float(gap < 0)
    else:
        freedom = sum(errors) ** 2 / sum(error**2 / (n - 1) for error, n in zip(errors, sizes, strict=True))
        cheaper = float(stdtr(freedom, -gap / math.sqrt(sum(errors))))
    quantiles = float(ndtri(1 - alpha / 2) + ndtri(0.8))
    needed = math.inf if gap == 0 else sum(variances) * (quantiles / gap) ** 2 + 1
    return TypicalRatio(math.exp(gap), interval, cheaper, needed)


def too_few_reached(n: int) -> str:
    """What is said instead of an interval where `n` runs reached the target."""
    return f"reached by {n} run{'' if n == 1 else 's'}: too few for an interval, at least {FEWEST_RUNS} are needed"


def _logs(runs: RunCosts) -> F64:
    return np.asarray(np.log(runs.costs[runs.reached]))
