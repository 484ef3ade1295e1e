"""VecEnv beyond the common contract: its arrays, partial resets, threads, refusals, Gymnasium's wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from mileage.envs import NativeVectorEnv, VecEnv
from mileage.envs.native import vector
from mileage.errors import UnknownNameError, UsageError
from mileage.kernels.random import streams


def rollout(vec: VecEnv, steps: int) -> Any:
    rng = np.random.default_rng(0)
    vec.reset()
    actions = rng.integers(0, vec.spec.n_actions, (steps, vec.num_envs))
    return np.stack([np.column_stack([a.copy() for a in vec.step(row)[:4]]) for row in actions])


def test_results_are_views_of_arrays_that_stay() -> None:
    vec = VecEnv("CartPole-v1", 4)
    assert vec.reset()[0] is vec.obs
    for _ in range(3):
        obs, reward, terminated, truncated, _ = vec.step(np.ones(4, np.int64))
        assert obs is vec.obs
        assert reward is vec.reward
        assert terminated is vec.terminated
        assert truncated is vec.truncated


def test_streams_are_those_of_the_seed() -> None:
    np.testing.assert_array_equal(VecEnv("CartPole-v1", 5, seed=17).rng, streams(17, 5, "env"))
    vec = VecEnv("CartPole-v1", 2)
    vec.reset(seed=[2**31 + 5, 3])
    # Four draws of the reset have advanced each counter.
    np.testing.assert_array_equal(vec.rng[:, 0], [streams(2**31 + 5, 1, "env")[0, 0], streams(3, 1, "env")[0, 0]])
    np.testing.assert_array_equal(vec.rng[:, 1], [4, 4])


def test_masked_reset_touches_only_the_marked() -> None:
    vec = VecEnv("CartPole-v1", 4)
    vec.reset()
    for _ in range(5):
        vec.step(np.array([0, 1, 0, 1]))
    state, elapsed, rng = vec.state.copy(), vec.elapsed.copy(), vec.rng.copy()
    mask = np.array([False, True, False, True])
    obs, _ = vec.reset(seed=9, options={"reset_mask": mask})
    np.testing.assert_array_equal(vec.elapsed, np.where(mask, 0, elapsed))
    np.testing.assert_array_equal(vec.state[~mask], state[~mask])
    np.testing.assert_array_equal(vec.rng[~mask], rng[~mask])
    np.testing.assert_array_equal(obs[mask], VecEnv("CartPole-v1", 4, seed=9).reset()[0][mask])


def test_final_rows_of_running_episodes_are_left_alone() -> None:
    vec = VecEnv("CartPole-v1", 3)
    vec.reset()
    vec.final_obs[:] = 7.0
    vec.state[1, 0] = 2.5  # beyond the track
    _, _, terminated, _, infos = vec.step(np.ones(3, np.int64))
    np.testing.assert_array_equal(terminated, [False, True, False])
    np.testing.assert_array_equal(infos["_final_obs"], terminated)
    assert (vec.final_obs[[0, 2]] == 7.0).all()
    assert vec.final_obs[1, 0] == pytest.approx(2.5, abs=0.01)
    np.testing.assert_array_equal(vec.elapsed, [1, 0, 1])
    np.testing.assert_array_equal(vec.obs[1], vec.state[1])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    single = rollout(VecEnv("CartPole-v1", 37, seed=3, threads=1), 60)
    monkeypatch.setattr(vector, "_ENVS_PER_THREAD", 1)
    vec = VecEnv("CartPole-v1", 37, seed=3, threads=threads)
    assert len(vec._shards) == threads
    np.testing.assert_array_equal(rollout(vec, 60), single)
    with pytest.raises(UsageError, match="from 0 to 1"):
        vec.step(np.array([0] * 36 + [-1]))
    vec.close()


def test_every_remainder_of_the_vector_width_gives_the_same() -> None:
    """Loops run in vectors with a scalar rest: both must compute the same bits."""
    widest = rollout(VecEnv("Acrobot-v1", 40, seed=1), 30)
    for n in (1, 3, 8, 13, 31):
        vec = VecEnv("Acrobot-v1", n, seed=1)
        vec.reset()
        actions = np.random.default_rng(0).integers(0, 3, (30, 40))
        steps = [np.column_stack([a.copy() for a in vec.step(row[:n].copy())[:4]]) for row in actions]
        np.testing.assert_array_equal(np.stack(steps), widest[:, :n])


def test_integers_of_any_width_are_taken() -> None:
    one, other = VecEnv("CartPole-v1", 3), VecEnv("CartPole-v1", 3)
    one.reset()
    other.reset()
    np.testing.assert_array_equal(one.step([0, 1, 1])[0], other.step(np.array([0, 1, 1], np.uint8))[0])
    strided = np.array([0, 9, 1, 9, 1, 9])[::2]
    np.testing.assert_array_equal(one.step(strided)[0], other.step(np.array([0, 1, 1]))[0])


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        (np.array([0, 2, 1]), "from 0 to 1"),
        (np.array([0, -1, 1]), "from 0 to 1"),
        (np.array([0.0, 1.0, 1.0]), "must be integers of shape"),
        (np.array([[0], [1], [1]]), "must be integers of shape"),
    ],
)
def test_wrong_actions_are_refused_before_anything_moves(actions: Any, text: str) -> None:
    vec = VecEnv("CartPole-v1", 3)
    vec.reset()
    before = vec.state.copy()
    with pytest.raises(UsageError, match=text):
        vec.step(actions)
    np.testing.assert_array_equal(vec.state, before)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="n_envs must be at least 1, not 0"):
        VecEnv("CartPole-v1", 0)
    with pytest.raises(UsageError, match="threads must be at least 1, not 0"):
        VecEnv("CartPole-v1", 1, threads=0)
    with pytest.raises(UnknownNameError, match="did you mean 'CartPole-v1'"):
        VecEnv("CartPole-v7", 1)
    vec = VecEnv("CartPole-v1", 2)
    with pytest.raises(UsageError, match="seed must be one int or one for each of 2 environments, not 3"):
        vec.reset(seed=[1, 2, 3])
    with pytest.raises(UsageError, match="seed must be 0 or more, not -1"):
        vec.reset(seed=-1)
    with pytest.raises(UsageError, match="reset_mask"):
        vec.reset(options={"reset_mask": [True, False]})


def test_gymnasiums_vector_wrappers_accept_the_subclass() -> None:
    vec = gymnasium.wrappers.vector.RecordEpisodeStatistics(NativeVectorEnv("CartPole-v1", 2, max_steps=5))
    assert isinstance(vec.unwrapped, gymnasium.vector.VectorEnv)
    vec.reset(seed=0)
    for _ in range(5):
        infos = vec.step(np.array([0, 1]))[-1]
    np.testing.assert_array_equal(infos["episode"]["l"], [5, 5])
    np.testing.assert_array_equal(infos["episode"]["r"], [5.0, 5.0])
    vec.close()
