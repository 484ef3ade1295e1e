"""What would compile in a user's functions and not do what it says: draws that no seed reaches, and printing."""

from __future__ import annotations

import builtins
import dis
import random
import types
from collections.abc import Iterator

import numpy as np

from mileage._errors import EnvCompileError

_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_RANDOM_MODULES = ("random", "numpy.random", "secrets")


def refuse(function: types.FunctionType) -> None:
    """EnvCompileError if `function` prints or draws past its rng."""
    for line, name, value in _values(function):
        where = f"{function.__name__}() in {function.__code__.co_filename}, line {line},"
        if _draws(value):
            raise EnvCompileError(
                f"{where} uses {name}, which no seed of mileage reaches: draw from its rng with "
                "uniform(rng, low, high), normal(rng) or integers(rng, n) of mileage.envs"
            )
        if value is print:
            raise EnvCompileError(
                f"{where} calls print(), which compiled code cannot: take it out, or watch an episode in plain Python "
                "with `mileage env check FILE.py:NAME`, where it prints"
            )


def _draws(value: object) -> bool:
    """Whether `value` is a source of random numbers other than an rng of ours."""
    if isinstance(value, types.ModuleType):
        return value.__name__ in _RANDOM_MODULES
    owner = value.__self__ if isinstance(value, types.BuiltinMethodType | types.MethodType) else value
    return isinstance(owner, _GENERATORS)


def _values(function: types.FunctionType) -> Iterator[tuple[int, str, object]]:
    """(line, dotted name, value) of everything that the code of `function` names: globals and members of modules."""
    closed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    line, name = function.__code__.co_firstlineno, ""
    value: object = None
    for instruction in dis.get_instructions(function.__code__):
        line = instruction.positions.lineno or line if instruction.positions else line
        word = str(instruction.argval)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            name, value = word, function.__globals__.get(word, vars(builtins).get(word))
        elif instruction.opname == "LOAD_DEREF" and word in closed:
            name, value = word, closed[word].cell_contents
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType):
            name, value = f"{name}.{word}", vars(value).get(word)
        else:
            value = None
            continue
        yield line, name, value
