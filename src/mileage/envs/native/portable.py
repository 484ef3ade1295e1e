"""A user's plain function made ready for compilation: constants as float32, helpers compiled, content as a key.

Numba takes a Python float for a double, so that one literal turns a whole expression to double precision and
halves the speed. Environment code is float32 throughout, so floats in it (literals, module constants, closure
variables) become float32 and `math.sin` and its like become float32 functions that vectorise.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import types
from collections.abc import Iterator
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Any

import numpy as np


def names_used(code: types.CodeType) -> set[str]:
    """Global and attribute names used by `code` and by the functions defined inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_used(constant)
    return names


def references(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Every (name, value) outside `function` that its code refers to, in a fixed order."""
    for name in sorted(names_used(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def _describe_code(code: types.CodeType) -> str:
    constants = [_describe_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants))


def _is_helper(value: Any) -> bool:
    """Whether `value` is a function to be compiled along: plain, and none that Numba knows in its own way."""
    if not isinstance(value, types.FunctionType) or value.__module__.partition(".")[0] in ("numpy", "numba"):
        return False
    return not (value.__code__.co_kwonlyargcount or value.__code__.co_flags & (CO_VARARGS | CO_VARKEYWORDS))


def _describe_value(value: Any, names: set[str], seen: set[int]) -> str:
    value = getattr(value, "py_func", value)
    if _is_helper(value):
        return content_key(value, seen)
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        parts = [f"{name}={_describe_value(item, names, seen)}" for name, item in _members(value, names)]
        return f"{value.__name__}({parts})"
    if isinstance(value, np.ndarray):
        return repr((value.dtype.str, value.shape, value.tobytes().hex()))
    return repr(value)


def _members(module: types.ModuleType, names: set[str]) -> list[tuple[str, Any]]:
    """Those members of a module that code with these names can mean."""
    return [(name, vars(module)[name]) for name in sorted(names) if name in vars(module)]


def content_key(function: types.FunctionType, seen: set[int] | None = None) -> str:
    """Digest of all that decides what `function` compiles to: its code and the values and helpers it refers to."""
    seen = set() if seen is None else seen
    if id(function) in seen:
        return "recursion"
    seen.add(id(function))
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    digest.update(_describe_code(function.__code__).encode())
    names = names_used(function.__code__)
    for name, value in references(function):
        digest.update(f"{name}={_describe_value(value, names, seen)};".encode())
    return digest.hexdigest()


def _substitutes() -> dict[int, Any]:
    """Compiled replacements for functions that environment code may name, by the identity of the original."""
    from mileage.envs.native import draw
    from mileage.envs.native import float32 as _float32
    from mileage.kernels.arrays import random

    pairs = [(getattr(draw, name), getattr(random, name)) for name in ("uniform", "normal", "integers")]
    for name in ("sin", "cos"):
        pairs += [(getattr(module, name), getattr(_float32, name)) for module in (math, np)]
    return {id(original): compiled for original, compiled in pairs}


class Portable:
    """Rewrites functions for compilation; helpers shared by several functions are compiled once."""

    def __init__(self) -> None:
        self._substitutes = _substitutes()
        self._compiled: dict[types.FunctionType, Any] = {}

    def compile(self, function: types.FunctionType) -> Any:
        """A Numba dispatcher for `function`, always inlined into its caller."""
        from mileage.envs.native.compile import part

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
        if _is_helper(value):
            return self.compile(value)
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return value.astype(np.float32)
        if isinstance(value, types.ModuleType):
            shadow = types.ModuleType(value.__name__)
            vars(shadow).update((name, self._value(item, names)) for name, item in _members(value, names))
            return shadow
        return value
