"""Environments that return something else than they should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from mileage._errors import UsageError
from mileage.envs.gymnasium.bridge import BridgedVecEnv, GymnasiumEnv


def broken(step: Callable[[], Any], reset: Callable[[], Any] = lambda: (np.zeros(2, np.float32), {})) -> Any:
    class Broken(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return reset()

        def step(self, action: Any) -> Any:
            return step()

    return Broken


def play(env: BridgedVecEnv) -> None:
    env.reset(seed=0)
    env.step([0, 0])


GOOD = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (broken(lambda: (GOOD, 0.0, False, {})), r"step of environment 'mine' must return .*, not 4 values"),
        (broken(lambda: GOOD), "step of environment 'mine' must return .*, not ndarray"),
        (broken(lambda: (np.zeros(3), 0.0, False, False, {})), r"observation of shape \(2,\), as its .*, not \(3,\)"),
        (broken(lambda: None, lambda: GOOD), "reset of environment 'mine' must return .*, not ndarray"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_form_of_what_is_returned_is_named(make: Any, sentence: str, wrapped: bool) -> None:
    limited = (lambda: gymnasium.wrappers.TimeLimit(make(), 10)) if wrapped else make
    env = BridgedVecEnv(GymnasiumEnv("mine", make=limited), 2)
    with pytest.raises(UsageError, match="environment 'mine' must return" if wrapped else sentence):
        play(env)


def test_an_error_of_the_environment_itself_stays_what_it_is() -> None:
    def fails() -> Any:
        raise KeyError("mine")

    env = BridgedVecEnv(GymnasiumEnv("mine", make=broken(fails)), 1)
    env.reset(seed=0)
    with pytest.raises(KeyError, match="mine"):
        env.step([0])


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^environment 'mine' must be a gymnasium.Env, not object$"):
        GymnasiumEnv("mine", make=object)  # type: ignore[arg-type]
