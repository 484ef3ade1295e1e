"""Gymnasium's environments behind the interface of VecEnv."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from mileage.envs import BridgedVecEnv, GymnasiumEnv, VecEnv, make_vec
from mileage.errors import UnknownNameError, UsageError


class Recorder(gymnasium.Env[Any, Any]):
    """Records what reaches it: spaces are given, observations are samples, the reward is the action's sum."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), float(np.sum(action)), False, False, {}


def recorder(observation_space: Any, action_space: Any) -> GymnasiumEnv:
    return GymnasiumEnv(
        "Recorder", {"observation_space": observation_space, "action_space": action_space}, make=Recorder
    )


BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def test_images_are_flattened_to_float32() -> None:
    spec = recorder(spaces.Box(0, 255, (2, 3), np.uint8), spaces.Discrete(2))
    assert spec.obs_size == 6
    vec = BridgedVecEnv(spec, 2, seed=1)
    obs, _ = vec.reset()
    assert obs.dtype == np.float32
    expected = spaces.Box(0, 255, (2, 3), np.uint8)
    expected.seed(int(np.random.SeedSequence([1, *b"env"]).generate_state(2)[1]))
    np.testing.assert_array_equal(obs[1], expected.sample().reshape(-1))


def test_discrete_observations_become_one_hot() -> None:
    vec = BridgedVecEnv(recorder(spaces.Discrete(5), spaces.Discrete(2)), 3)
    obs, _ = vec.reset()
    np.testing.assert_array_equal(obs.sum(axis=1), [1.0, 1.0, 1.0])
    assert set(np.unique(obs)) == {0.0, 1.0}


def test_discrete_actions_start_at_zero_outside_and_where_they_do_inside() -> None:
    vec = BridgedVecEnv(recorder(BOX, spaces.Discrete(3, start=5)), 2)
    vec.reset()
    np.testing.assert_array_equal(vec.step(np.array([0, 2]))[1], [5.0, 7.0])
    with pytest.raises(UsageError, match="from 0 to 2"):
        vec.step(np.array([0, 5]))


def test_box_actions_get_their_shape_back() -> None:
    spec = recorder(BOX, spaces.Box(-1.0, 2.0, (2, 2), np.float64))
    assert (spec.action_size, spec.n_actions) == (4, 0)
    np.testing.assert_array_equal(spec.action_high, np.full(4, 2.0, np.float32))
    vec = BridgedVecEnv(spec, 2)
    vec.reset()
    actions = np.array([[0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 0.0, 0.25]], np.float32)
    np.testing.assert_array_equal(vec.step(actions)[1], [3.0, 0.25])


def test_spaces_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"has actions Text.*wrap it"):
        recorder(BOX, spaces.Text(3))
    with pytest.raises(UsageError, match=r"has observations Sequence.*wrap it"):
        recorder(spaces.Sequence(BOX), spaces.Discrete(2))


def test_unknown_ids_and_options_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'MountainCar-v0'"):
        GymnasiumEnv("MountainCart-v0")
    with pytest.raises(UsageError, match="does not take these options"):
        GymnasiumEnv("CartPole-v1", {"colour": "red"})


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_and_one_process_give_the_same() -> None:
    results = []
    for processes in (False, True):
        vec = BridgedVecEnv("CartPole-v1", 2, seed=3, processes=processes)
        vec.reset()
        rows = []
        for t in range(40):
            obs, reward, terminated, truncated, _ = vec.step(np.array([t % 2, 1]))
            rows.append(np.column_stack([obs, reward, terminated, truncated, vec.final_obs]))
        vec.close()
        results.append(np.stack(rows))
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0][..., 5].any()


def test_truncated_gives_way_to_terminated() -> None:
    spec = GymnasiumEnv("CartPole-v1", {"max_episode_steps": 9})
    vec = BridgedVecEnv(spec, 1)
    vec.reset(seed=[3])
    for _ in range(8):
        assert not vec.step(np.array([1]))[2].any()
    vec._envs.envs[0].unwrapped.state[2] = 0.3  # falls in the step that is also the last one
    _, _, terminated, truncated, _ = vec.step(np.array([1]))
    assert terminated.all()
    assert not truncated.any()


def test_make_vec_takes_the_native_one_unless_options_ask_for_gymnasiums() -> None:
    assert isinstance(make_vec("CartPole-v1", 2), VecEnv)
    bridged = make_vec("CartPole-v1", 2, sutton_barto_reward=True)
    assert isinstance(bridged, BridgedVecEnv)
    bridged.reset(seed=0)
    np.testing.assert_array_equal(bridged.step(np.array([0, 1]))[1], [0.0, 0.0])
    assert isinstance(make_vec("FrozenLake-v1", 1), BridgedVecEnv)
