"""Poles on a cart: InvertedPendulum and InvertedDoublePendulum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mileage._types import F32, Bool
from mileage.envs.mujoco.task import Task

if TYPE_CHECKING:
    from mileage.envs.mujoco._batch import Batch


class InvertedPendulum(Task):
    """One pole; the reward is 1 as long as it stands."""

    model_file = "inverted_pendulum.xml"
    frame_skip = 2
    reward_threshold = 950.0
    options: ClassVar[Mapping[str, Any]] = {"reset_noise_scale": 0.01}

    def observe(self, sim: Batch, out: F32) -> None:
        """Positions and velocities."""
        split = sim.qpos.shape[1]
        out[:, :split] = sim.qpos
        out[:, split:] = sim.qvel

    def judge(self, sim: Batch, actions: F32, reward: F32, terminated: Bool) -> None:
        """1 while the pole is within 0.2 rad of upright."""
        finite = np.isfinite(sim.qpos).all(axis=1) & np.isfinite(sim.qvel).all(axis=1)
        stands = finite & (np.abs(sim.qpos[:, 1]) <= 0.2)
        reward[:] = stands
        np.logical_not(stands, out=terminated)


class InvertedDoublePendulum(Task):
    """Two poles on top of each other."""

    model_file = "inverted_double_pendulum.xml"
    frame_skip = 5
    reward_threshold = 9100.0
    outputs = ("site_xpos", "qfrc_constraint")
    normal_speeds = True
    options: ClassVar[Mapping[str, Any]] = {"healthy_reward": 10.0, "reset_noise_scale": 0.1}

    def obs_size(self) -> int:
        """Cart, sines, cosines, velocities and one constraint force."""
        return int(1 + 2 * (self.model.nq - 1) + self.model.nv + 1)

    def observe(self, sim: Batch, out: F32) -> None:
        """Cart, sines and cosines of the angles, velocities and the force of the track's end."""
        angles = sim.qpos[:, 1:]
        n, speed = angles.shape[1], 1 + 2 * angles.shape[1]
        out[:, 0] = sim.qpos[:, 0]
        out[:, 1 : 1 + n] = np.sin(angles)
        out[:, 1 + n : speed] = np.cos(angles)
        out[:, speed:-1] = np.clip(sim.qvel, -10.0, 10.0)
        out[:, -1] = np.clip(sim.qfrc_constraint[:, 0], -10.0, 10.0)

    def judge(self, sim: Batch, actions: F32, reward: F32, terminated: Bool) -> None:
        """A bonus while the tip is above 1, minus its distance from the top and its motion."""
        tip = sim.site_xpos[:, 0]
        x, y = tip[:, 0], tip[:, 2]
        np.less_equal(y, 1.0, out=terminated)
        distance = 0.01 * x**2 + (y - 2.0) ** 2
        motion = 1e-3 * sim.qvel[:, 1] ** 2 + 5e-3 * sim.qvel[:, 2] ** 2
        reward[:] = self.option["healthy_reward"] * ~terminated - distance - motion
