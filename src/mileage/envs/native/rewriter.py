"""A user's plain functions with other values for the constants, helpers and modules that they refer to.

Environment code is float32 throughout: floats in it (literals, module constants, closure variables) become float32.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from mileage._errors import EnvCompileError
from mileage.envs.native.functions import is_helper, members, names_used, references


class Rewriter:
    """Rewrites functions, each once; what becomes of a rewritten one is a subclass's business."""

    def __init__(self, substitutes: dict[int, Any]) -> None:
        """`substitutes` replace values that functions name, by the identity of the original."""
        self._substitutes = substitutes
        self._made: dict[types.FunctionType, Any] = {}
        self._under_way: set[types.FunctionType] = set()

    def make(self, function: types.FunctionType) -> Any:
        """What takes the place of `function`."""
        if function in self._under_way:
            code = function.__code__
            raise EnvCompileError(
                f"{function.__name__}() in {code.co_filename}, line {code.co_firstlineno}, calls itself, "
                "which cannot be compiled: use a loop"
            )
        if function not in self._made:
            self._under_way.add(function)
            try:
                self._made[function] = self._finish(self._rewrite(function))
            finally:
                self._under_way.remove(function)
        return self._made[function]

    def _finish(self, rewritten: types.FunctionType) -> Any:
        return rewritten

    def _rewrite(self, function: types.FunctionType) -> types.FunctionType:
        """The same function with float32 constants and helpers that were made likewise."""
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
            return self.make(value)
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return value.astype(np.float32)
        if isinstance(value, types.ModuleType):
            shadow = types.ModuleType(value.__name__)
            vars(shadow).update((name, self._value(item, names)) for name, item in members(value, names))
            return shadow
        return value
