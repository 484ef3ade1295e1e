"""Gymnasium's MuJoCo tasks: what a task is, poles on a cart, arms that reach and push."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mileage.types import F32, F64, Bool

if TYPE_CHECKING:
    from mujoco import MjModel

    from mileage.envs.mujoco.vector import ModelBatch


# Loaded when asked for, so that looking up a name costs nothing.
TASKS = {
    "Ant-v5": "locomotion",
    "HalfCheetah-v5": "locomotion",
    "Hopper-v5": "locomotion",
    "Humanoid-v5": "locomotion",
    "InvertedDoublePendulum-v5": "tasks",
    "InvertedPendulum-v5": "tasks",
    "Pusher-v5": "tasks",
    "Reacher-v5": "tasks",
    "Swimmer-v5": "locomotion",
    "Walker2d-v5": "locomotion",
}
"""The module of each, whose class is called like the environment without its version."""


def task_class(name: str) -> type[Task]:
    """What is to be done in one of `TASKS`."""
    found: type[Task] = getattr(importlib.import_module(f"mileage.envs.mujoco.{TASKS[name]}"), name.partition("-")[0])
    return found


# --- What a MuJoCo task is: a model file, how episodes start, observations and rewards ---
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

    def remember(self, sim: ModelBatch) -> None:
        """Keep what the reward needs from before the step."""

    def observe(self, sim: ModelBatch, out: F32) -> None:
        """Write all observations to `out`, (N, O) float32."""
        raise NotImplementedError

    def judge(self, sim: ModelBatch, actions: F32, reward: F32, terminated: Bool) -> None:
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


class ObservationWriter:
    """Fills the columns of an array from left to right."""

    def __init__(self, out: F32) -> None:
        self.out, self.column = out, 0

    def add(self, values: Any) -> None:
        """Write (N, ...) values into the next columns, flattened."""
        width = values[0].size
        self.out[:, self.column : self.column + width] = values.reshape(len(values), width)
        self.column += width


# --- Poles on a cart: InvertedPendulum and InvertedDoublePendulum ---
class InvertedPendulum(Task):
    """One pole; the reward is 1 as long as it stands."""

    model_file = "inverted_pendulum.xml"
    frame_skip = 2
    reward_threshold = 950.0
    options: ClassVar[Mapping[str, Any]] = {"reset_noise_scale": 0.01}

    def observe(self, sim: ModelBatch, out: F32) -> None:
        """Positions and velocities."""
        split = sim.qpos.shape[1]
        out[:, :split] = sim.qpos
        out[:, split:] = sim.qvel

    def judge(self, sim: ModelBatch, actions: F32, reward: F32, terminated: Bool) -> None:
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

    def observe(self, sim: ModelBatch, out: F32) -> None:
        """Cart, sines and cosines of the angles, velocities and the force of the track's end."""
        angles = sim.qpos[:, 1:]
        n, speed = angles.shape[1], 1 + 2 * angles.shape[1]
        out[:, 0] = sim.qpos[:, 0]
        out[:, 1 : 1 + n] = np.sin(angles)
        out[:, 1 + n : speed] = np.cos(angles)
        out[:, speed:-1] = np.clip(sim.qvel, -10.0, 10.0)
        out[:, -1] = np.clip(sim.qfrc_constraint[:, 0], -10.0, 10.0)

    def judge(self, sim: ModelBatch, actions: F32, reward: F32, terminated: Bool) -> None:
        """A bonus while the tip is above 1, minus its distance from the top and its motion."""
        tip = sim.site_xpos[:, 0]
        x, y = tip[:, 0], tip[:, 2]
        np.less_equal(y, 1.0, out=terminated)
        distance = 0.01 * x**2 + (y - 2.0) ** 2
        motion = 1e-3 * sim.qvel[:, 1] ** 2 + 5e-3 * sim.qvel[:, 2] ** 2
        reward[:] = self.option["healthy_reward"] * ~terminated - distance - motion


# --- Arms that move something to a goal: Reacher and Pusher. Episodes only end by the time limit ---
class Reacher(Task):
    """Two links whose tip should touch a target."""

    model_file = "reacher.xml"
    frame_skip = 2
    max_steps = 50
    reward_threshold = -3.75
    outputs = ("xpos",)
    options: ClassVar[Mapping[str, Any]] = {"reward_dist_weight": 1.0, "reward_control_weight": 1.0}

    def __init__(self, model: MjModel, options: Mapping[str, Any], frame_skip: int) -> None:
        super().__init__(model, options, frame_skip)
        self._tip, self._target = model.body("fingertip").id, model.body("target").id

    def obs_size(self) -> int:
        """Always 10."""
        return 10

    def first_state(self, rng: np.random.Generator) -> tuple[F64, F64]:
        """An arm near its zero, and a target uniform in a disc."""
        qpos = rng.uniform(-0.1, 0.1, self.model.nq) + self.qpos0
        while True:
            goal = rng.uniform(-0.2, 0.2, 2)
            if np.linalg.norm(goal) < 0.2:
                break
        qpos[-2:] = goal
        qvel = rng.uniform(-0.005, 0.005, self.model.nv)
        qvel[-2:] = 0.0
        return qpos, qvel

    def _gap(self, sim: ModelBatch) -> F64:
        return sim.xpos[:, self._tip] - sim.xpos[:, self._target]

    def observe(self, sim: ModelBatch, out: F32) -> None:
        """Angles, target, velocities and the way from target to tip."""
        angles = sim.qpos[:, :2]
        out[:, 0:2] = np.cos(angles)
        out[:, 2:4] = np.sin(angles)
        out[:, 4:6] = sim.qpos[:, 2:]
        out[:, 6:8] = sim.qvel[:, :2]
        out[:, 8:10] = self._gap(sim)[:, :2]

    def judge(self, sim: ModelBatch, actions: F32, reward: F32, terminated: Bool) -> None:
        """Minus distance and control."""
        distance = np.sqrt(squares(self._gap(sim)))
        effort = squares(actions)
        reward[:] = -(self.option["reward_dist_weight"] * distance + self.option["reward_control_weight"] * effort)


class Pusher(Task):
    """A seven-jointed arm that should push a cylinder to a goal."""

    model_file = "pusher_v5.xml"
    frame_skip = 5
    max_steps = 100
    reward_threshold = 0.0
    outputs = ("xpos",)
    options: ClassVar[Mapping[str, Any]] = {
        "reward_near_weight": 0.5,
        "reward_dist_weight": 1.0,
        "reward_control_weight": 0.1,
    }

    def __init__(self, model: MjModel, options: Mapping[str, Any], frame_skip: int) -> None:
        super().__init__(model, options, frame_skip)
        self._tip, self._object, self._goal = (model.body(name).id for name in ("tips_arm", "object", "goal"))

    def obs_size(self) -> int:
        """Always 23."""
        return 23

    def first_state(self, rng: np.random.Generator) -> tuple[F64, F64]:
        """A cylinder uniform in a rectangle, away from the goal."""
        qpos = self.qpos0.copy()
        while True:
            cylinder = np.concatenate([rng.uniform(-0.3, 0.0, 1), rng.uniform(-0.2, 0.2, 1)])
            if np.linalg.norm(cylinder) > 0.17:
                break
        qpos[-4:-2] = cylinder
        qpos[-2:] = 0.0
        qvel = rng.uniform(-0.005, 0.005, self.model.nv)
        qvel[-4:] = 0.0
        return qpos, qvel

    def observe(self, sim: ModelBatch, out: F32) -> None:
        """Joints of the arm, and where tip, cylinder and goal are."""
        xpos = sim.xpos
        writer = ObservationWriter(out)
        writer.add(sim.qpos[:, :7])
        writer.add(sim.qvel[:, :7])
        for body in (self._tip, self._object, self._goal):
            writer.add(xpos[:, body])

    def judge(self, sim: ModelBatch, actions: F32, reward: F32, terminated: Bool) -> None:
        """Minus distance to the cylinder, its distance to the goal, and control."""
        xpos, weight = sim.xpos, self.option
        near = np.sqrt(squares(xpos[:, self._object] - xpos[:, self._tip]))
        distance = np.sqrt(squares(xpos[:, self._object] - xpos[:, self._goal]))
        reward[:] = -(
            weight["reward_near_weight"] * near
            + weight["reward_dist_weight"] * distance
            + weight["reward_control_weight"] * squares(actions)
        )
