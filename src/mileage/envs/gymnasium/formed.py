"""What a Gymnasium environment does, held against what Gymnasium's interface and its own spaces promise."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from time import perf_counter
from typing import Any, NoReturn, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from mileage._errors import EnvError, MileageError, UsageError
from mileage._types import Array
from mileage.envs.native.failures import in_words, place

_STEP = "(observation, reward, terminated, truncated, info)"
_RESET = "(observation, info)"
_NUMBERS = (int, float, np.number, np.bool_)

Info = dict[str, Any]


class Tally:
    """How often environments were reset, and the seconds that took."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0


class Formed(gymnasium.Wrapper[Array, Array | int, Array, Array | int]):
    """An environment that says in a sentence what it raised, or what is wrong with the form of what it returns."""

    def __init__(
        self, env: gymnasium.Env[Array, Array | int], name: str, index: int = 0, tally: Tally | None = None
    ) -> None:
        """`name` is what messages call it, `index` its number among several; `tally` is told of every reset."""
        if not isinstance(env, gymnasium.Env):
            raise UsageError(f"environment {name!r} must be a gymnasium.Env, not {type(env).__name__}")
        super().__init__(env)
        self._name, self._index, self._elapsed = name, index, 0
        self._tally = tally or Tally()
        space = env.observation_space
        self._shape = space.shape if isinstance(space, spaces.Box) else None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode."""
        self._elapsed = 0
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
        self._elapsed += 1
        try:
            result = self.env.step(action)
        except Exception as error:
            self._explain(error, "step", _STEP)
        self._check("step", result, 5, _STEP)
        if not isinstance(result[1], _NUMBERS) and not _is_number(result[1]):
            raise EnvError(f"{self._whose('step')} must return a reward that is a number, not {result[1]!r}")
        return result

    def _whose(self, verb: str) -> str:
        return f"{verb} of environment {self._name!r}"

    def _check(self, verb: str, result: object, size: int, form: str) -> None:
        if not isinstance(result, tuple) or len(result) != size:
            found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise EnvError(f"{self._whose(verb)} must return {form}, not {found}")
        if self._shape is not None and np.shape(result[0]) != self._shape:
            raise EnvError(
                f"{self._whose(verb)} must return an observation of shape {self._shape}, as its "
                f"observation_space says, not {np.shape(result[0])}"
            )
        if not isinstance(result[-1], Mapping):
            raise EnvError(f"{self._whose(verb)} must return {form}, whose last is a dict, not {result[-1]!r}")

    def _explain(self, error: Exception, verb: str, form: str) -> NoReturn:
        """What the environment raised, or what Gymnasium's wrappers stumbled over, in a sentence."""
        if isinstance(error, MileageError):
            raise error
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        home = str(last.f_globals.get("__name__"))
        if home.split(".")[0] == "gymnasium" and not home.startswith("gymnasium.envs."):
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise EnvError(f"{self._whose(verb)} must return {form}: {said}") from error
        when = f"in step {self._elapsed} of its episode" if self._elapsed else "at the start of an episode"
        raise EnvError(
            f"{self._whose(verb)} raised {in_words(error)}{place(error)} in environment {self._index}, {when}"
        ) from error


def _is_number(value: object) -> bool:
    """Whether something else than Python's and NumPy's numbers is one, such as a tensor of one entry."""
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return np.ndim(value) == 0 and not isinstance(value, str | bytes)  # type: ignore[arg-type]
