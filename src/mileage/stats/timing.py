"""Whether a series of timings can be trusted: outliers, a slow start, drift, a wide spread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from mileage._types import Bool
from mileage.stats.intervals import samples

# Iglewicz and Hoaglin (1993) call a modified z-score above 3.5 an outlier.
OUTLIER_SCORE = 3.5
# The MAD of a normal distribution times this is its standard deviation; the mean deviation stands in for a MAD of 0.
_MAD_TO_SD = 1.4826
_MEAN_DEVIATION_TO_SD = 1.2533
# pyperf's rule: a spread above a tenth of the value makes a benchmark unstable.
SPREAD_LIMIT = 0.10
DRIFT_P = 0.01
_FEWEST_FOR_DRIFT = 8
_FEWEST_FOR_OUTLIERS = 4


class Instability(StrEnum):
    """Why timings are not to be trusted, and what to try."""

    SLOW_START = "slow start"
    OUTLIERS = "outliers"
    DRIFT = "drift"
    WIDE_SPREAD = "wide spread"

    @property
    def remedy(self) -> str:
        """The next thing to try."""
        return _REMEDIES[self]


_REMEDIES = {
    Instability.SLOW_START: "add a warm-up run, or report the first run apart as cold",
    Instability.OUTLIERS: "quit other programs or pin the process, and repeat with more runs",
    Instability.DRIFT: "let the machine cool down, check for a filling disk or cache, and alternate the arms",
    Instability.WIDE_SPREAD: "measure longer runs, or more of them",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason not to trust a series, with its evidence."""

    kind: Instability
    evidence: str


def modified_z_scores(values: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """How many robust standard deviations each value, (n,) float64, lies from the median; 0 where all are equal."""
    array = samples(values)
    deviation = array - np.median(array)
    scale = _MAD_TO_SD * np.median(np.abs(deviation))
    if scale == 0:
        scale = _MEAN_DEVIATION_TO_SD * np.abs(deviation).mean()
    return np.zeros_like(deviation) if scale == 0 else np.asarray(deviation / scale)


def outliers(values: ArrayLike, threshold: float = OUTLIER_SCORE) -> Bool:
    """Which values, (n,) float64, are outliers, (n,) bool; none among fewer than four."""
    scores = modified_z_scores(values)
    if len(scores) < _FEWEST_FOR_OUTLIERS:
        return np.zeros(len(scores), np.bool_)
    return np.asarray(np.abs(scores) > threshold)


def instabilities(seconds: ArrayLike) -> tuple[Finding, ...]:
    """Findings on timings `seconds`, (n,) float64 in the order they were measured."""
    from scipy.stats import kendalltau  # takes most of a second to import

    array = samples(seconds, "seconds")
    outside = outliers(array)
    median = float(np.median(array))
    findings = []
    if outside[0] and array[0] > median:
        evidence = f"the first run took {array[0]:.4g} s, the median is {median:.4g} s"
        findings.append(Finding(Instability.SLOW_START, evidence))
    rest = int(outside[1:].sum())
    if rest:
        findings.append(Finding(Instability.OUTLIERS, f"{rest} of {len(array)} runs are outliers"))
    # A slow first run alone is no trend.
    steady = array[1:] if outside[0] else array
    if len(steady) >= _FEWEST_FOR_DRIFT:
        trend = kendalltau(np.arange(len(steady)), steady)
        if trend.pvalue < DRIFT_P:
            direction = "slower" if trend.statistic > 0 else "faster"
            findings.append(Finding(Instability.DRIFT, f"runs get {direction} (p = {trend.pvalue:.2g})"))
    inner = array[~outside]
    if len(inner) > 1 and median > 0:
        spread = float(inner.std(ddof=1)) / median
        if spread > SPREAD_LIMIT:
            evidence = f"the standard deviation is {spread:.0%} of the median"
            findings.append(Finding(Instability.WIDE_SPREAD, evidence))
    return tuple(findings)
