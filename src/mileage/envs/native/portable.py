"""A user's plain function made ready for compilation: constants as float32, helpers compiled.

Numba takes a Python float for a double, so that one literal turns a whole expression to double precision and
halves the speed. Environment code is float32 throughout, so floats in it (literals, module constants, closure
variables) become float32 and `math.sin` and its like become float32 functions that vectorise.
"""

from __future__ import annotations

import math
import types
from typing import Any

import numpy as np

from mileage.envs.native import draw, float32
from mileage.envs.native.functions import is_helper, members, names_used, references
from mileage.envs.native.part import part
from mileage.kernels.arrays import random


def _substitutes() -> dict[int, Any]:
    """Compiled replacements for functions that environment code may name, by the identity of the original."""
    pairs = [(getattr(draw, name), getattr(random, name)) for name in ("uniform", "normal", "integers")]
    for name in ("sin", "cos"):
        pairs += [(getattr(module, name), getattr(float32, name)) for module in (math, np)]
    return {id(original): compiled for original, compiled in pairs}


class Portable:
    """Rewrites functions for compilation; helpers shared by several functions are compiled once."""

    def __init__(self) -> None:
        self._substitutes = _substitutes()
        self._compiled: dict[types.FunctionType, Any] = {}

    def compile(self, function: types.FunctionType) -> Any:
        """A Numba dispatcher for `function`, always inlined into its caller."""
        known = self._compiled.get(function)
        if known is None:
            known = self._compiled[function] = part(self.rewrite(function))
        return known

    def rewrite(self, function: types.FunctionType) -> types.FunctionType:
        """The same function with float32 constants and compiled helpers."""
        names = names_used(function.__code__)
        constants = tuple(self._value(constant, names) for constant in function.__code__.co_consts)
        code = function.__code__.replace(co_consts=constants)
        outer = {name: self._value(value, names) for name, value in references(function)}
        scope = {**outer, "__builtins__": __builtins__, "__name__": function.__module__}
        cells = tuple(types.CellType(outer[name]) for name in code.co_freevars)
        return types.FunctionType(code, scope, function.__name__, function.__defaults__, cells)

    def _value(self, value: Any, names: set[str]) -> Any:
        value = self._substitutes.get(id(value), value)
        if isinstance(value, float):
            return np.float32(value)
        if isinstance(value, tuple):
            return tuple(self._value(item, names) for item in value)
        if is_helper(value):
            return self.compile(value)
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return value.astype(np.float32)
        if isinstance(value, types.ModuleType):
            shadow = types.ModuleType(value.__name__)
            vars(shadow).update((name, self._value(item, names)) for name, item in members(value, names))
            return shadow
        return value
