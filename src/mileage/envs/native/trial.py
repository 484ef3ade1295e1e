"""A user's environment tried in plain Python before it is compiled: a few steps, in a fraction of a second.

A NaN spreads through a network before anybody looks: this stops at it, and at whatever else Python stops at. What only
Python refuses, compiled code may yet do: that is left to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import functools
import hashlib
import itertools
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mileage.codec import leave_nothing, no_way_out
from mileage.contracts import EnvSpec
from mileage.envs.native.compile import MASK, OBSERVE, RESET, STEP, in_words, place
from mileage.envs.native.functions import FunctionSource
from mileage.envs.native.rewrite import PlainEnv
from mileage.errors import EnvCompileError, EnvError
from mileage.kernels.machine.jit import cache_dir
from mileage.types import F32, F64, I64, U8, U64, Array

STEPS = 200
SECONDS = 0.25
"""What a trial computes at most before training, in all."""
# Of these seconds, as many times as many may pass.
_PATIENCE = 20
_SEED = 0
_tried: set[str] = set()
"""What has been tried in this process."""


class TrialTimeoutError(Exception):
    """A trial that took too long."""


class OutcomeError(TypeError):
    """A step that returns what no compiler would take."""


def first_steps(spec: EnvSpec, source: FunctionSource) -> None:
    """EnvError for what is wrong in the first steps; EnvCompileError for what would be refused later.

    What has been tried once is not tried again, as long as compiled code is kept.
    """
    words = (spec.version, spec.n_actions, spec.max_steps, spec.action_low.tobytes(), spec.action_high.tobytes())
    key = hashlib.sha256(repr(words).encode()).hexdigest()[:16]
    mark = cache_dir() / f"tried-{key}"
    if key in _tried or mark.exists():
        return
    try:
        with at_most(SECONDS):
            trace = play(spec, source, _SEED, STEPS, strict=True)
            if play(spec, source, _SEED, STEPS, strict=True) != trace:
                raise EnvError(
                    f"environment {spec.id!r} does not repeat itself: with the same seed and actions it went another "
                    "way, so it must keep something outside its state"
                )
    except (EnvError, EnvCompileError):
        raise
    except OutcomeError as error:
        code = source.functions[1].__code__
        where = f"step() in {code.co_filename}, line {code.co_firstlineno},"
        raise EnvCompileError(f"{where} {error}") from error
    except Exception:
        _tried.add(key)
        return
    _tried.add(key)
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def play(spec: EnvSpec, source: FunctionSource, seed: int, steps: int, *, strict: bool = False) -> list[bytes]:
    """Take random steps; returns observations and rewards as bytes, EnvError for what is wrong with them."""
    env = PlainEnv(source, seed, strict=strict)
    rng = np.random.default_rng(seed)
    trace = []
    fresh = True
    for _ in range(steps):
        if fresh:
            _call(spec, env, "reset")
            _observed(spec, env)
        outcome = _call(spec, env, "step", _possible_action(spec, env, rng))
        reward, terminated = _checked_outcome(spec, env, outcome)
        _observed(spec, env)
        trace.append(env.obs.tobytes() + np.float32(reward).tobytes())
        fresh = bool(terminated) or 0 < spec.max_steps <= env.elapsed
    return trace


def locate(spec: EnvSpec, source: FunctionSource, function: int, state: F32, rng: U64) -> str:
    """Where a function raises IndexError from this state on, in brackets; with one action or another."""
    draws = np.random.default_rng(_SEED)
    for attempt in range(max(1, spec.n_actions)):
        env = PlainEnv(source, _SEED)
        env.state[:], env.rng[:] = state, rng
        action = attempt if spec.n_actions else _one_action(spec, draws)
        calls: dict[int, Callable[[], object]] = {
            RESET: env.reset, STEP: functools.partial(env.step, action), OBSERVE: env.observe, MASK: env.rule_out
        }  # fmt: skip
        try:
            calls[function]()
        except IndexError as error:
            return place(error)
        except Exception:
            return ""
    return ""


def random_actions(spec: EnvSpec, n: int, rng: np.random.Generator, masks: U8 | None = None) -> Array:
    """Indices (n,) int64, or rows (n, A) float32: choices first, then numbers within the bounds if there are any.

    Choices are among those that `masks` (n, M) leave, if given.
    """
    chosen = None if masks is None else _possible(spec.choices, rng.random(masks.shape) * masks)
    if spec.n_actions:
        return rng.integers(spec.n_actions, size=n) if chosen is None else chosen[:, 0]
    # Where a bound is missing, within 10 of 0, or of the bound there is.
    low = np.maximum(spec.action_low, np.minimum(spec.action_high, 10.0) - 20.0)
    high = np.minimum(spec.action_high, np.maximum(spec.action_low, -10.0) + 20.0)
    rows = rng.uniform(low, high, (n, spec.action_size)).astype(np.float32)
    branches = spec.branches
    rows[:, : len(branches)] = rng.integers(branches, size=(n, len(branches))) if chosen is None else chosen
    return rows


def _possible(choices: Sequence[int], weights: F64) -> I64:
    """Of each part of an action, the choice of the largest weight (n, M); those that are masked have 0."""
    edges = np.cumsum([0, *choices])
    return np.stack([weights[:, a:b].argmax(axis=1) for a, b in itertools.pairwise(edges)], axis=1)


def _one_action(spec: EnvSpec, rng: np.random.Generator, masks: U8 | None = None) -> int | F32:
    action = random_actions(spec, 1, rng, masks)[0]
    return int(action) if spec.n_actions else action


def _possible_action(spec: EnvSpec, env: PlainEnv, rng: np.random.Generator) -> int | F32:
    """A random action among those that the environment says are possible."""
    if not spec.masked:
        return _one_action(spec, rng)
    _call(spec, env, "mask")
    masks = env.mask[None]
    if leave_nothing(masks, spec.choices):
        raise no_way_out(spec.id)
    return _one_action(spec, rng, masks)


def _call(spec: EnvSpec, env: PlainEnv, name: str, *arguments: Any) -> Any:
    """What one of the user's functions returns; EnvError if it leaves a row, or raises by a statement of its own."""
    functions: dict[str, Callable[..., object]] = {
        "reset": env.reset, "step": env.step, "observe": env.observe, "mask": env.rule_out
    }  # fmt: skip
    try:
        return functions[name](*arguments)
    except IndexError as error:
        if _raised_on_purpose(error):
            raise _told(spec, env, name, error) from error
        text = traceback.extract_tb(error.__traceback__)[-1].line
        raise EnvError(
            f"{name}() of {spec.id!r} reaches beyond a row{place(error)}: {error} in `{text}`, "
            f"in step {env.elapsed + 1} of an episode"
        ) from error
    except Exception as error:
        if not _raised_on_purpose(error):
            raise
        raise _told(spec, env, name, error) from error


def _raised_on_purpose(error: BaseException) -> bool:
    """Whether an error comes from `raise` or `assert` in a user's function, which compiled code would raise as well."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not place(error):
        return False
    code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
    return dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS" and module.partition(".")[0] != "numpy"


def _told(spec: EnvSpec, env: PlainEnv, name: str, error: Exception) -> EnvError:
    # What is observed belongs to the step that was taken, what is possible to the next.
    step = max(1, env.elapsed) if name == "observe" else env.elapsed + 1
    when = "at the start of an episode" if name == "reset" else f"in step {step} of its episode"
    return EnvError(f"{name}() of {spec.id!r} raised {in_words(error)}{place(error)} in environment 0, {when}")


def _observed(spec: EnvSpec, env: PlainEnv) -> None:
    _call(spec, env, "observe")
    if not np.isfinite(env.obs).all():
        raise EnvError(f"the observation of {spec.id!r} {first_odd(env.obs)} after {env.elapsed} steps of an episode")


def _checked_outcome(spec: EnvSpec, env: PlainEnv, outcome: Any) -> tuple[float, Any]:
    """Reward and end of a step; EnvError for what a compiler would not see, TypeError for what it will."""
    if not isinstance(outcome, tuple) or len(outcome) != 2:
        found = f"{len(outcome)} values" if isinstance(outcome, tuple) else type(outcome).__name__
        raise OutcomeError(f"must return two values: the reward (a number) and terminated (a bool), not {found}")
    reward, terminated = outcome
    if reward is None:
        raise EnvError(f"the reward of {spec.id!r} must be a number, not None, in step {env.elapsed} of an episode")
    if not isinstance(reward, int | float | np.number | np.bool_):
        raise TypeError(f"the reward must be a number, not {reward!r}")
    if not math.isfinite(reward):
        raise EnvError(f"the reward of {spec.id!r} is {reward} in step {env.elapsed} of an episode: it must be finite")
    return float(reward), terminated


def first_odd(row: Array) -> str:
    """Which entry of `row` is the first that is not finite, in words: "is nan in entry 2"."""
    index = int(np.flatnonzero(~np.isfinite(row))[0])
    return f"is {row[index]} in entry {index}"


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """TrialTimeoutError in the body, between two instructions of Python, once it has computed for this long.

    What others do on the machine does not count, unless the body takes far longer for it.
    """
    ident, guard, over = threading.get_ident(), threading.Lock(), threading.Event()
    clock = time.pthread_getcpuclockid(ident)
    computed, began = time.clock_gettime(clock), time.monotonic()

    def watch() -> None:
        left = seconds
        while not over.wait(max(left, 0.01)):
            spent = time.clock_gettime(clock) - computed
            left = min(seconds - spent, _PATIENCE * seconds - (time.monotonic() - began))
            if left <= 0.0:
                strike()

    def strike() -> None:
        with guard:
            if not over.is_set():
                over.set()
                struck.append(True)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(TrialTimeoutError))

    struck: list[bool] = []
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with guard:
            over.set()
        if struck:
            _absorb()


def _absorb() -> None:
    """Take an TrialTimeoutError that is on its way, so that it hits nobody else."""
    with contextlib.suppress(TrialTimeoutError):
        for _ in range(1000):
            pass
