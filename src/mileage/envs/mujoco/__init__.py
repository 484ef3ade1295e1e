"""Gymnasium's MuJoCo environments at the speed of MuJoCo: all simulations in native threads, rewards as array code."""

from __future__ import annotations

from mileage.envs.mujoco._batch import library
from mileage.envs.mujoco.spec import MujocoEnv
from mileage.envs.mujoco.vector import MujocoVecEnv

__all__ = ["MujocoEnv", "MujocoVecEnv", "is_supported"]


def is_supported() -> bool:
    """Whether the installed MuJoCo can simulate batches, as 4.0 and later can."""
    return library() is not None
