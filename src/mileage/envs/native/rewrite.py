"""A user's functions rewritten: portable for the compiler, or in plain Python; and what is refused in them.

Environment code is float32 throughout: floats in it (literals, module constants, closure variables) become float32.

Numba takes a Python float for a double, so that one literal turns a whole expression to double precision and
halves the speed. Here they are float32, and `math.sin` and its like become float32 functions that vectorise.

Its functions run as they stand, but for numbers: floats are float32, and a logarithm of zero or a division by it is
infinite, as in compiled code.
"""

from __future__ import annotations

import builtins
import dis
import functools
import math
import random
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba.core.compiler import Compiler

from mileage.envs.native import float32, functions
from mileage.envs.native.functions import FunctionSource, is_helper, members, names_used, references
from mileage.errors import EnvCompileError
from mileage.kernels import random as kernel_random
from mileage.kernels.machine.jit import InnerCompiler, OptimisedLibrary, inner
from mileage.kernels.random import streams
from mileage.types import F32, U8, U64


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


# --- What would compile in a user's functions and not do what it says: draws that no seed reaches, and printing ---
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


# --- A user's function compiled to be inlined, and what is wrong with one that cannot be, in a sentence ---
# Terminal colours, paths of modules, and the tail that repeats the place.
_NOISE = re.compile(r"\x1b\[[0-9;]*m| from '[^']*'|\.? Raised from .*")
_FILE_AND_LINE = re.compile(r'File "[^"]*", line (\d+)')
# What Numba says, in the words of someone who wrote an environment.
_EXPLANATIONS = {
    "No implementation of function": "an operation on values of these types does not exist in compiled code"
}


class _PartCompiler(InnerCompiler):
    """Compiles a user's function and says where and why it cannot be."""

    library_class = OptimisedLibrary

    def _compile_core(self, args: Any, return_type: Any) -> Any:
        try:
            return super()._compile_core(args, return_type)
        except EnvCompileError:
            raise
        except Exception as error:  # Numba raises all kinds, also for code that is merely unsupported
            raise compile_error(self.py_func, error) from error


def part(function: types.FunctionType) -> Any:
    """A Numba dispatcher for `function` that is inlined into the compiled functions that call it.

    An index beyond an array raises IndexError; one that is a constant costs nothing where the length is one too.
    """
    # Whatever Numba can do, users may write.
    return inner(function, compiler=_PartCompiler, forceinline=True, pipeline_class=Compiler, boundscheck=True)


def compile_error(function: types.FunctionType, error: Exception) -> EnvCompileError:
    """Say what cannot be compiled, in which file and line, and what to do, in one sentence."""
    lines = [line.strip() for line in _NOISE.sub("", str(error)).splitlines()]
    reasons = [line for line in lines if line and not line.startswith(("Failed in ", "During: ", "File "))]
    reason = reasons[0].rstrip(".:") if reasons else type(error).__name__
    for start, explanation in _EXPLANATIONS.items():
        if reason.startswith(start):
            reason = explanation
    where = f"{function.__name__}() in {function.__code__.co_filename}, line {_line(function, error)},"
    return EnvCompileError(
        f"{where} cannot be compiled ({reason}): use only numbers, the rows it is given, the math module, draws from "
        "rng and functions made of these"
    )


def _line(function: types.FunctionType, error: Exception) -> int:
    """The line of a user's function that an error is about: what Numba names may be deep in its own files."""
    place = getattr(error, "loc", None)
    if place is not None and place.filename == function.__code__.co_filename:
        return int(place.line)
    last = max((line for _, _, line in function.__code__.co_lines() if line), default=0)
    named = [
        int(line)
        for line in _FILE_AND_LINE.findall(str(error))
        if function.__code__.co_firstlineno <= int(line) <= last
    ]
    return named[-1] if named else function.__code__.co_firstlineno


# --- A user's plain function made ready for compilation: constants as float32, helpers compiled ---
def _substitutes() -> dict[int, Any]:
    """Compiled replacements for functions that environment code may name, by the identity of the original."""
    pairs = [(getattr(functions, name), getattr(kernel_random, name)) for name in ("uniform", "normal", "integers")]
    for name in ("sin", "cos"):
        pairs += [(getattr(module, name), getattr(float32, name)) for module in (math, np)]
    return {id(original): compiled for original, compiled in pairs}


class Portable(Rewriter):
    """Makes functions that Numba compiles; helpers shared by several functions are compiled once."""

    def __init__(self, *, checked: bool = False) -> None:
        """With `checked`, numbers that are not finite are to raise."""
        super().__init__(_substitutes())
        self.checked = checked

    def _rewrite(self, function: types.FunctionType) -> types.FunctionType:
        refuse(function)
        return super()._rewrite(function)

    def _finish(self, rewritten: types.FunctionType) -> Any:
        """A Numba dispatcher, always inlined into its caller."""
        return part(rewritten)


# --- A native environment in plain Python: slow, and stopped by Python itself at an index beyond a row ---
# Functions of `math` that have another name in NumPy.
_OTHER_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "pow": "power"}
# Those whose result is a float, which Python's own versions refuse at the edges of their domain.
_FLOAT_FUNCTIONS = [
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "exp",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "pow",
    "fabs",
    "hypot",
    "fmod",
    "copysign",
]


def _float_function(name: str) -> Callable[..., Any]:
    function = getattr(np, _OTHER_NAMES.get(name, name))
    return lambda *numbers: function(*(np.float32(number) for number in numbers))


_SUBSTITUTES = {id(vars(math)[name]): _float_function(name) for name in _FLOAT_FUNCTIONS} | {
    id(function): functools.partial(function) for function in (functions.uniform, functions.normal, functions.integers)
}


class _Strict(Rewriter):
    """Makes plain functions of those alone that may be compiled."""

    def _rewrite(self, function: types.FunctionType) -> types.FunctionType:
        refuse(function)
        return super()._rewrite(function)


class PlainEnv:
    """One environment; `state` and `obs` are its rows."""

    def __init__(self, source: FunctionSource, seed: int, *, strict: bool = False) -> None:
        """With `strict`, EnvCompileError for what compiled code would refuse."""
        self.elapsed = 0
        """Steps of the episode so far."""
        self.state: F32 = np.zeros(source.sizes.state, np.float32)
        self.obs: F32 = np.zeros(source.sizes.obs, np.float32)
        self.rng: U64 = streams(seed, 1, "env")[0]
        plain = (_Strict if strict else Rewriter)(_SUBSTITUTES)
        self.mask: U8 = np.ones(source.choices, np.uint8)
        """What is possible, as `rule_out` left it."""
        (reset, step, observe), _, rule_out, _ = source
        self._reset, self._step = plain.make(reset), plain.make(step)
        self._observe = None if observe is None else plain.make(observe)
        self._rule_out = None if rule_out is None else plain.make(rule_out)

    def reset(self) -> None:
        """Start an episode."""
        with np.errstate(all="ignore"):
            self._reset(self.state, self.rng)
        self.elapsed = 0

    def step(self, action: Any) -> Any:
        """One step; returns whatever the user's function does. `observe` fills the observation."""
        with np.errstate(all="ignore"):
            outcome = self._step(self.state, action, self.rng)
        self.elapsed += 1
        return outcome

    def observe(self) -> None:
        """Fill `obs`."""
        with np.errstate(all="ignore"):
            if self._observe is None:
                self.obs[:] = self.state
            else:
                self._observe(self.state, self.obs)

    def rule_out(self) -> None:
        """Fill `mask`."""
        self.mask[:] = 1
        if self._rule_out is not None:
            with np.errstate(all="ignore"):
                self._rule_out(self.state, self.mask)
