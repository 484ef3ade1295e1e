"""A user's function compiled to be inlined, and what is wrong with one that cannot be, in a sentence."""

from __future__ import annotations

import re
import types
from typing import Any

from numba.core.compiler import Compiler

from mileage._errors import EnvCompileError
from mileage.kernels.machine.jit import InnerCompiler, OptimisedLibrary, inner

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
