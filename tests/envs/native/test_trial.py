"""The first steps of a user's environment, in plain Python."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import broken_envs
from mileage import errors
from mileage.envs import VecEnv, native, registered
from mileage.envs.native import trial
from mileage.envs.native.rewrite import PlainEnv


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Wide",
            r"step\(\) of 'Wide' reaches beyond a row \(.*broken_envs.py, line \d+\): index 2 .*`state\[2\] = 5.0`",
        ),
        ("WideObserve", r"observe\(\) of 'WideObserve' reaches beyond a row .*`obs\[j\] = state\[0\]`"),
        ("NanObserve", "observation of 'NanObserve' is nan in entry 0 after 6 steps"),
        ("Nothing", "reward of 'Nothing' must be a number, not None"),
        ("Infinite", "reward of 'Infinite' is inf in step 20"),
        ("WideMask", r"mask\(\) of 'WideMask' reaches beyond a row \(.*broken_envs.py, line \d+\): index 5 "),
        (
            "RaisingAtOnce",
            r"step\(\) of 'RaisingAtOnce' raised NotImplementedError: to be written \(.*broken_envs.py, line \d+\) in "
            "environment 0, in step 1 of its episode",
        ),
        (
            "RaisingStart",
            r"reset\(\) of 'RaisingStart' raised ValueError: no level \(.*, line \d+\) in environment 0, at the start",
        ),
    ],
)
def test_what_is_wrong_in_the_first_steps_is_one_sentence_before_anything_is_compiled(name: str, said: str) -> None:
    with pytest.raises(errors.EnvError, match=said) as caught:
        VecEnv(getattr(broken_envs, name), 4)
    assert "\n" not in str(caught.value)


def test_what_step_returns_must_be_two_values() -> None:
    def step(state: Any, action: int, rng: Any) -> float:
        return 1.0

    spec = broken_envs.make("One", step=step)
    with pytest.raises(TypeError, match="must return two values"):
        trial.play(spec, spec.source, 0, 10)
    with pytest.raises(
        errors.EnvCompileError, match=r"step\(\) in .*test_trial.py, line \d+, must return two values: .*, not float32"
    ):
        VecEnv(spec, 1)


def test_a_step_like_gymnasiums_is_told_how_many_values_there_are_to_return() -> None:
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool, bool, dict[str, int]]:
        return 1.0, False, False, {}

    with pytest.raises(errors.EnvCompileError, match=r"must return two values: .*, not 4 values"):
        VecEnv(broken_envs.make("Four", step=step), 1)


def test_what_is_raised_where_python_alone_would_is_left_to_compiled_code() -> None:
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        state[0] += 1.0
        return 1.0 if 4 // (int(state[0]) - 7) > 9 else 0.0, state[0] > 20.0

    vec = VecEnv(broken_envs.make("Dividing", step=step), 1)
    vec.reset()
    for _ in range(10):
        vec.step(np.zeros(1, np.int64))


def test_a_trial_keeps_to_what_the_mask_leaves() -> None:
    spec = broken_envs.Obeying
    assert len(trial.play(spec, spec.source, 0, 200)) == 200
    VecEnv(spec, 1)


def test_random_actions_are_spread_over_what_masks_leave() -> None:
    spec = broken_envs.make("Parts", actions=(3, 2), action_low=[-1.0], action_high=[1.0], mask=broken_envs.odd_mask)
    masks = np.tile(np.array([1, 0, 1, 0, 1], np.uint8), (400, 1))
    rows = trial.random_actions(spec, 400, np.random.default_rng(0), masks)
    counts = np.bincount(rows[:, 0].astype(int), minlength=3)
    assert counts[1] == 0
    assert 150 < counts[0] < 250
    assert (rows[:, 1] == 1.0).all()
    assert -1.0 <= rows[:, 2].min() < -0.5 < 0.5 < rows[:, 2].max() <= 1.0


@pytest.mark.parametrize(("low", "high"), [(100.0, np.inf), (-np.inf, -100.0), (50.0, 60.0), (-np.inf, np.inf)])
def test_random_actions_are_within_bounds_far_from_zero(low: float, high: float) -> None:
    spec = broken_envs.make("Far", actions=0, action_low=[low], action_high=[high])
    rows = trial.random_actions(spec, 100, np.random.default_rng(0))
    assert low <= rows.min() < rows.max() <= high


def test_an_environment_that_does_not_repeat_itself_is_refused() -> None:
    memory = [0.0]

    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        memory[0] += 1.0
        state[0] = memory[0]
        return 1.0, False

    with pytest.raises(errors.EnvError, match="'Forgetful' does not repeat itself"):
        VecEnv(broken_envs.make("Forgetful", step=step), 1)


def test_what_compiled_code_does_at_the_edges_of_functions_plain_python_does_too() -> None:
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        state[0] = max(math.log(0.0 * state[0]), -10.0)
        state[1] = max(1.0 / (0.0 * state[0]), -5.0) + math.floor(1.5)
        return math.exp(-1000.0) + min(math.exp(1000.0), 2.0), False

    spec = broken_envs.make("Edges", step=step)
    plain = PlainEnv(spec.source, 0)
    plain.reset()
    reward, _ = plain.step(0)
    vec = VecEnv(spec, 1)
    vec.reset()
    obs, compiled_reward, *_ = vec.step(np.zeros(1, np.int64))
    np.testing.assert_array_equal(plain.state, [-10.0, -4.0])
    np.testing.assert_array_equal(obs[0], plain.state)
    assert compiled_reward[0] == reward == 2.0


@pytest.mark.parametrize("name", [name for name in registered() if "-v" in name and not name.startswith("Test")])
def test_plain_python_and_compiled_code_go_the_same_way(name: str) -> None:
    spec = native(name)
    plain, vec, rng = PlainEnv(spec.source, 3), VecEnv(spec, 1, seed=3), np.random.default_rng(0)
    vec.reset()
    plain.reset()
    for _ in range(20):
        action = trial.random_actions(spec, 1, rng)[0]
        obs, reward, terminated, truncated, _ = vec.step(np.array([action]))
        gained, ended = plain.step(action)
        plain.observe()
        assert terminated[0] == ended
        np.testing.assert_allclose(reward[0], gained, rtol=1e-4, atol=1e-5)
        if ended or truncated[0]:
            break
        np.testing.assert_allclose(obs[0], plain.obs, rtol=1e-4, atol=1e-5)


def test_python_alone_may_refuse_what_compiled_code_can_do() -> None:
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        return 1.0 / (action - action + 1) + 0.0 * (1 % (action + 1)), False

    VecEnv(broken_envs.make("Whole", step=step), 1).reset()


def test_an_environment_that_is_slow_in_python_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        for _ in range(10_000_000):
            state[0] = 1.0 - state[0]
        return 1.0, False

    monkeypatch.setattr(trial, "SECONDS", 0.05)
    vec = VecEnv(broken_envs.make("Slow", step=step), 1)
    vec.reset()
    vec.step(np.zeros(1, np.int64))
    for _ in range(100):
        time.sleep(0)


def test_what_was_tried_once_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILEAGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(trial, "_tried", set())
    trial.first_steps(broken_envs.Sound, broken_envs.Sound.source)
    monkeypatch.setattr(trial, "_tried", set())
    monkeypatch.setattr(trial, "play", lambda *_, **__: pytest.fail("tried again"))
    trial.first_steps(broken_envs.Sound, broken_envs.Sound.source)
