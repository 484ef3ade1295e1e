"""What a run costs that reaches the target: the first of the questions that a comparison of costs asks.

The typical cost is the geometric mean, the middle of costs on a logarithmic scale. Where one arm's costs are those of
the other times a factor, the ratio of typical costs is that factor, as are the ratios of medians and of means; of the
three it is the one that few runs with heavy tails still show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mileage._types import F64
from mileage.stats.cost import RunCosts
from mileage.stats.intervals import DEFAULT_LEVEL, FEWEST_RUNS, Estimate, Interval, welch_half_width

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
