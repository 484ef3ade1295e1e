"""Gymnasium's MuJoCo environments that are stepped natively, by id."""

from __future__ import annotations

from mileage.envs.mujoco.balancing import InvertedDoublePendulum, InvertedPendulum
from mileage.envs.mujoco.locomotion import Ant, HalfCheetah, Hopper, Humanoid, Swimmer, Walker2d
from mileage.envs.mujoco.reaching import Pusher, Reacher
from mileage.envs.mujoco.task import Task

TASKS: dict[str, type[Task]] = {
    "Ant-v5": Ant,
    "HalfCheetah-v5": HalfCheetah,
    "Hopper-v5": Hopper,
    "Humanoid-v5": Humanoid,
    "InvertedDoublePendulum-v5": InvertedDoublePendulum,
    "InvertedPendulum-v5": InvertedPendulum,
    "Pusher-v5": Pusher,
    "Reacher-v5": Reacher,
    "Swimmer-v5": Swimmer,
    "Walker2d-v5": Walker2d,
}
