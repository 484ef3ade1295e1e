"""`@env`: from a class of three plain functions to a native environment, known by its id."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Sequence

import numpy as np

from mileage.envs import known
from mileage.envs.native.functions import Functions, Sizes, version
from mileage.envs.native.vector import NativeEnv
from mileage.errors import UsageError, require
from mileage.types import F32

__all__ = ["NativeEnv", "env"]

# Names are the user's choice; their number is not.
_PARAMETERS = {"reset": ("state", "rng"), "step": ("state", "action", "rng"), "observe": ("state", "obs")}


def _bounds(name: str, values: float | Sequence[float], size: int) -> F32:
    array = np.array(values, np.float32)
    if array.ndim > 1 or (array.ndim == 1 and len(array) != size):
        raise UsageError(f"{name} must be one number or {size} of them, not an array of shape {array.shape}")
    array = np.array(np.broadcast_to(array, (size,)))
    array.flags.writeable = False
    return array


def _function(cls: type, name: str, parameters: tuple[str, ...]) -> types.FunctionType:
    """The plain function of this name in the body of a class."""
    function = vars(cls).get(name)
    if isinstance(function, staticmethod):
        function = function.__func__
    if not isinstance(function, types.FunctionType) or inspect.isgeneratorfunction(function):
        raise UsageError(f"environment {cls.__name__!r} needs a plain function {name}({', '.join(parameters)})")
    given = tuple(inspect.signature(function).parameters)
    if len(given) != len(parameters):
        raise UsageError(
            f"{name}({', '.join(given)}) of environment {cls.__name__!r} must take ({', '.join(parameters)})"
        )
    return function


def _functions(cls: type) -> Functions:
    found: list[types.FunctionType | None] = []
    for name, parameters in _PARAMETERS.items():
        absent = name == "observe" and name not in vars(cls)
        found.append(None if absent else _function(cls, name, parameters))
    reset, step, observe = found
    assert reset is not None
    assert step is not None
    return reset, step, observe


def _mask(cls: type) -> types.FunctionType | None:
    """The function that says what is possible, if there is one."""
    return _function(cls, "mask", ("state", "out")) if "mask" in vars(cls) else None


def env(
    id: str | None = None,  # noqa: A002 (the word every Gymnasium user knows)
    *,
    state_size: int,
    obs_size: int | None = None,
    actions: int | Sequence[int] = 0,
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
    `rng` goes to `mileage.envs.native.functions.uniform`, `normal` and `integers`.

    `id` defaults to the name of the class, `obs_size` to `state_size`, `obs_low` to `-obs_high`. The length A of a
    continuous action is the length of `action_low` and `action_high`. `max_steps` of 0 means no time limit.

    An action may have several parts: with `actions=(3, 2)` it is a row whose first two entries are indices below 3 and
    2, followed by the numbers of `action_low` and `action_high`, if any. With `mask(state, out)` an environment says
    what is possible: `out` has an entry for every way to choose, all 1; write 0 for those that are not.
    """

    def decorate(cls: type) -> NativeEnv:
        functions, mask = _functions(cls), _mask(cls)
        name = id or cls.__name__
        branches = () if isinstance(actions, int) else tuple(actions)
        n_actions = actions if isinstance(actions, int) else 0
        for label, value, least in (
            ("state_size", state_size, 1),
            ("actions", min(branches, default=n_actions), 1 if branches else 0),
            ("max_steps", max_steps, 0),
        ):
            require(value >= least, f"{label} of environment {name!r}", value, f"at least {least}")
        low = np.atleast_1d(np.array(() if action_low is None else action_low, np.float32))
        high = np.atleast_1d(np.array(() if action_high is None else action_high, np.float32))
        one_kind = (n_actions > 0) != (low.size > 0) or (branches and not n_actions)
        if not one_kind or low.shape != high.shape or low.ndim != 1:
            raise UsageError(
                f"environment {name!r} needs either actions (how many) or action_low and action_high of one length"
            )
        if mask is not None and not (branches or n_actions):
            raise UsageError(f"mask() of environment {name!r} is for discrete actions: give actions")
        unbounded = np.full(len(branches), np.inf, np.float32)
        low, high = np.concatenate([-unbounded, low]), np.concatenate([unbounded, high])
        n_obs = obs_size or state_size
        if functions[2] is None and n_obs != state_size:
            raise UsageError(f"environment {name!r} has obs_size {n_obs} and state_size {state_size}: add observe()")
        top = _bounds("obs_high", obs_high, n_obs)
        bottom = -top if obs_low is None else _bounds("obs_low", obs_low, n_obs)
        sizes = Sizes(state_size, n_obs, low.size or 1, n_actions > 0)
        spec = NativeEnv(
            id=name, state_size=state_size, obs_size=n_obs, action_size=sizes.action, n_actions=n_actions,
            action_low=low, action_high=high, obs_low=bottom, obs_high=top, max_steps=max_steps,
            reward_threshold=reward_threshold, functions=functions, branches=branches, mask_function=mask,
            version=version(functions, sizes, mask, branches),
        )  # fmt: skip
        known.register(spec, functions[1].__module__)
        return spec

    return decorate
