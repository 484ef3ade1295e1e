"""Environments: native ones compiled from plain functions, and everything else through Gymnasium."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mileage.envs.known import is_native, registered
from mileage.envs.native.functions import integers, normal, uniform
from mileage.envs.native.spec import env
from mileage.envs.native.vector import NativeEnv, VecEnv
from mileage.envs.normalise import ObsNormalizer, RewardScaler
from mileage.envs.registry import make_vec, native, resolve

if TYPE_CHECKING:
    from mileage.envs.gymnasium.bridge import BridgedVecEnv, GymnasiumEnv, NativeVectorEnv
    from mileage.envs.gymnasium.pixels import atari, pixels

__all__ = [
    "BridgedVecEnv", "GymnasiumEnv", "NativeEnv", "NativeVectorEnv", "ObsNormalizer", "RewardScaler", "VecEnv", "atari",
    "env", "integers", "is_native", "make_vec", "native", "normal", "pixels", "registered", "resolve", "uniform",
]  # fmt: skip
# These import Gymnasium, which native environments do not need.
_HOMES = {"BridgedVecEnv": "bridge", "GymnasiumEnv": "bridge", "NativeVectorEnv": "bridge"}
_HOMES |= {"atari": "pixels", "pixels": "pixels"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"mileage.envs.gymnasium.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
