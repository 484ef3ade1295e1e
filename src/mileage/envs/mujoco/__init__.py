"""Gymnasium's MuJoCo environments at the speed of MuJoCo: all simulations in native threads, rewards as array code.

Importing this package does not import MuJoCo, which is an extra.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mileage.envs.mujoco.tasks import TASKS
from mileage.errors import MissingExtraError

if TYPE_CHECKING:
    from mileage.envs.mujoco.vector import MujocoEnv, MujocoVecEnv

__all__ = ["TASKS", "MujocoEnv", "MujocoVecEnv", "find"]


def find(name: str, kwargs: Mapping[str, Any]) -> MujocoEnv | None:
    """The environment `name` with Gymnasium's options `kwargs`, if it can be stepped natively.

    None if it is not one of `TASKS`, or if the installed MuJoCo is older than 4.0 and Gymnasium has to step it.
    """
    if name not in TASKS:
        return None
    if importlib.util.find_spec("mujoco") is None:
        raise MissingExtraError(f"environment {name!r}", "mujoco")
    from mileage.envs.mujoco.vector import library

    if library() is None:
        return None
    from mileage.envs.mujoco.vector import MujocoEnv

    return MujocoEnv(name, kwargs)


def __getattr__(name: str) -> Any:
    if name in ("MujocoEnv", "MujocoVecEnv"):
        from mileage.envs.mujoco import vector

        return vars(vector)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
