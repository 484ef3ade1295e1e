"""A user's plain functions: what they refer to, a digest of it, what they draw with, and each compiled to be inlined.

Inside a compiled environment they are the kernels of the same name; called from Python they run the kernels' source as
it stands, so that an environment can be stepped under a debugger.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import types
from collections.abc import Iterator, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from mileage.types import F32, U64

_PACKAGE = str(Path(__file__).parents[2])
Row = F32
"""A state, observation or continuous action of one environment, float32; read and written in place."""
Rng = U64
"""The random stream of one environment, (2,) uint64; goes to the draws of `mileage.envs.native.functions`."""
Outcome = tuple[float | np.float32, bool | np.bool_]
"""What a step returns: the reward, and whether the episode came to its own end."""
Functions = tuple[types.FunctionType, types.FunctionType, types.FunctionType | None]
"""(reset, step, observe)."""


class Sizes(NamedTuple):
    """Row lengths of an environment's arrays; `discrete` says that the action is an index."""

    state: int
    obs: int
    action: int
    discrete: bool


class FunctionSource(NamedTuple):
    """What an environment is made of."""

    functions: Functions
    sizes: Sizes
    mask: types.FunctionType | None = None
    """Says what is possible, if not everything always is."""
    choices: int = 0
    """Entries of what it writes."""


def version(
    functions: Functions, sizes: Sizes, mask: types.FunctionType | None = None, branches: Sequence[int] = ()
) -> str:
    """Digest of an environment's source."""
    keys = [content_key(function) if function else "" for function in functions]
    parts: tuple[object, ...] = (keys, tuple(sizes))
    if mask is not None or branches:
        parts = (*parts, content_key(mask) if mask else "", tuple(branches))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def place_key(source: FunctionSource) -> str:
    """Digest of the files and lines that a user's functions stand in, which compiled code names when one raises.

    Empty for the environments of this package, so that they are compiled once wherever it is installed.
    """
    places: dict[int, object] = {}
    functions, _, mask, _ = source
    for function in (*functions, mask):
        if function is not None:
            _collect_places(function, places)
    own = [place for place in places.values() if place is not None]
    return hashlib.sha256(repr(own).encode()).hexdigest()[:8] if own else ""


def _collect_places(function: types.FunctionType, found: dict[int, object]) -> None:
    if id(function) in found:
        return
    code = function.__code__
    found[id(function)] = None
    # What was typed has no file to be looked up in.
    if not code.co_filename.startswith((_PACKAGE, "<")):
        found[id(function)] = code.co_filename, [line for _, _, line in code.co_lines()]
    names = names_used(code)
    for _, value in references(function):
        meant = [item for _, item in members(value, names)] if isinstance(value, types.ModuleType) else [value]
        for each in meant:
            plain = getattr(each, "py_func", each)
            if is_helper(plain):
                _collect_places(plain, found)


def names_used(code: types.CodeType) -> set[str]:
    """Global and attribute names used by `code` and by the functions defined inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_used(constant)
    return names


def references(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Every (name, value) outside `function` that its code refers to, in a fixed order."""
    for name in sorted(names_used(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def _describe_code(code: types.CodeType) -> str:
    constants = [_describe_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants))


def is_helper(value: object) -> TypeGuard[types.FunctionType]:
    """Whether `value` is a function to be compiled along: plain, and none that Numba knows in its own way."""
    if not isinstance(value, types.FunctionType) or value.__module__.partition(".")[0] in ("numpy", "numba"):
        return False
    return not (value.__code__.co_kwonlyargcount or value.__code__.co_flags & (CO_VARARGS | CO_VARKEYWORDS))


def _describe_value(value: object, names: set[str], seen: set[int]) -> str:
    value = getattr(value, "py_func", value)
    if is_helper(value):
        return content_key(value, seen)
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        parts = [f"{name}={_describe_value(item, names, seen)}" for name, item in members(value, names)]
        return f"{value.__name__}({parts})"
    if isinstance(value, np.ndarray):
        return repr((value.dtype.str, value.shape, value.tobytes().hex()))
    return repr(value)


def members(module: types.ModuleType, names: set[str]) -> list[tuple[str, object]]:
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


# --- Random draws for environment code: the first argument is the `rng` row that `reset` and `step` receive ---
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
    from mileage.kernels import random

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
