"""What a MuJoCo task is: a model file, how episodes start, and observations and rewards over arrays of simulations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mileage._types import F32, F64, Bool

if TYPE_CHECKING:
    from mujoco import MjModel

    from mileage.envs.mujoco._batch import Batch


class Task:
    """One environment of Gymnasium's, version 5, for N simulations at a time.

    `options` of the class are Gymnasium's keyword arguments with its defaults. Observations, rewards and ends follow
    Gymnasium 1.4 to the last detail, for example that body positions lag the joints by one stage of the integrator.
    """

    model_file: ClassVar[str]
    frame_skip: ClassVar[int]
    max_steps: ClassVar[int] = 1000
    reward_threshold: ClassVar[float | None] = None
    options: ClassVar[Mapping[str, Any]] = {}
    outputs: ClassVar[tuple[str, ...]] = ()
    """Fields of MjData, besides positions and velocities, that observations or rewards need."""
    contact_forces: ClassVar[bool] = False
    """Whether `cfrc_ext` is among them."""
    normal_speeds: ClassVar[bool] = False
    """Whether episodes start with velocities from a normal distribution, not from a uniform one."""

    def __init__(self, model: MjModel, options: Mapping[str, Any], frame_skip: int) -> None:
        self.model = model
        self.option = {**self.options, **options}
        self.seconds: float = model.opt.timestep * frame_skip
        self.qpos0: F64 = model.qpos0.copy()

    def obs_size(self) -> int:
        """Length O of an observation."""
        return int(self.model.nq + self.model.nv)

    def first_state(self, rng: np.random.Generator) -> tuple[F64, F64]:
        """Draw where an episode starts, positions (nq,) and velocities (nv,), in the order that Gymnasium draws."""
        scale = self.option["reset_noise_scale"]
        qpos = self.qpos0 + rng.uniform(-scale, scale, self.model.nq)
        n = self.model.nv
        return qpos, scale * rng.standard_normal(n) if self.normal_speeds else rng.uniform(-scale, scale, n)

    def remember(self, sim: Batch) -> None:
        """Keep what the reward needs from before the step."""

    def observe(self, sim: Batch, out: F32) -> None:
        """Write all observations to `out`, (N, O) float32."""
        raise NotImplementedError

    def judge(self, sim: Batch, actions: F32, reward: F32, terminated: Bool) -> None:
        """Write rewards (N,) float32 and ends (N,) bool of the step taken with `actions` (N, A) float32."""
        raise NotImplementedError


def squares(values: Any) -> F64:
    """Sum of squares of every row, (N, ...) to (N,) float64."""
    flat = values.reshape(len(values), -1).astype(np.float64, copy=False)
    return np.einsum("ij,ij->i", flat, flat)  # type: ignore[no-any-return]


def within(values: Any, bounds: tuple[float, float]) -> Bool:
    """Whether values lie strictly between the bounds."""
    low, high = bounds
    return (low < values) & (values < high)  # type: ignore[no-any-return]


class Writer:
    """Fills the columns of an array from left to right."""

    def __init__(self, out: F32) -> None:
        self.out, self.column = out, 0

    def add(self, values: Any) -> None:
        """Write (N, ...) values into the next columns, flattened."""
        width = values[0].size
        self.out[:, self.column : self.column + width] = values.reshape(len(values), width)
        self.column += width
