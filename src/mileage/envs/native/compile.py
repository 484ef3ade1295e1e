"""From a user's functions to the C functions that collectors and `VecEnv.step` call, and errors in these.

    advance(state f32*, elapsed i64*, rng u64*, action f32*, obs f32*, reward f32*, terminated u8*, truncated u8*,
            final_obs f32*, n i64, max_steps i64) -> i64      how many episodes ended
    reset(state f32*, elapsed i64*, rng u64*, obs f32*, n i64) -> i64      0
    mask(state f32*, elapsed i64*, out u8*, n i64) -> i64      0; only of environments that say what is possible

They return `failures.FAILED` where one of the user's functions raised, and leave the rest undone.

The loop over environments is inside, around the inlined step, so that LLVM can vectorise over environments. The
arrays must not overlap: the pointers are declared so, which is what makes vectorising legal.

A C function cannot raise: the call ends with `FAILED`, and whoever made it asks for what was noted of its environments.

One call from Python with few arguments: what never changes comes in a single array, because unpacking an array argument
costs as much as stepping ten environments.
"""

from __future__ import annotations

import functools
import math
import os
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import numba
import numpy as np
from numba import carray
from numba.core import ccallback
from numba.core.compiler import Compiler
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.core.sigutils import normalize_signature

from mileage.envs.native.functions import Functions, FunctionSource, Outcome, Rng, Row, Sizes, place_key
from mileage.envs.native.rewrite import Portable
from mileage.errors import EnvCompileError, EnvError
from mileage.kernels.machine.frames import call_int64, f32, pointer_to
from mileage.kernels.machine.jit import KernelCache, kept_on_disk, kernel, uncollected
from mileage.kernels.machine.memory import flush_denormals, restore
from mileage.kernels.machine.user_calls import Failure, attempt_2, attempt_3, take_noted
from mileage.types import I64, Array

# --- Errors in compiled environments: noted by native code where they happen, raised by Python once it is back ---
FAILED = -(1 << 62)
"""What compiled functions of an environment return where one of the user's raised; sums of it stay below zero."""
RESET, STEP, OBSERVE, MASK = range(4)
_NAMES = ("reset", "step", "observe", "mask")
_PACKAGE = str(Path(__file__).parents[2])


def raise_noted(name: str, elapsed: I64, locate: Callable[[int, int], str]) -> None:
    """Raise the first error of the environments called `name` whose ages are `elapsed` (N,) int64, if there is one.

    `locate(function, index)` finds the line, in brackets, of an index error, which compiled code does not tell.
    """
    start = elapsed.ctypes.data
    if own := take_noted(start, start + elapsed.nbytes):
        first = min(own, key=lambda failure: failure.address)
        index = (first.address - start) // elapsed.itemsize
        line = place(first.error) or (locate(first.function, index) if isinstance(first.error, IndexError) else "")
        raise _env_error(name, first, line, index, int(elapsed[index])) from first.error


def _env_error(name: str, failure: Failure, line: str, index: int, elapsed: int) -> EnvError:
    """The sentence for a failure of environment number `index` after `elapsed` steps of its episode."""
    when = "at the start of an episode" if failure.function == RESET else f"in step {elapsed + 1} of its episode"
    said = in_words(failure.error)
    return EnvError(f"{_NAMES[failure.function]}() of {name!r} raised {said}{line} in environment {index}, {when}")


def in_words(error: BaseException) -> str:
    """The kind of an error, and what it says if it says anything."""
    text = str(error.args[0]) if len(error.args) == 1 else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place(error: BaseException) -> str:
    """Where in a user's file an error was raised, in brackets."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    # A line of the user's says more than one of the library that it calls.
    frames = [frame for frame in frames if "site-packages" not in Path(frame.filename).parts] or frames
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


_F32 = numba.types.CPointer(numba.float32)
_I64 = numba.types.CPointer(numba.int64)
_U64 = numba.types.CPointer(numba.uint64)
_U8 = numba.types.CPointer(numba.uint8)
CHECK_ENV = "MILEAGE_CHECK"
# Parts of Numba that are not in its type stubs.
_CFunc: Any = vars(ccallback)["CFunc"]
_CFuncCompiler: Any = vars(ccallback)["_CFuncCompiler"]
_ADVANCE = numba.int64(_F32, _I64, _U64, _F32, _F32, _F32, _U8, _U8, _F32, numba.int64, numba.int64)
_RESET = numba.int64(_F32, _I64, _U64, _F32, numba.int64)
_MASK = numba.int64(_F32, _I64, _U8, numba.int64)


class Callback(Protocol):
    """A compiled C function; its machine code lives as long as this."""

    address: int


class CompiledEnv:
    """The C functions of an environment, each compiled or loaded when first asked for."""

    def __init__(self, source: FunctionSource, key: str, *, checked: bool | None = None) -> None:
        """With `checked` (by default if MILEAGE_CHECK is set), what is not finite raises."""
        checked = os.environ.get(CHECK_ENV, "0") not in ("", "0") if checked is None else checked
        self._portable, self._source = Portable(checked=checked), source
        self._functions, self._sizes = source.functions, source.sizes
        self._key = "-".join(part for part in (key, place_key(source), "checked" if checked else "") if part)

    @functools.cached_property
    def advance(self) -> Callback:
        """Steps environments."""
        return compile_advance(self._portable, self._functions, self._sizes, self._key)

    @functools.cached_property
    def reset(self) -> Callback:
        """Starts episodes."""
        return compile_reset(self._portable, self._functions, self._sizes, self._key)

    @functools.cached_property
    def mask(self) -> Callback | None:
        """Says what is possible; None if everything always is."""
        _, _, function, choices = self._source
        return None if function is None else compile_mask(self._portable, function, self._sizes, choices, self._key)


class _NoAliasCompiler(_CFuncCompiler):  # type: ignore[misc]
    """Declares pointer arguments as not overlapping."""

    def _customize_flags(self, flags: Any) -> Any:
        flags = super()._customize_flags(flags)
        flags.noalias = True
        return flags

    @uncollected()
    def _compile_core(self, args: Any, return_type: Any) -> Any:
        return super()._compile_core(args, return_type)


def _callback(function: Any, signature: Any, key: str, step: types.FunctionType | None) -> Callback:
    options = {"nopython": True, "error_model": "numpy"}
    # Compiled code is found by its name: environments that were compiled in two processes must not share one.
    function.__qualname__ = f"{function.__qualname__}_{key}"
    compiled = _CFunc(function, normalize_signature(signature), locals={}, options=options)
    compiled._compiler = _NoAliasCompiler(function, cpu_target, options, {}, Compiler)
    kept_on_disk(compiled, KernelCache(function, key))
    try:
        compiled.compile()
    except NumbaError as error:
        if step is None:
            raise
        # What is fixed in here compiles; only the shape of what step() returns is the user's.
        code = step.__code__
        raise EnvCompileError(
            f"{step.__name__}() in {code.co_filename}, line {code.co_firstlineno}, must return two values: the reward "
            "(a number) and terminated (a bool)"
        ) from error
    return cast(Callback, compiled)


def _copy_state(size: int) -> Any:
    def observe(state: Any, obs: Any) -> None:
        for j in range(size):
            obs[j] = state[j]

    return observe


def _finite_outcome(act: Any) -> Any:
    def finite(state: Row, action: Row, rng: Rng) -> Outcome:
        gained, ended = act(state, action, rng)
        if not abs(gained) < math.inf:
            raise FloatingPointError("the reward is not finite")
        return gained, ended

    return finite


def _finite_observation(observe: Any, size: int) -> Any:
    def finite(state: Row, obs: Row) -> None:
        observe(state, obs)
        for j in range(size):
            if not abs(obs[j]) < math.inf:
                raise FloatingPointError("an entry of the observation is not finite")

    return finite


def _parts(portable: Portable, functions: Functions, sizes: Sizes) -> tuple[Any, Any, Any]:
    """(reset, step, observe) ready to be inlined; step takes an action row."""
    begin = portable.make(_sized(portable.make(functions[0]), sizes.state, 2))
    act = portable.make(_act(portable.make(functions[1]), sizes))
    observe = portable.make(functions[2] or _copy_state(sizes.state))
    if portable.checked:
        act = portable.make(_finite_outcome(act))
        observe = portable.make(_finite_observation(observe, sizes.obs))
    return begin, act, portable.make(_sized(observe, sizes.state, sizes.obs))


def _sized(function: Any, n: int, m: int) -> Any:
    """`function` of rows whose lengths are constants: an index that is one too needs no look while it runs."""

    def sized(first: Any, second: Any) -> None:
        function(carray(pointer_to(first), (n,)), carray(pointer_to(second), (m,)))

    return sized


def _act(step: Any, sizes: Sizes) -> Any:
    n, m, discrete = sizes.state, sizes.action, sizes.discrete

    def act(state: Any, action: Any, rng: Any) -> Any:
        chosen = np.int64(action[0]) if discrete else carray(pointer_to(action), (m,))
        return step(carray(pointer_to(state), (n,)), chosen, carray(pointer_to(rng), (2,)))

    return act


def compile_advance(portable: Portable, functions: Functions, sizes: Sizes, key: str) -> Callback:
    """Compile, or load from the cache, the C function `advance` from (reset, step, observe)."""
    begin, act, observe = _parts(portable, functions, sizes)
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
            failed, outcome = attempt_3(act, STEP, elapsed_p, i, state[i], action[i], rng[i])
            if failed:
                return FAILED
            gained, ended = outcome
            reward[i] = gained
            terminated[i] = np.uint8(1) if ended else np.uint8(0)
        for i in range(n):
            failed, _ = attempt_2(observe, OBSERVE, elapsed_p, i, state[i], obs[i])
            if failed:
                return FAILED
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
                elapsed[i] = 0
                failed, _ = attempt_2(begin, RESET, elapsed_p, i, state[i], rng[i])
                unseen, _ = attempt_2(observe, OBSERVE, elapsed_p, i, state[i], obs[i])
                if failed | unseen:
                    return FAILED
                left -= 1
            i += 1
        return done

    return _callback(advance, _ADVANCE, key, functions[1])


def compile_reset(portable: Portable, functions: Functions, sizes: Sizes, key: str) -> Callback:
    """Compile, or load from the cache, the C function `reset` from (reset, step, observe)."""
    begin, _, observe = _parts(portable, functions, sizes)
    state_size, obs_size = sizes.state, sizes.obs

    def reset(state_p: Any, elapsed_p: Any, rng_p: Any, obs_p: Any, n: Any) -> Any:
        state = carray(state_p, (n, state_size))
        elapsed = carray(elapsed_p, (n,))
        rng = carray(rng_p, (n, 2))
        obs = carray(obs_p, (n, obs_size))
        for i in range(n):
            elapsed[i] = 0
            failed, _ = attempt_2(begin, RESET, elapsed_p, i, state[i], rng[i])
            unseen, _ = attempt_2(observe, OBSERVE, elapsed_p, i, state[i], obs[i])
            if failed | unseen:
                return FAILED
        return 0

    return _callback(reset, _RESET, key, functions[1])


def compile_mask(portable: Portable, function: types.FunctionType, sizes: Sizes, choices: int, key: str) -> Callback:
    """Compile, or load from the cache, the C function `mask`; all of `choices` are possible until it says otherwise."""
    rule_out = portable.make(_sized(portable.make(function), sizes.state, choices))
    state_size = sizes.state

    def mask(state_p: Any, elapsed_p: Any, out_p: Any, n: Any) -> Any:
        state = carray(state_p, (n, state_size))
        out = carray(out_p, (n, choices))
        for i in range(n):
            for k in range(choices):
                out[i, k] = np.uint8(1)
            failed, _ = attempt_2(rule_out, MASK, elapsed_p, i, state[i], out[i])
            if failed:
                return FAILED
        return 0

    return _callback(mask, _MASK, key, None)


# --- The compiled half of `VecEnv.step`: check and convert the actions, then call the environment ---
@kernel
def step_discrete(call: I64, actions: Array) -> Any:
    """Step `n` environments and return how many episodes ended, or -1 if an action is out of range.

    `call` is (13,) int64, see `VecEnv._call`: the address of `advance`, nine of its pointers, n, the time limit and the
    number of actions. `actions` (n,) int64 are copied to where the fourth pointer goes, (n, 1) float32.
    """
    row, n_actions = f32(call[4]), call[12]
    wrong = 0
    for i in range(call[10]):
        index = actions[i]
        wrong |= (index < 0) | (index >= n_actions)
        row[i] = np.float32(index)
    if wrong:
        return -1
    mode = flush_denormals()
    ended = call_int64(
        call[0], (call[1], call[2], call[3], call[4], call[5], call[6], call[7], call[8], call[9], call[10], call[11])
    )
    restore(mode)
    return ended


@kernel
def step_continuous(call: I64, actions: Array) -> Any:
    """Step `n` environments and return how many episodes ended; `actions` is (n, A) float32, the rest as above."""
    row = pointer_to(actions)
    mode = flush_denormals()
    ended = call_int64(
        call[0], (call[1], call[2], call[3], row, call[5], call[6], call[7], call[8], call[9], call[10], call[11])
    )
    restore(mode)
    return ended
