"""Gymnasium's MuJoCo environments that are stepped natively, by id."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mileage.envs.mujoco.task import Task

# Loaded when asked for, so that looking up a name costs nothing.
TASKS = {
    "Ant-v5": "locomotion",
    "HalfCheetah-v5": "locomotion",
    "Hopper-v5": "locomotion",
    "Humanoid-v5": "locomotion",
    "InvertedDoublePendulum-v5": "balancing",
    "InvertedPendulum-v5": "balancing",
    "Pusher-v5": "reaching",
    "Reacher-v5": "reaching",
    "Swimmer-v5": "locomotion",
    "Walker2d-v5": "locomotion",
}
"""The module of each, whose class is called like the environment without its version."""


def task_class(name: str) -> type[Task]:
    """What is to be done in one of `TASKS`."""
    found: type[Task] = getattr(importlib.import_module(f"mileage.envs.mujoco.{TASKS[name]}"), name.partition("-")[0])
    return found
