"""Intervals, and the one sentence that stands in for an interval when there are too few runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from mileage.errors import UsageError
from mileage.types import F64

# Below this many runs no interval is shown, only a statement.
FEWEST_RUNS = 3
DEFAULT_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval from `low` to `high` that covers the true value with probability `level`; infinite: no bound."""

    low: float
    high: float
    level: float = DEFAULT_LEVEL

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def spelled(self, spell: Callable[[float], str] = "{:.4g}".format, between: str = " to ") -> str:
        """Both ends as text; an end that is not there says so."""
        return f"{spell(self.low)}{between}{'no upper bound' if math.isinf(self.high) else spell(self.high)}"

    def __str__(self) -> str:
        return self.spelled()

    def as_list(self) -> list[float | None]:
        """Both ends as JSON values: an upper end that is not there is null."""
        return [self.low, None if math.isinf(self.high) else self.high]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A point value with its interval, or with the reason why there is none."""

    value: float | None
    interval: Interval | None
    statement: str = ""
    runs: int = field(default=0, compare=False)
    """How many runs it is of, where whoever shows it says so."""


def too_few(n: int) -> str:
    """What is said instead of an interval for `n` runs."""
    return f"{n} run{'' if n == 1 else 's'}: too few for an interval, at least {FEWEST_RUNS} are needed"


def samples(values: ArrayLike, name: str = "values", ndim: int = 1) -> F64:
    """`values` as finite float64 of `ndim` dimensions, at least one element."""
    array = np.asarray(values, np.float64)
    if array.ndim != ndim or array.size == 0 or not np.isfinite(array).all():
        raise UsageError(f"{name} must be a non-empty array of finite numbers with {ndim} dimension(s)")
    return array


def quantile_interval(draws: F64, level: float = DEFAULT_LEVEL) -> Interval:
    """Equal-tailed interval of simulated values `draws`, (d,) float64."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)


def median_estimate(values: ArrayLike, level: float = DEFAULT_LEVEL) -> Estimate:
    """Median of `values`, (n,) float64, with the distribution-free interval between two order statistics.

    The number of values below the true median is Binomial(n, 1/2) whatever the distribution, so the interval from the
    k-th smallest to the k-th largest covers it with a known probability (Thompson, 1936). Fewer than six values cannot
    reach 95 %: the interval then spans all of them and its `level` says what it does reach.
    """
    from scipy.stats import binom  # takes most of a second to import, which comparing costs does not need

    ordered = np.sort(samples(values))
    n = len(ordered)
    median = float(np.median(ordered))
    if n < FEWEST_RUNS:
        return Estimate(median, None, too_few(n), n)
    # The largest k with P(fewer than k values on one side) <= (1 - level) / 2, at least 1.
    below = int(binom.ppf((1 - level) / 2, n, 0.5))
    if binom.cdf(below, n, 0.5) > (1 - level) / 2:
        below -= 1
    k = max(below + 1, 1)
    reached = float(1 - 2 * binom.cdf(k - 1, n, 0.5))
    statement = "" if reached >= level else f"{n} values: the interval covers {reached:.0%}, not {level:.0%}"
    return Estimate(median, Interval(float(ordered[k - 1]), float(ordered[n - k]), reached), statement, n)


def median_ratio_estimate(numerator: ArrayLike, denominator: ArrayLike, level: float = DEFAULT_LEVEL) -> Estimate:
    """Ratio of the medians of two sets of positive values, (n,) and (m,) float64, with its interval.

    Times are positive and skewed, so all arithmetic is on their logarithms. With three to ten runs the order statistics
    of two medians hold too little for a ratio; the interval is Student's t around it, with standard errors joined as
    Welch does for unequal variances. That of a median is at most sqrt(pi/2) times that of a mean of normal data.
    """
    above, below = samples(numerator, "numerator"), samples(denominator, "denominator")
    ratio = float(np.median(above) / np.median(below))
    runs = min(len(above), len(below))
    if runs < FEWEST_RUNS:
        return Estimate(ratio, None, too_few(runs), runs)
    scatter = [np.pi / 2 * float(np.log(side).var(ddof=1)) for side in (above, below)]
    half = welch_half_width(scatter, (len(above), len(below)), 1.0 - level)
    return Estimate(ratio, Interval(ratio * math.exp(-half), ratio * math.exp(half), level), "", runs)


def welch_half_width(variances: Sequence[float], sizes: Sequence[int], alpha: float) -> float:
    """Half the width of Welch's interval of a difference of means, of two samples with these variances and sizes."""
    errors = [variance / n for variance, n in zip(variances, sizes, strict=True)]
    total = sum(errors)
    if total == 0.0:
        return 0.0
    from scipy.special import stdtrit  # as above

    freedom = total**2 / sum(error**2 / (n - 1) for error, n in zip(errors, sizes, strict=True))
    return float(stdtrit(freedom, 1.0 - alpha / 2.0)) * math.sqrt(total)
