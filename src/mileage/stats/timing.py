"""What a series of timings looks like: outliers, a trend, a spread. What follows from it is for experiments to say."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mileage._types import Bool
from mileage.stats.intervals import samples

# Iglewicz and Hoaglin (1993) call a modified z-score above 3.5 an outlier.
OUTLIER_SCORE = 3.5
# The MAD of a normal distribution times this is its standard deviation; the mean deviation stands in for a MAD of 0.
_MAD_TO_SD = 1.4826
_MEAN_DEVIATION_TO_SD = 1.2533
_FEWEST_FOR_TREND = 8
_FEWEST_FOR_OUTLIERS = 4


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


def trend(values: ArrayLike) -> tuple[float, float]:
    """Kendall's correlation of values, (n,) float64, with their order, and its p-value; (0, 1) of fewer than eight."""
    array = np.asarray(values, np.float64)
    if len(array) < _FEWEST_FOR_TREND or (array == array[0]).all():
        return 0.0, 1.0
    from scipy.stats import kendalltau  # takes most of a second to import

    found = kendalltau(np.arange(len(array)), array)
    return float(found.statistic), float(found.pvalue)


def spread(values: ArrayLike, of: float) -> float:
    """Standard deviation of values, (n,) float64, as a share of `of`; 0 of fewer than two."""
    array = np.asarray(values, np.float64)
    return float(array.std(ddof=1)) / of if len(array) > 1 and of > 0 else 0.0
