"""What a Gymnasium environment returns, held against what Gymnasium's interface and its own spaces promise."""

from __future__ import annotations

import traceback
from time import perf_counter
from typing import Any, NoReturn, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from mileage._errors import UsageError
from mileage._types import Array

_STEP = "(observation, reward, terminated, truncated, info)"
_RESET = "(observation, info)"

Info = dict[str, Any]


class Tally:
    """How often environments were reset, and the seconds that took."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0


class Formed(gymnasium.Wrapper[Array, Array | int, Array, Array | int]):
    """An environment that says in a sentence what is wrong with the form of what it returns."""

    def __init__(self, env: gymnasium.Env[Array, Array | int], name: str, tally: Tally | None = None) -> None:
        """`name` is what messages call it; `tally` is told of every reset."""
        if not isinstance(env, gymnasium.Env):
            raise UsageError(f"environment {name!r} must be a gymnasium.Env, not {type(env).__name__}")
        super().__init__(env)
        self._name = name
        self._tally = tally or Tally()
        space = env.observation_space
        self._shape = space.shape if isinstance(space, spaces.Box) else None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode."""
        began = perf_counter()
        try:
            result = self.env.reset(seed=seed, options=options)
        except Exception as error:
            self._explain(error, "reset", _RESET)
        self._tally.count += 1
        self._tally.seconds += perf_counter() - began
        self._check("reset", result, 2, _RESET)
        return result

    def step(self, action: Array | int) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Go on."""
        try:
            result = self.env.step(action)
        except Exception as error:
            self._explain(error, "step", _STEP)
        self._check("step", result, 5, _STEP)
        return result

    def _check(self, verb: str, result: object, size: int, form: str) -> None:
        if not isinstance(result, tuple) or len(result) != size:
            found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise UsageError(f"{verb} of environment {self._name!r} must return {form}, not {found}")
        if self._shape is not None and np.shape(result[0]) != self._shape:
            raise UsageError(
                f"{verb} of environment {self._name!r} must return an observation of shape {self._shape}, as its "
                f"observation_space says, not {np.shape(result[0])}"
            )

    def _explain(self, error: Exception, verb: str, form: str) -> NoReturn:
        """Raise `error`, or a sentence if Gymnasium's wrappers stumbled over what the environment returned."""
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        if isinstance(error, UsageError) or str(last.f_globals.get("__name__")).split(".")[0] != "gymnasium":
            raise error
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{verb} of environment {self._name!r} must return {form}: {said}") from error
