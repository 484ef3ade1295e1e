"""Environments: native ones compiled from plain functions, and everything else through Gymnasium."""

from mileage.envs.native import NativeEnv, env
from mileage.envs.registry import is_native, native, registered

__all__ = ["NativeEnv", "env", "is_native", "native", "registered"]
