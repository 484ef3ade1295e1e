"""Running normalisation of observations and rewards, updated once per rollout, saved as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mileage.errors import UsageError, require
from mileage.types import F32, F64

_EPSILON = 1e-8


class RunningMoments:
    """Mean and variance over all batches seen, merged in one pass each (Chan, Golub and LeVeque, 1983)."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean: F64 = np.zeros(size)
        self._squares: F64 = np.zeros(size)

    @property
    def var(self) -> F64:
        """Variance of all that was seen, (size,) float64; ones before anything was."""
        return self._squares / self.count if self.count else np.ones_like(self.mean)

    def update(self, batch: NDArray[Any]) -> None:
        """Take in a batch, (..., size)."""
        rows = np.asarray(batch, np.float64).reshape(-1, len(self.mean))
        if not len(rows):
            return
        mean = rows.mean(axis=0)
        delta = mean - self.mean
        total = self.count + len(rows)
        self._squares += np.square(rows - mean).sum(axis=0) + np.square(delta) * (self.count * len(rows) / total)
        self.mean += delta * (len(rows) / total)
        self.count = total

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All that has to be saved."""
        return {"count": np.array(self.count), "mean": self.mean.copy(), "squares": self._squares.copy()}

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `to_arrays` returned."""
        if arrays["mean"].shape != self.mean.shape:
            raise UsageError(f"saved statistics are for {len(arrays['mean'])} values, not {len(self.mean)}")
        self.count = int(arrays["count"])
        self.mean[:] = arrays["mean"]
        self._squares[:] = arrays["squares"]


class ObsNormalizer:
    """Shifts and scales observations to mean 0 and variance 1, clipped to `[-clip, clip]`.

    `shift` and `scale`, (O,) float32, are what is applied: `(obs - shift) * scale`. They are updated in place, so that
    a kernel may keep pointing at them.
    """

    def __init__(self, obs_size: int, *, clip: float = 10.0) -> None:
        require(clip > 0, "clip", clip, "above 0")
        self.clip = clip
        self.frozen = False
        self.moments = RunningMoments(obs_size)
        self.shift: F32 = np.zeros(obs_size, np.float32)
        self.scale: F32 = np.ones(obs_size, np.float32)

    def update(self, batch: NDArray[Any]) -> None:
        """Learn from a rollout's raw observations, (..., O); does nothing when frozen."""
        if not self.frozen:
            self.moments.update(batch)
            self._refresh()

    def apply(self, obs: F32, out: F32 | None = None) -> F32:
        """Normalise raw observations, (..., O) float32, into `out` (may be `obs` itself) or a new array."""
        out = np.subtract(obs, self.shift, out=out, dtype=np.float32)
        np.multiply(out, self.scale, out=out)
        return np.clip(out, -self.clip, self.clip, out=out)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All that has to be saved to go on or to evaluate."""
        return self.moments.to_arrays()

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `to_arrays` returned."""
        self.moments.load_arrays(arrays)
        self._refresh()

    def _refresh(self) -> None:
        self.shift[:] = self.moments.mean
        self.scale[:] = 1.0 / np.sqrt(self.moments.var + _EPSILON)


class RewardScaler:
    """Divides rewards by the standard deviation of the discounted return so far (Engstrom et al., 2020), clipped.

    The mean is not subtracted: that would change which policy is best.
    """

    def __init__(self, n_envs: int, *, clip: float = 10.0) -> None:
        require(clip > 0, "clip", clip, "above 0")
        self.clip = clip
        self.frozen = False
        self.moments = RunningMoments(1)
        self.returns: F64 = np.zeros(n_envs)
        """Discounted return of each environment's running episode, (N,) float64."""

    @property
    def scale(self) -> float:
        """What rewards are multiplied by."""
        return float(1.0 / np.sqrt(self.moments.var[0] + _EPSILON))

    def update(self, rewards: NDArray[Any], dones: NDArray[Any], gamma: float) -> None:
        """Learn from a rollout: raw rewards (T, N) and whether each step ended its episode (T, N) bool or uint8."""
        if rewards.shape != dones.shape or rewards.shape[1:] != self.returns.shape:
            raise UsageError(
                f"rewards {rewards.shape} and dones {dones.shape} must both have shape (T, {len(self.returns)})"
            )
        if self.frozen:
            return
        seen = np.empty(rewards.shape)
        for t, (reward, done) in enumerate(zip(rewards, dones, strict=True)):
            np.multiply(self.returns, gamma, out=self.returns)
            self.returns += reward
            seen[t] = self.returns
            self.returns[done != 0] = 0.0
        self.moments.update(seen[..., None])

    def apply(self, rewards: F32, out: F32 | None = None) -> F32:
        """Scale raw rewards, any shape float32, into `out` (may be `rewards` itself) or a new array."""
        out = np.multiply(rewards, np.float32(self.scale), out=out, dtype=np.float32)
        return np.clip(out, -self.clip, self.clip, out=out)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All that has to be saved to go on."""
        return {**self.moments.to_arrays(), "returns": self.returns.copy()}

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `to_arrays` returned."""
        if arrays["returns"].shape != self.returns.shape:
            raise UsageError(f"saved returns are of {len(arrays['returns'])} environments, not {len(self.returns)}")
        self.moments.load_arrays(arrays)
        self.returns[:] = arrays["returns"]
