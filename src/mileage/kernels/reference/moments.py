"""Mean and variance of many samples at once, of `mileage.kernels.arrays.moments`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage._types import F64


def mean_and_variance(samples: Any, ddof: int = 0) -> tuple[F64, F64]:
    """Mean and variance over the first axis, float64: what `RunningMoments` holds after seeing `samples`."""
    samples = np.asarray(samples, np.float64)
    return samples.mean(axis=0), samples.var(axis=0, ddof=ddof)
