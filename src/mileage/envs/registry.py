"""Names of native environments, built in and defined by users."""

from __future__ import annotations

import importlib

from mileage._errors import UnknownNameError, UsageError
from mileage.envs.native import NativeEnv

# Loaded when asked for, so that listing names costs nothing.
_BUILT_IN = {
    "Acrobot-v1": "mileage.envs.acrobot",
    "CartPole-v1": "mileage.envs.cartpole",
    "MountainCar-v0": "mileage.envs.mountain_car",
    "MountainCarContinuous-v0": "mileage.envs.mountain_car_continuous",
    "Pendulum-v1": "mileage.envs.pendulum",
}
_loaded: dict[str, NativeEnv] = {}


def register(spec: NativeEnv) -> NativeEnv:
    """Make `spec` known by its id; a user's environment may replace its own earlier definition."""
    built_in = _BUILT_IN.get(spec.id)
    if built_in is not None and spec.functions[1].__module__ != built_in:
        raise UsageError(f"environment id {spec.id!r} is built in: choose another id")
    _loaded[spec.id] = spec
    return spec


def registered() -> tuple[str, ...]:
    """Ids of all native environments, sorted."""
    return tuple(sorted(_BUILT_IN.keys() | _loaded.keys()))


def is_native(name: str) -> bool:
    """Whether `name` is the id of a native environment."""
    return name in _BUILT_IN or name in _loaded


def native(name: str) -> NativeEnv:
    """Return the native environment called `name`."""
    if name not in _loaded:
        if name not in _BUILT_IN:
            raise UnknownNameError("native environment", name, registered())
        importlib.import_module(_BUILT_IN[name])
    return _loaded[name]
