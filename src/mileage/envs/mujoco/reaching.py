"""Arms that move something to a goal: Reacher and Pusher. Episodes only end by the time limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mileage._types import F32, F64, Bool
from mileage.envs.mujoco.task import Task, Writer, squares

if TYPE_CHECKING:
    from mujoco import MjModel

    from mileage.envs.mujoco._batch import Batch


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

    def _gap(self, sim: Batch) -> F64:
        return sim.xpos[:, self._tip] - sim.xpos[:, self._target]

    def observe(self, sim: Batch, out: F32) -> None:
        """Angles, target, velocities and the way from target to tip."""
        angles = sim.qpos[:, :2]
        out[:, 0:2] = np.cos(angles)
        out[:, 2:4] = np.sin(angles)
        out[:, 4:6] = sim.qpos[:, 2:]
        out[:, 6:8] = sim.qvel[:, :2]
        out[:, 8:10] = self._gap(sim)[:, :2]

    def judge(self, sim: Batch, actions: F32, reward: F32, terminated: Bool) -> None:
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

    def observe(self, sim: Batch, out: F32) -> None:
        """Joints of the arm, and where tip, cylinder and goal are."""
        xpos = sim.xpos
        writer = Writer(out)
        writer.add(sim.qpos[:, :7])
        writer.add(sim.qvel[:, :7])
        for body in (self._tip, self._object, self._goal):
            writer.add(xpos[:, body])

    def judge(self, sim: Batch, actions: F32, reward: F32, terminated: Bool) -> None:
        """Minus distance to the cylinder, its distance to the goal, and control."""
        xpos, weight = sim.xpos, self.option
        near = np.sqrt(squares(xpos[:, self._object] - xpos[:, self._tip]))
        distance = np.sqrt(squares(xpos[:, self._object] - xpos[:, self._goal]))
        reward[:] = -(
            weight["reward_near_weight"] * near
            + weight["reward_dist_weight"] * distance
            + weight["reward_control_weight"] * squares(actions)
        )
