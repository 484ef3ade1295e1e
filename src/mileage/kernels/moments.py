"""Running mean and variance of a stream of vectors, in one pass, mergeable across streams."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from mileage.errors import UsageError
from mileage.kernels.machine.checks import F32_DTYPE, F64_DTYPE, check_all_finite, check_array
from mileage.kernels.machine.jit import kernel
from mileage.types import F32, F64


def joined(
    count: float, mean: F64, squares: F64, n: float, other_mean: F64, other_squares: F64
) -> tuple[float, F64, F64]:
    """Count, mean and sum of squared deviations of two sets of samples together (Chan, Golub and LeVeque, 1983)."""
    total = count + n
    delta = other_mean - mean
    return total, mean + delta * n / total, squares + other_squares + np.square(delta) * count * n / total


def merged(moments: F64, batch: F64) -> F64:
    """Moments (3, ...), which are count, mean and sum of squared deviations, after a batch (B, ...) joined them."""
    count, mean, squares = moments
    # Whoever reads them looks at what is not finite.
    with np.errstate(invalid="ignore", over="ignore"):
        batch_mean = batch.mean(axis=0)
        batch_squares = np.square(batch - batch_mean).sum(axis=0)
        parts = joined(count, mean, squares, batch.shape[0], batch_mean, batch_squares)
    return np.stack([np.broadcast_to(part, np.shape(mean)) for part in parts])


class RunningMoments:
    """Mean and variance of everything seen so far, per component (Welford, 1962), in float64.

    Two of them merge into what one would hold that had seen both streams (Chan, Golub and LeVeque, 1983).

    Attributes:
        shape: shape of one sample.
        mean: float64 array of `shape`; zeros before the first sample.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        try:
            self.shape = tuple(map(operator.index, shape))
        except TypeError:
            raise UsageError(f"shape must be a tuple of whole numbers, not {shape!r}") from None
        if min(self.shape, default=0) < 0:
            raise UsageError(f"shape must be a tuple of whole numbers of 0 or more, not {shape!r}")
        self.mean: F64 = np.zeros(self.shape, np.float64)
        self._m2: F64 = np.zeros(self.shape, np.float64)
        self._count: F64 = np.zeros(1, np.float64)
        # The kernel's views: components in a row, whatever their shape.
        self._flat = (self._count, self.mean.reshape(-1), self._m2.reshape(-1))

    @property
    def count(self) -> int:
        """Number of samples seen."""
        return int(self._count[0])

    def update(self, batch: F32 | F64, *, check_finite: bool = False) -> None:
        """Take in the samples of `batch`, (B, *shape) float32 or float64, C-contiguous; B may be 0."""
        is_array = isinstance(batch, np.ndarray)
        dtype = F64_DTYPE if is_array and batch.dtype is F64_DTYPE else F32_DTYPE
        length = len(batch) if is_array and batch.ndim else 0
        check_array("batch", batch, (length, *self.shape), dtype)
        if check_finite:
            check_all_finite(batch=batch)
        take_rows(batch.reshape(length, -1) if length else batch.reshape(0, self.mean.size), *self._flat)

    def merge(self, other: RunningMoments) -> None:
        """Take in everything `other` has seen; `other` stays as it is."""
        if not isinstance(other, RunningMoments):
            raise UsageError(f"other must be RunningMoments, not {type(other).__name__}")
        if other.shape != self.shape:
            raise UsageError(f"other must describe samples of shape {self.shape}, not {other.shape}")
        if not other.count:
            return
        own = float(self._count[0]), self.mean, self._m2
        self._count[0], self.mean[...], self._m2[...] = joined(*own, float(other._count[0]), other.mean, other._m2)

    def variance(self, ddof: int = 0) -> F64:
        """Variance per component, float64 of `shape`; NaN while there are not more than `ddof` samples."""
        degrees = self.count - ddof
        return self._m2 / degrees if degrees > 0 else np.full(self.shape, math.nan)

    def std(self, ddof: int = 0) -> F64:
        """Standard deviation per component, float64 of `shape`."""
        return np.sqrt(self.variance(ddof))

    def state(self) -> dict[str, F64]:
        """Copies of what a checkpoint has to keep: count (1,), mean and m2 of `shape`, float64."""
        return {"count": self._count.copy(), "mean": self.mean.copy(), "m2": self._m2.copy()}

    @classmethod
    def from_state(cls, state: dict[str, F64]) -> RunningMoments:
        """Continue from what `state` returned."""
        missing = {"count", "mean", "m2"} - set(state)
        if missing:
            raise UsageError(f"state lacks {', '.join(sorted(missing))}")
        moments = cls(np.shape(state["mean"]))
        for name, target in (("count", moments._count), ("mean", moments.mean), ("m2", moments._m2)):
            if np.shape(state[name]) != target.shape:
                raise UsageError(f"state[{name!r}] must have shape {target.shape}, not {np.shape(state[name])}")
            target[...] = state[name]
        return moments


@kernel(fastmath={"contract"})
def take_rows(batch: Any, count_state: Any, mean_state: Any, m2_state: Any) -> None:
    """Welford's update with each row of `batch` (B, D); states are float64, (1,), (D,) and (D,)."""
    rows, width = batch.shape
    count = count_state[0]
    for row in range(rows):
        count += 1.0
        weight = 1.0 / count
        for d in range(width):
            delta = batch[row, d] - mean_state[d]
            mean = mean_state[d] + delta * weight
            m2_state[d] += delta * (batch[row, d] - mean)
            mean_state[d] = mean
    count_state[0] = count
