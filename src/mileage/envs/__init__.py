"""Environments: native ones compiled from plain functions, and everything else through Gymnasium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mileage.envs.make import make_vec
from mileage.envs.native.draw import integers, normal, uniform
from mileage.envs.native.env import NativeEnv, env
from mileage.envs.native.vector import VecEnv
from mileage.envs.normalize import ObsNormalizer, RewardScaler
from mileage.envs.registry import is_native, native, registered, resolve

if TYPE_CHECKING:
    from mileage.envs.gymnasium.bridge import BridgedVecEnv, GymnasiumEnv, NativeVectorEnv
    from mileage.envs.gymnasium.pixels import atari, pixels

__all__ = [
    "BridgedVecEnv",
    "GymnasiumEnv",
    "NativeEnv",
    "NativeVectorEnv",
    "ObsNormalizer",
    "RewardScaler",
    "VecEnv",
    "atari",
    "env",
    "integers",
    "is_native",
    "make_vec",
    "native",
    "normal",
    "pixels",
    "registered",
    "resolve",
    "uniform",
]
# These import Gymnasium, which native environments do not need.
_BRIDGE = {"BridgedVecEnv", "GymnasiumEnv", "NativeVectorEnv"}
_PIXELS = {"atari", "pixels"}


def __getattr__(name: str) -> Any:
    if name in _BRIDGE:
        from mileage.envs.gymnasium import bridge

        return getattr(bridge, name)
    if name in _PIXELS:
        from mileage.envs.gymnasium import pixels

        return getattr(pixels, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
