"""Environments that return something else than they should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from mileage.envs.gymnasium.bridge import BridgedVecEnv, GymnasiumEnv
from mileage.errors import EnvError, UsageError


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


def run_on(env: BridgedVecEnv) -> None:
    for _ in range(5):
        env.step([0, 0])


GOOD = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (broken(lambda: (GOOD, 0.0, False, {})), r"step of environment 'mine' must return .*, not 4 values"),
        (broken(lambda: GOOD), "step of environment 'mine' must return .*, not ndarray"),
        (broken(lambda: (np.zeros(3), 0.0, False, False, {})), r"observation of shape \(2,\), as its .*, not \(3,\)"),
        (broken(lambda: None, lambda: GOOD), "reset of environment 'mine' must return .*, not ndarray"),
        (broken(lambda: (GOOD, 0.0, False, False, None)), "step of environment 'mine' must return .* a dict, not None"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_form_of_what_is_returned_is_named(make: Any, sentence: str, wrapped: bool) -> None:
    limited = (lambda: gymnasium.wrappers.TimeLimit(make(), 10)) if wrapped else make
    env = BridgedVecEnv(GymnasiumEnv("mine", make=limited), 2)
    with pytest.raises(EnvError, match="environment 'mine' must return" if wrapped else sentence):
        play(env)


@pytest.mark.parametrize("reward", [None, "1", [1.0], np.zeros(1)])
def test_a_reward_that_is_no_number_is_named(reward: Any) -> None:
    env = BridgedVecEnv(GymnasiumEnv("mine", make=broken(lambda: (GOOD, reward, False, False, {}))), 2)
    with pytest.raises(EnvError, match="step of environment 'mine' must return a reward that is a number, not"):
        play(env)


@pytest.mark.parametrize("reward", [1, True, 0.5, np.float32(2.0), np.int64(3), np.array(1.5)])
def test_numbers_of_any_kind_are_rewards(reward: Any) -> None:
    env = BridgedVecEnv(GymnasiumEnv("mine", make=broken(lambda: (GOOD, reward, False, False, {}))), 2)
    play(env)
    assert env.reward[1] == float(reward)


def test_what_an_environment_raises_is_told_with_its_line_number_and_step() -> None:
    def fails() -> Any:
        fails.calls += 1  # type: ignore[attr-defined]
        if fails.calls < 5:  # type: ignore[attr-defined]
            return GOOD, 0.0, False, False, {}
        raise KeyError("mine")

    fails.calls = 0  # type: ignore[attr-defined]
    env = BridgedVecEnv(GymnasiumEnv("mine", make=broken(fails)), 2)
    env.reset(seed=0)
    with pytest.raises(
        EnvError,
        match=r"step of environment 'mine' raised KeyError: mine \(.*formed.py, line \d+\) in environment 0, in step 3",
    ) as caught:
        run_on(env)
    assert isinstance(caught.value.__cause__, KeyError)


def test_what_reset_and_the_constructor_raise_is_told() -> None:
    def fails() -> Any:
        raise ValueError("no level")

    env = BridgedVecEnv(GymnasiumEnv("mine", make=broken(lambda: None, fails)), 2)
    with pytest.raises(EnvError, match=r"^reset of environment 'mine' raised ValueError: no level .* at the start of"):
        env.reset(seed=0)
    with pytest.raises(EnvError, match=r"^environment 'mine' cannot be made: ValueError: no level \(.*, line \d+\)$"):
        GymnasiumEnv("mine", make=fails)


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (lambda: np.zeros(2), "has a mask that does not do: .* at least one choice"),
        (lambda: np.ones(3), r"has a mask that does not do: .* of shape \(2,\)"),
        (lambda: [][0], r"^action_masks of environment 'mine' raised IndexError: .*line \d+\)$"),
    ],
)
def test_masks_that_do_not_do_are_told(mask: Any, sentence: str) -> None:
    made = broken(lambda: (GOOD, 0.0, False, False, {}))
    made.action_masks = lambda _: mask()
    env = BridgedVecEnv(GymnasiumEnv("mine", make=made), 2)
    with pytest.raises(EnvError, match=sentence):
        env.reset(seed=0)


@pytest.mark.parametrize("shown", [7, -1, 2.5, None, "a"])
def test_an_observation_of_another_space_is_told(shown: Any) -> None:
    made = broken(lambda: (shown, 0.0, False, False, {}), lambda: (0, {}))
    made.observation_space = gymnasium.spaces.Discrete(5)
    env = BridgedVecEnv(GymnasiumEnv("mine", make=made), 2)
    with pytest.raises(EnvError, match="'mine' must return observations of its observation_space, not"):
        play(env)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^environment 'mine' must be a gymnasium.Env, not object$"):
        GymnasiumEnv("mine", make=object)  # type: ignore[arg-type]
