"""From a user's three functions to the two C functions that collectors call.

    advance(state f32*, elapsed i64*, rng u64*, action f32*, obs f32*, reward f32*, terminated u8*, truncated u8*,
            final_obs f32*, n i64, max_steps i64) -> i64      how many episodes ended
    reset(state f32*, elapsed i64*, rng u64*, obs f32*, n i64) -> i64      always 0

The loop over environments is inside, around the inlined step, so that LLVM can vectorise over environments. The
arrays must not overlap: the pointers are declared so, which is what makes vectorising legal.
"""

from __future__ import annotations

import re
import types
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import carray
from numba.core import ccallback
from numba.core.compiler import Compiler
from numba.core.errors import NumbaError
from numba.core.sigutils import normalize_signature

from mileage._errors import EnvCompileError
from mileage.envs.native.env import Functions
from mileage.envs.native.portable import Portable
from mileage.kernels.machine.jit import KernelCache, OptimisedLibrary, _InnerCompiler, inner

_F32 = numba.types.CPointer(numba.float32)
_I64 = numba.types.CPointer(numba.int64)
_U64 = numba.types.CPointer(numba.uint64)
_U8 = numba.types.CPointer(numba.uint8)
# Parts of Numba that are not in its type stubs.
_CFunc: Any = vars(ccallback)["CFunc"]
_CFuncCompiler: Any = vars(ccallback)["_CFuncCompiler"]
ADVANCE = numba.int64(_F32, _I64, _U64, _F32, _F32, _F32, _U8, _U8, _F32, numba.int64, numba.int64)
RESET = numba.int64(_F32, _I64, _U64, _F32, numba.int64)
# Terminal colours, paths of modules, and the tail that repeats the place.
_NOISE = re.compile(r"\x1b\[[0-9;]*m| from '[^']*'|\.? Raised from .*")
# What Numba says, in the words of someone who wrote an environment.
_EXPLANATIONS = {
    "No implementation of function": "an operation on values of these types does not exist in compiled code",
}


class Sizes(NamedTuple):
    """Row lengths of an environment's arrays; `discrete` says that the action is an index."""

    state: int
    obs: int
    action: int
    discrete: bool


class _NoAliasCompiler(_CFuncCompiler):  # type: ignore[misc]
    """Declares pointer arguments as not overlapping."""

    def _customize_flags(self, flags: Any) -> Any:
        flags = super()._customize_flags(flags)
        flags.noalias = True
        return flags


class _PartCompiler(_InnerCompiler):
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
    """A Numba dispatcher for `function` that is inlined into the compiled functions that call it."""
    # Whatever Numba can do, users may write.
    result = inner(function, forceinline=True, pipeline_class=Compiler)
    usual = result._compiler
    result._compiler = _PartCompiler(
        function, usual.targetdescr, usual.targetoptions, usual.locals, usual.pipeline_class
    )
    return result


def compile_error(function: types.FunctionType, error: Exception) -> EnvCompileError:
    """Say what cannot be compiled, in which file and line, and what to do, in one sentence."""
    lines = [line.strip() for line in _NOISE.sub("", str(error)).splitlines()]
    reasons = [line for line in lines if line and not line.startswith(("Failed in ", "During: ", "File "))]
    reason = reasons[0].rstrip(".:") if reasons else type(error).__name__
    for start, explanation in _EXPLANATIONS.items():
        if reason.startswith(start):
            reason = explanation
    place = getattr(error, "loc", None)
    line = place.line if place is not None else function.__code__.co_firstlineno
    return EnvCompileError(
        f"{function.__name__}() in {function.__code__.co_filename}, line {line}, cannot be compiled ({reason}): "
        "use only numbers, the rows it is given, the math module, draws from rng and functions made of these"
    )


def _callback(function: Any, signature: Any, key: str, step: types.FunctionType) -> Any:
    options = {"nopython": True, "error_model": "numpy"}
    compiled = _CFunc(function, normalize_signature(signature), locals={}, options=options)
    compiled._compiler = _NoAliasCompiler(function, _CFunc._targetdescr, options, {}, Compiler)
    compiled._cache = KernelCache(function, key)
    try:
        compiled.compile()
    except NumbaError as error:
        # What is fixed in here compiles; only the shape of what step() returns is the user's.
        code = step.__code__
        raise EnvCompileError(
            f"{step.__name__}() in {code.co_filename}, line {code.co_firstlineno}, must return two values: the reward "
            "(a number) and terminated (a bool)"
        ) from error
    return compiled


def _copy_state(size: int) -> Any:
    def observe(state: Any, obs: Any) -> None:
        for j in range(size):
            obs[j] = state[j]

    return observe


def _act(step: Any, discrete: bool) -> Any:
    if discrete:

        def act(state: Any, action: Any, rng: Any) -> Any:
            return step(state, np.int64(action[0]), rng)
    else:

        def act(state: Any, action: Any, rng: Any) -> Any:
            return step(state, action, rng)

    return act


def compile_advance(portable: Portable, functions: Functions, sizes: Sizes, key: str) -> Any:
    """Compile, or load from the cache, the C function `advance` from (reset, step, observe)."""
    begin = portable.compile(functions[0])
    act = portable.compile(_act(portable.compile(functions[1]), sizes.discrete))
    observe = portable.compile(functions[2] or _copy_state(sizes.state))
    state_size, obs_size, action_size = sizes.state, sizes.obs, sizes.action

    def advance(
        state_p: Any, elapsed_p: Any, rng_p: Any, action_p: Any, obs_p: Any, reward_p: Any,
        terminated_p: Any, truncated_p: Any, final_obs_p: Any, n: Any, max_steps: Any,
    ) -> Any:  # fmt: skip
        state = carray(state_p, (n, state_size))
        elapsed = carray(elapsed_p, (n,))
        rng = carray(rng_p, (n, 2))
        action = carray(action_p, (n, action_size))
        obs = carray(obs_p, (n, obs_size))
        reward = carray(reward_p, (n,))
        terminated = carray(terminated_p, (n,))
        truncated = carray(truncated_p, (n,))
        final_obs = carray(final_obs_p, (n, obs_size))
        for i in range(n):
            gained, ended = act(state[i], action[i], rng[i])
            reward[i] = gained
            terminated[i] = np.uint8(1) if ended else np.uint8(0)
        for i in range(n):
            observe(state[i], obs[i])
        done = 0
        for i in range(n):
            steps = elapsed[i] + 1
            elapsed[i] = steps
            late = np.uint8((max_steps > 0) & (steps >= max_steps)) & (terminated[i] ^ np.uint8(1))
            truncated[i] = late
            done += terminated[i] | late
        # Ended episodes are few: the trip count depends on the data so that LLVM leaves this loop scalar (vectorised,
        # it would compute a reset for every environment and scatter a few of them, at several times the price).
        left, i = done, 0
        while left > 0:
            if terminated[i] | truncated[i]:
                for j in range(obs_size):
                    final_obs[i, j] = obs[i, j]
                begin(state[i], rng[i])
                observe(state[i], obs[i])
                elapsed[i] = 0
                left -= 1
            i += 1
        return done

    return _callback(advance, ADVANCE, key, functions[1])


def compile_reset(portable: Portable, functions: Functions, sizes: Sizes, key: str) -> Any:
    """Compile, or load from the cache, the C function `reset` from (reset, step, observe)."""
    begin = portable.compile(functions[0])
    observe = portable.compile(functions[2] or _copy_state(sizes.state))
    state_size, obs_size = sizes.state, sizes.obs

    def reset(state_p: Any, elapsed_p: Any, rng_p: Any, obs_p: Any, n: Any) -> Any:
        state = carray(state_p, (n, state_size))
        elapsed = carray(elapsed_p, (n,))
        rng = carray(rng_p, (n, 2))
        obs = carray(obs_p, (n, obs_size))
        for i in range(n):
            begin(state[i], rng[i])
            observe(state[i], obs[i])
            elapsed[i] = 0
        return 0

    return _callback(reset, RESET, key, functions[1])
