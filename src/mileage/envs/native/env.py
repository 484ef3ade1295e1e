"""Native environments: three plain functions and the numbers that describe them, compiled when first stepped."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mileage._errors import UsageError
from mileage._types import F32

Functions = tuple[types.FunctionType, types.FunctionType, types.FunctionType | None]
# Names are the user's choice; their number is not.
_PARAMETERS = {"reset": ("state", "rng"), "step": ("state", "action", "rng"), "observe": ("state", "obs")}


@dataclasses.dataclass(frozen=True, eq=False)
class NativeEnv:
    """A compiled environment: sizes, bounds and the addresses of its two C functions.

    Nothing is compiled before an address is asked for, and what was compiled once is loaded from disk afterwards.
    """

    leaves = None

    id: str
    state_size: int
    """Length S of the float32 row that holds one environment's whole state."""
    obs_size: int
    """Length O of one observation."""
    action_size: int
    """Length A of one action row; 1 if discrete."""
    n_actions: int
    """Number of discrete actions, 0 if continuous."""
    action_low: F32
    """Lower bounds of a continuous action, (A,) float32; empty if discrete."""
    action_high: F32
    """Upper bounds of a continuous action, (A,) float32; empty if discrete."""
    obs_low: F32
    """Lower bounds of an observation, (O,) float32."""
    obs_high: F32
    """Upper bounds of an observation, (O,) float32."""
    max_steps: int
    """Steps after which an episode is truncated, 0 for no limit."""
    reward_threshold: float | None
    """Mean return at which the environment counts as solved."""
    version: str
    """Digest of the environment's source: what compiled code and comparisons are keyed by."""
    functions: Functions = dataclasses.field(repr=False)
    """The plain functions (reset, step, observe)."""

    @functools.cached_property
    def advance_address(self) -> int:
        """Address of the C function `advance`; its signature stands in `mileage.envs.native.compile`."""
        return int(self._advance.address)

    @functools.cached_property
    def reset_address(self) -> int:
        """Address of the C function `reset`; its signature stands in `mileage.envs.native.compile`."""
        return int(self._reset.address)

    @functools.cached_property
    def _advance(self) -> Any:
        from mileage.envs.native.compile import compile_advance

        return compile_advance(self._portable, self.functions, self._sizes, self.version)

    @functools.cached_property
    def _reset(self) -> Any:
        from mileage.envs.native.compile import compile_reset

        return compile_reset(self._portable, self.functions, self._sizes, self.version)

    @functools.cached_property
    def _portable(self) -> Any:
        from mileage.envs.native.portable import Portable

        return Portable()

    @property
    def _sizes(self) -> Any:
        from mileage.envs.native.compile import Sizes

        return Sizes(self.state_size, self.obs_size, self.action_size, self.n_actions > 0)

    @functools.cached_property
    def observation_space(self) -> Any:
        """The Gymnasium space of one observation."""
        from gymnasium import spaces

        return spaces.Box(self.obs_low, self.obs_high, dtype=np.float32)

    @functools.cached_property
    def action_space(self) -> Any:
        """The Gymnasium space of one action."""
        from gymnasium import spaces

        if self.n_actions:
            return spaces.Discrete(self.n_actions)
        return spaces.Box(self.action_low, self.action_high, dtype=np.float32)


def _bounds(name: str, values: float | Sequence[float], size: int) -> F32:
    array = np.array(values, np.float32)
    if array.ndim > 1 or (array.ndim == 1 and len(array) != size):
        raise UsageError(f"{name} has shape {array.shape}: give one number or {size} of them")
    array = np.array(np.broadcast_to(array, (size,)))
    array.flags.writeable = False
    return array


def _functions(cls: type) -> Functions:
    found: list[Any] = []
    for name, parameters in _PARAMETERS.items():
        function = vars(cls).get(name)
        if isinstance(function, staticmethod):
            function = function.__func__
        if function is None and name == "observe":
            found.append(None)
            continue
        if not isinstance(function, types.FunctionType) or inspect.isgeneratorfunction(function):
            raise UsageError(f"environment {cls.__name__!r} needs a plain function {name}({', '.join(parameters)})")
        given = tuple(inspect.signature(function).parameters)
        if len(given) != len(parameters):
            raise UsageError(
                f"{name}({', '.join(given)}) of environment {cls.__name__!r} must take ({', '.join(parameters)})"
            )
        found.append(function)
    return found[0], found[1], found[2]


def _version(functions: Functions, sizes: tuple[int, int, int, bool]) -> str:
    from mileage.envs.native.portable import content_key

    keys = [content_key(function) if function else "" for function in functions]
    return hashlib.sha256(repr((keys, sizes)).encode()).hexdigest()[:16]


def env(
    id: str | None = None,  # noqa: A002 (the word every Gymnasium user knows)
    *,
    state_size: int,
    obs_size: int | None = None,
    actions: int = 0,
    action_low: float | Sequence[float] | None = None,
    action_high: float | Sequence[float] | None = None,
    obs_low: float | Sequence[float] | None = None,
    obs_high: float | Sequence[float] = math.inf,
    max_steps: int = 0,
    reward_threshold: float | None = None,
) -> Callable[[type], NativeEnv]:
    """Turn a class of plain functions into a compiled environment and register it.

    The class body holds `reset(state, rng)`, `step(state, action, rng) -> (reward, terminated)` and, unless the
    observation is the state itself, `observe(state, obs)`. They read and write float32 rows in place: `state` is
    (state_size,), `obs` is (obs_size,), `action` is an int if `actions` is given and a float32 row (A,) otherwise;
    `rng` goes to `mileage.envs.native.draw.uniform`, `normal` and `integers`.

    `id` defaults to the name of the class, `obs_size` to `state_size`, `obs_low` to `-obs_high`. The length A of a
    continuous action is the length of `action_low` and `action_high`. `max_steps` of 0 means no time limit.
    """

    def decorate(cls: type) -> NativeEnv:
        from mileage.envs import registry

        functions = _functions(cls)
        name = id or cls.__name__
        for label, value, least in (
            ("state_size", state_size, 1),
            ("actions", actions, 0),
            ("max_steps", max_steps, 0),
        ):
            if value < least:
                raise UsageError(f"{label} is {value} in environment {name!r}: use at least {least}")
        low = np.atleast_1d(np.array(() if action_low is None else action_low, np.float32))
        high = np.atleast_1d(np.array(() if action_high is None else action_high, np.float32))
        if (actions > 0) == (low.size > 0) or low.shape != high.shape or low.ndim != 1:
            raise UsageError(
                f"environment {name!r} needs either actions (how many) or action_low and action_high of one length"
            )
        n_obs = obs_size or state_size
        if functions[2] is None and n_obs != state_size:
            raise UsageError(f"environment {name!r} has obs_size {n_obs} and state_size {state_size}: add observe()")
        top = _bounds("obs_high", obs_high, n_obs)
        bottom = -top if obs_low is None else _bounds("obs_low", obs_low, n_obs)
        sizes = (state_size, n_obs, low.size or 1, actions > 0)
        return registry.register(
            NativeEnv(
                id=name, state_size=state_size, obs_size=n_obs, action_size=low.size or 1, n_actions=actions,
                action_low=low, action_high=high, obs_low=bottom, obs_high=top, max_steps=max_steps,
                reward_threshold=reward_threshold, functions=functions,
                version=_version(functions, sizes),
            )
        )  # fmt: skip

    return decorate
