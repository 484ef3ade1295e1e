"""Random draws for environment code: the first argument is the `rng` row that `reset` and `step` receive.

Inside a compiled environment they are the kernels of the same name; called from Python they run the kernels' source as
it stands, so that an environment can be stepped under a debugger.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy as np

from mileage._types import U64


def uniform(rng: U64, low: float, high: float) -> float:
    """Draw a float32 from [low, high). `rng` is one stream, (2,) uint64, advanced in place."""
    return _plain_draw("uniform", rng, low, high)  # type: ignore[no-any-return]


def normal(rng: U64) -> float:
    """Draw a standard normal float32. `rng` is one stream, (2,) uint64, advanced in place."""
    return _plain_draw("normal", rng)  # type: ignore[no-any-return]


def integers(rng: U64, n: int) -> int:
    """Draw an integer from [0, n). `rng` is one stream, (2,) uint64, advanced in place."""
    return _plain_draw("integers", rng, n)  # type: ignore[no-any-return]


def _plain_draw(name: str, *arguments: Any) -> Any:
    from mileage.kernels.arrays import random

    with np.errstate(over="ignore"):
        return _plain(getattr(random, name).py_func)(*arguments)


@functools.cache
def _plain(function: types.FunctionType) -> types.FunctionType:
    """`function` with the compiled functions it calls replaced by their source."""
    called = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    scope = {name: _plain(value.py_func) if hasattr(value, "py_func") else value for name, value in called.items()}
    return types.FunctionType(function.__code__, {**scope, "__builtins__": __builtins__}, function.__name__)


# By this name it is part of the version of every environment that draws, which recorded runs carry.
_plain_draw.__module__ = "mileage.envs.draw"
