"""What a transition looks like in memory: shapes, dtypes and where each field lies in a record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mileage._errors import UsageError

_OBS_DTYPES = ("float32", "uint8")
_ACTION_DTYPES = ("float32", "int64", "int32", "uint8")
_ALIGNMENT = 8


class NextObs(StrEnum):
    """Where the observation after a transition is kept."""

    STORED = "stored"
    """Beside the transition: transitions may come from anywhere, in any order."""
    DERIVED = "derived"
    """In the next transition of the same environment, with final observations apart: half the memory, half the copying.
    Pushes must follow each other in time, and a transition can be sampled once the next one has been pushed."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A ring of `rows` × `n_envs` records; see `mileage.kernels.storage.ring` for the order of their fields."""

    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str
    n_envs: int
    rows: int
    next_obs: NextObs
    n_step: int
    gamma: float

    @classmethod
    def of(
        cls,
        capacity: int,
        obs_shape: int | tuple[int, ...],
        action_shape: int | tuple[int, ...],
        obs_dtype: DTypeLike,
        action_dtype: DTypeLike,
        n_envs: int,
        next_obs: str,
        n_step: int,
        gamma: float,
    ) -> Layout:
        """Check what a user gave and make the layout that holds at most `capacity` transitions."""
        for name, number in (("capacity", capacity), ("n_envs", n_envs), ("n_step", n_step)):
            if not isinstance(number, int | np.integer):
                raise UsageError(f"{name} {number!r} is not a whole number")
        if not isinstance(gamma, float | int | np.floating):
            raise UsageError(f"gamma {gamma!r} is not a number")
        if n_envs < 1 or capacity < n_envs:
            raise UsageError(f"capacity {capacity} must be at least n_envs, and n_envs {n_envs} at least 1")
        if n_step < 1 or not 0.0 <= gamma <= 1.0:
            raise UsageError(f"n_step {n_step} must be at least 1 and gamma {gamma} between 0 and 1")
        if next_obs not in tuple(NextObs):
            raise UsageError(f"next_obs {next_obs!r} is not known: use 'stored' or 'derived'")
        kind = NextObs(next_obs)
        transitions = capacity // n_envs
        return cls(
            obs_shape=_shape("obs_shape", obs_shape),
            obs_dtype=_dtype("obs_dtype", obs_dtype, _OBS_DTYPES),
            action_shape=_shape("action_shape", action_shape),
            action_dtype=_dtype("action_dtype", action_dtype, _ACTION_DTYPES),
            n_envs=n_envs,
            # The newest row of a ring that derives next observations is there to be derived from.
            rows=transitions + (kind is NextObs.DERIVED),
            next_obs=kind,
            n_step=n_step,
            gamma=gamma,
        )

    @property
    def stored(self) -> bool:
        """Whether next observations are stored beside their transition."""
        return self.next_obs is NextObs.STORED

    @property
    def capacity(self) -> int:
        """Most transitions that can be sampled from."""
        return (self.rows if self.stored else self.rows - 1) * self.n_envs

    @property
    def obs_bytes(self) -> int:
        """Bytes of one observation."""
        return math.prod(self.obs_shape) * np.dtype(self.obs_dtype).itemsize

    @property
    def action_bytes(self) -> int:
        """Bytes of one action."""
        return math.prod(self.action_shape) * np.dtype(self.action_dtype).itemsize

    @property
    def next_at(self) -> int:
        """Offset of the stored next observation, 0 if there is none."""
        return _aligned(self.obs_bytes) if self.stored else 0

    @property
    def action_at(self) -> int:
        """Offset of the action."""
        return _aligned(self.next_at + self.obs_bytes)

    @property
    def reward_at(self) -> int:
        """Offset of the reward."""
        return -(-(self.action_at + self.action_bytes) // 4) * 4

    @property
    def state_at(self) -> int:
        """Offset of the state: flags, and where the final observation is."""
        return _aligned(self.reward_at + 4)

    @property
    def record(self) -> int:
        """Bytes of a record."""
        return self.state_at + 8

    def frame_fields(self) -> dict[str, Any]:
        """The integers and shapes a ring's frame holds."""
        return {
            "obs_shape": np.array([0, *self.obs_shape], np.int64),
            "action_shape": np.array([0, *self.action_shape], np.int64),
            "obs_axes": 1 + len(self.obs_shape),
            "action_axes": 1 + len(self.action_shape),
            "gamma": self.gamma,
        } | {
            name: getattr(self, name)
            for name in (
                *("n_envs", "rows", "record", "obs_bytes", "action_bytes", "n_step"),
                *("next_at", "action_at", "reward_at", "state_at"),
            )
        }


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _shape(name: str, shape: int | tuple[int, ...]) -> tuple[int, ...]:
    axes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(not isinstance(size, int) or size < 1 for size in axes):
        raise UsageError(f"{name} {shape!r} cannot be used: give positive sizes such as (84, 84, 4)")
    return axes


def _dtype(name: str, dtype: DTypeLike, allowed: tuple[str, ...]) -> str:
    try:
        found = np.dtype(dtype).name
    except TypeError:
        found = repr(dtype)
    if found not in allowed:
        raise UsageError(f"{name} {found} is not supported: use {', '.join(allowed)}")
    return found
