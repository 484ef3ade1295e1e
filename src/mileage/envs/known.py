"""Native environments by id: built in, or defined by users."""

from __future__ import annotations

import importlib

from mileage._errors import UnknownNameError, UsageError
from mileage.contracts import EnvSpec

# Loaded when asked for, so that listing names costs nothing.
BUILT_IN = {
    "Acrobot-v1": "mileage.envs.classic.acrobot",
    "CartPole-v1": "mileage.envs.classic.cartpole",
    "MountainCar-v0": "mileage.envs.classic.mountain_car",
    "MountainCarContinuous-v0": "mileage.envs.classic.mountain_car_continuous",
    "Pendulum-v1": "mileage.envs.classic.pendulum",
}
HIGHEST_RETURNS = {"CartPole-v1": 500.0, "MountainCarContinuous-v0": 100.0}
"""What no episode of a built-in environment exceeds, where one could ask for more without noticing."""
_loaded: dict[str, EnvSpec] = {}


def register(spec: EnvSpec, module: str) -> None:
    """Make `spec`, defined in `module`, known by its id; a user's may replace its own earlier definition."""
    if BUILT_IN.get(spec.id, module) != module:
        raise UsageError(f"environment id {spec.id!r} is built in: choose another id")
    _loaded[spec.id] = spec


def registered() -> tuple[str, ...]:
    """Ids of all native environments, sorted."""
    return tuple(sorted(BUILT_IN.keys() | _loaded.keys()))


def is_native(name: str) -> bool:
    """Whether `name` is the id of a native environment."""
    return name in BUILT_IN or name in _loaded


def by_id(name: str) -> EnvSpec:
    """The native environment with the id `name`."""
    if not is_native(name):
        raise UnknownNameError("native environment", name, registered())
    if name not in _loaded:
        importlib.import_module(BUILT_IN[name])
    return _loaded[name]
