"""Intervals for medians of a few timed runs, and for ratios of two such medians.

Build times are positive and skewed, so all arithmetic is on their logarithms. With three to ten runs a percentile
bootstrap of a median only ever returns the observed values; here the interval is Student's t around the median
with the standard error of a median, which is at most sqrt(pi/2) times that of a mean of normal data.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95
MIN_RUNS_FOR_INTERVAL = 3
# The large-sample ratio of the standard errors of median and mean; for small samples it is a little smaller.
MEDIAN_INEFFICIENCY = math.sqrt(math.pi / 2)


@dataclass(frozen=True)
class Estimate:
    """A point value and its 95 % interval; `low` and `high` are None when there are too few runs for one."""

    value: float
    low: float | None
    high: float | None
    runs: int

    @property
    def has_interval(self) -> bool:
        """Whether there were enough runs for an interval."""
        return self.low is not None and self.high is not None


def median_estimate(seconds: Sequence[float]) -> Estimate | None:
    """Return the median of `seconds` with its interval, or None of nothing."""
    if not seconds:
        return None
    median = statistics.median(seconds)
    if len(seconds) < MIN_RUNS_FOR_INTERVAL:
        return Estimate(median, None, None, len(seconds))
    error, freedom = _log_error(seconds), len(seconds) - 1
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return Estimate(median, median * math.exp(-half), median * math.exp(half), len(seconds))


def ratio_estimate(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate | None:
    """Return the ratio of two medians (a speedup: baseline over mode) with its interval, or None without data.

    The standard errors are joined as Welch does for unequal variances.
    """
    if not numerator or not denominator:
        return None
    ratio = statistics.median(numerator) / statistics.median(denominator)
    runs = min(len(numerator), len(denominator))
    if runs < MIN_RUNS_FOR_INTERVAL:
        return Estimate(ratio, None, None, runs)
    first, second = _log_error(numerator) ** 2, _log_error(denominator) ** 2
    if first + second == 0.0:
        return Estimate(ratio, ratio, ratio, runs)
    freedom = (first + second) ** 2 / (first**2 / (len(numerator) - 1) + second**2 / (len(denominator) - 1))
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(first + second)
    return Estimate(ratio, ratio * math.exp(-half), ratio * math.exp(half), runs)


def _log_error(seconds: Sequence[float]) -> float:
    """Return the standard error of the median of the logarithms."""
    logs = [math.log(second) for second in seconds]
    return MEDIAN_INEFFICIENCY * statistics.stdev(logs) / math.sqrt(len(logs))
