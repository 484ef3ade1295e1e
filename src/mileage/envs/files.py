"""Environments in users' files and modules: "path/to/file.py:Name" and "package.module:Name"."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mileage._errors import UnknownNameError, UsageError
from mileage._places import load as load_module
from mileage._types import Array
from mileage.contracts import EnvSpec

if TYPE_CHECKING:
    from gymnasium import Env


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
