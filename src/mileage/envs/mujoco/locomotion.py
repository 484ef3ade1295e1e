"""Creatures that are rewarded for moving forward: HalfCheetah, Swimmer, Hopper, Walker2d, Ant, Humanoid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mileage.envs.mujoco.tasks import ObservationWriter, Task, squares, within
from mileage.types import F32, F64, Bool

if TYPE_CHECKING:
    from mujoco import MjModel

    from mileage.envs.mujoco.vector import ModelBatch

_INFINITY = float("inf")
# Options that several have, with their usual defaults.
_MOVING = {"forward_reward_weight": 1.0, "exclude_current_positions_from_observation": True}
_STANDING = _MOVING | {"healthy_reward": 1.0, "terminate_when_unhealthy": True}


class _Runner(Task):
    """Forward speed of the first joint minus the cost of control; the plane's coordinates are not observed."""

    hidden: ClassVar[int] = 1
    """How many coordinates tell where in the world it is."""

    def __init__(self, model: MjModel, options: Mapping[str, Any], frame_skip: int) -> None:
        super().__init__(model, options, frame_skip)
        self.skipped = self.hidden * bool(self.option["exclude_current_positions_from_observation"])
        self._x: F64 = np.zeros(0)

    def obs_size(self) -> int:
        return super().obs_size() - self.skipped

    def place(self, sim: ModelBatch) -> F64:
        """Where on the track everybody is, (N,)."""
        return sim.qpos[:, 0]

    def remember(self, sim: ModelBatch) -> None:
        self._x = self.place(sim).copy()

    def observe(self, sim: ModelBatch, out: F32) -> None:
        split = sim.qpos.shape[1] - self.skipped
        out[:, :split] = sim.qpos[:, self.skipped :]
        out[:, split:] = sim.qvel

    def progress(self, sim: ModelBatch, cost: F64) -> F64:
        """Forward reward minus the cost of control, (N,); `cost` is the sum of squared controls."""
        speed = (self.place(sim) - self._x) / self.seconds
        return self.option["forward_reward_weight"] * speed - self.option["ctrl_cost_weight"] * cost  # type: ignore[no-any-return]

    def judge(self, sim: ModelBatch, actions: F32, reward: F32, terminated: Bool) -> None:
        reward[:] = self.progress(sim, squares(actions))


class HalfCheetah(_Runner):
    """A planar cheetah; episodes only end by the time limit."""

    model_file = "half_cheetah.xml"
    frame_skip = 5
    reward_threshold = 4800.0
    normal_speeds = True
    options: ClassVar[Mapping[str, Any]] = _MOVING | {"ctrl_cost_weight": 0.1, "reset_noise_scale": 0.1}


class Swimmer(_Runner):
    """A chain of three links in a viscous fluid."""

    model_file = "swimmer.xml"
    frame_skip = 4
    reward_threshold = 360.0
    hidden = 2
    options: ClassVar[Mapping[str, Any]] = _MOVING | {"ctrl_cost_weight": 1e-4, "reset_noise_scale": 0.1}


class _Balancer(_Runner):
    """A runner that must stay healthy and is paid for it."""

    def healthy(self, sim: ModelBatch) -> Bool:
        """Whether each has not fallen, (N,) bool."""
        raise NotImplementedError

    def judge(self, sim: ModelBatch, actions: F32, reward: F32, terminated: Bool) -> None:
        healthy = self.healthy(sim)
        gain = self.progress(sim, squares(actions)) + self.option["healthy_reward"] * healthy
        reward[:] = gain - self.contact_cost(sim)
        if self.option["terminate_when_unhealthy"]:
            np.logical_not(healthy, out=terminated)

    def contact_cost(self, sim: ModelBatch) -> Any:
        """What bumping into things costs, (N,) or 0."""
        return 0.0


class Walker2d(_Balancer):
    """A planar biped."""

    model_file = "walker2d_v5.xml"
    frame_skip = 4
    options: ClassVar[Mapping[str, Any]] = _STANDING | {
        "ctrl_cost_weight": 1e-3,
        "healthy_z_range": (0.8, 2.0),
        "healthy_angle_range": (-1.0, 1.0),
        "reset_noise_scale": 5e-3,
    }

    def observe(self, sim: ModelBatch, out: F32) -> None:
        """Positions, and velocities within 10."""
        split = sim.qpos.shape[1] - self.skipped
        out[:, :split] = sim.qpos[:, self.skipped :]
        np.clip(sim.qvel, -10.0, 10.0, out=out[:, split:], casting="same_kind")

    def healthy(self, sim: ModelBatch) -> Bool:
        """Height and angle of the torso within bounds."""
        upright = within(sim.qpos[:, 1], self.option["healthy_z_range"])
        return upright & within(sim.qpos[:, 2], self.option["healthy_angle_range"])


class Hopper(Walker2d):
    """A planar leg; like the walker, and its state must stay within bounds too."""

    model_file = "hopper.xml"
    reward_threshold = 3800.0
    options: ClassVar[Mapping[str, Any]] = {
        **Walker2d.options,
        "healthy_state_range": (-100.0, 100.0),
        "healthy_z_range": (0.7, _INFINITY),
        "healthy_angle_range": (-0.2, 0.2),
    }

    def healthy(self, sim: ModelBatch) -> Bool:
        """As the walker, with all of the state but the place within bounds."""
        bounds = self.option["healthy_state_range"]
        bounded = within(sim.qpos[:, 2:], bounds).all(axis=1) & within(sim.qvel, bounds).all(axis=1)
        return bounded & super().healthy(sim)


class Ant(_Balancer):
    """A quadruped that also feels, and pays for, contact forces."""

    model_file = "ant.xml"
    frame_skip = 5
    reward_threshold = 6000.0
    hidden = 2
    outputs = ("xpos", "cfrc_ext")
    contact_forces = normal_speeds = True
    options: ClassVar[Mapping[str, Any]] = _STANDING | {
        "ctrl_cost_weight": 0.5,
        "contact_cost_weight": 5e-4,
        "main_body": 1,
        "healthy_z_range": (0.2, 1.0),
        "contact_force_range": (-1.0, 1.0),
        "reset_noise_scale": 0.1,
        "include_cfrc_ext_in_observation": True,
    }

    def __init__(self, model: MjModel, options: Mapping[str, Any], frame_skip: int) -> None:
        super().__init__(model, options, frame_skip)
        self.body: int = model.body(self.option["main_body"]).id

    def obs_size(self) -> int:
        """With six numbers for every body that feels forces."""
        feels = bool(self.option["include_cfrc_ext_in_observation"])
        return super().obs_size() + 6 * (int(self.model.nbody) - 1) * feels

    def place(self, sim: ModelBatch) -> F64:
        """Of the main body."""
        return sim.xpos[:, self.body, 0]

    def forces(self, sim: ModelBatch) -> F64:
        """Contact forces on all bodies within their range, (N, bodies, 6)."""
        return np.clip(sim.cfrc_ext, *self.option["contact_force_range"])  # type: ignore[no-any-return]

    def observe(self, sim: ModelBatch, out: F32) -> None:
        """Positions, velocities and contact forces."""
        writer = ObservationWriter(out)
        writer.add(sim.qpos[:, self.skipped :])
        writer.add(sim.qvel)
        if self.option["include_cfrc_ext_in_observation"]:
            writer.add(self.forces(sim)[:, 1:])

    def healthy(self, sim: ModelBatch) -> Bool:
        """Height within bounds, and nothing infinite."""
        low, high = self.option["healthy_z_range"]
        z = sim.qpos[:, 2]
        finite = np.isfinite(sim.qpos).all(axis=1) & np.isfinite(sim.qvel).all(axis=1)
        return finite & (low <= z) & (z <= high)  # type: ignore[no-any-return]

    def contact_cost(self, sim: ModelBatch) -> F64:
        """Squares of the bounded forces."""
        return self.option["contact_cost_weight"] * squares(self.forces(sim))  # type: ignore[no-any-return]


class Humanoid(_Balancer):
    """A biped with a torso that observes the inertia, velocity and forces of all its bodies."""

    model_file = "humanoid.xml"
    frame_skip = 5
    hidden = 2
    outputs = ("xipos", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")
    contact_forces = True
    options: ClassVar[Mapping[str, Any]] = _STANDING | {
        "forward_reward_weight": 1.25,
        "ctrl_cost_weight": 0.1,
        "contact_cost_weight": 5e-7,
        "contact_cost_range": (-_INFINITY, 10.0),
        "healthy_reward": 5.0,
        "healthy_z_range": (1.0, 2.0),
        "reset_noise_scale": 1e-2,
        **{f"include_{name}_in_observation": True for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")},
    }

    def __init__(self, model: MjModel, options: Mapping[str, Any], frame_skip: int) -> None:
        super().__init__(model, options, frame_skip)
        self.masses: F64 = model.body_mass / model.body_mass.sum()

    def obs_size(self) -> int:
        """With inertia, velocity and forces of every body."""
        bodies = int(self.model.nbody) - 1
        forces = int(self.model.nv) - 6
        sizes = {"cinert": 10 * bodies, "cvel": 6 * bodies, "qfrc_actuator": forces, "cfrc_ext": 6 * bodies}
        return super().obs_size() + sum(size for name, size in sizes.items() if self._includes(name))

    def place(self, sim: ModelBatch) -> F64:
        """The centre of mass."""
        return sim.xipos[:, :, 0] @ self.masses

    def observe(self, sim: ModelBatch, out: F32) -> None:
        """Positions, velocities, then what the options include."""
        writer = ObservationWriter(out)
        writer.add(sim.qpos[:, self.skipped :])
        writer.add(sim.qvel)
        for name, first in (("cinert", 1), ("cvel", 1), ("qfrc_actuator", 6), ("cfrc_ext", 1)):
            if self._includes(name):
                writer.add(getattr(sim, name)[:, first:])

    def healthy(self, sim: ModelBatch) -> Bool:
        """Height within bounds."""
        return within(sim.qpos[:, 2], self.option["healthy_z_range"])

    def contact_cost(self, sim: ModelBatch) -> F64:
        """Squares of the forces, within bounds."""
        cost = self.option["contact_cost_weight"] * squares(sim.cfrc_ext)
        return np.clip(cost, *self.option["contact_cost_range"])  # type: ignore[no-any-return]

    def _includes(self, name: str) -> bool:
        return bool(self.option[f"include_{name}_in_observation"])
