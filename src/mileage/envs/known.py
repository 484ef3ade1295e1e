"""Native environments by id: built in, or defined in users' files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from mileage.contracts import EnvSpec
from mileage.errors import UnknownNameError, UsageError
from mileage.types import Array
from mileage.user_code import load as load_module

if TYPE_CHECKING:
    from gymnasium import Env


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


# --- Environments in users' files and modules: "path/to/file.py:Name" and "package.module:Name" ---
def load(place: str, name: str) -> EnvSpec | Callable[..., Env[Array, Array | int]]:
    """What is called `name` in a file or module: an environment, or a function that makes one of Gymnasium's."""
    module = load_module(place, "environment")
    found = vars(module).get(name)
    if isinstance(found, EnvSpec) or callable(found):
        return found
    names = [key for key, value in vars(module).items() if isinstance(value, EnvSpec)]
    if found is not None or not names:
        raise UsageError(f"{place!r} has no environment {name!r}: define one there with @mileage.env")
    raise UnknownNameError(f"environment in {place!r}", name, names)
