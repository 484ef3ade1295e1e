"""The native classic-control environments against Gymnasium's, transition by transition."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from mileage.envs import VecEnv, native

BUILT_IN = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
# Bounds of random states that reach walls, goals, velocity limits and terminal angles.
STATE_HIGH = {
    "Acrobot-v1": (np.pi, np.pi, 4 * np.pi, 9 * np.pi),
    "CartPole-v1": (2.5, 3.0, 0.25, 3.0),
    "MountainCar-v0": (0.6, 0.07),
    "MountainCarContinuous-v0": (0.6, 0.07),
    "Pendulum-v1": (20.0, 8.0),
}
STATE_LOW = {"MountainCar-v0": (-1.2, -0.07), "MountainCarContinuous-v0": (-1.2, -0.07)}
EPSILON = float(np.finfo(np.float32).eps)
# A step is a few dozen float32 operations on numbers of about the size of the result.
ROUNDING = 32 * EPSILON


def gymnasium_step(env: Any, state: Any, action: Any) -> tuple[Any, float, bool]:
    """One step of Gymnasium's environment from our state."""
    env.state = state.astype(np.float64)
    env.steps_beyond_terminated = None
    obs, reward, terminated, _, _ = env.step(action)
    return obs, float(reward), bool(terminated)


def random_actions(name: str, n: int, rng: np.random.Generator) -> Any:
    spec = native(name)
    if spec.n_actions:
        return rng.integers(0, spec.n_actions, n)
    # A little beyond the bounds, where the environments clip.
    return rng.uniform(1.2 * spec.action_low, 1.2 * spec.action_high, (n, spec.action_size)).astype(np.float32)


def reference_steps(env: Any, states: Any, actions: Any) -> tuple[Any, Any, Any]:
    """Gymnasium's observations, rewards and terminations, one row per state."""
    results = [gymnasium_step(env, state, action) for state, action in zip(states, actions, strict=True)]
    return tuple(np.array(column) for column in zip(*results, strict=True))


def conditioning(env: Any, states: Any, actions: Any, expected: Any) -> Any:
    """How far Gymnasium's own next observation moves when one number of the state is rounded to float32."""
    moved = np.zeros_like(expected)
    for j in range(states.shape[1]):
        nudged = states.astype(np.float64)
        nudged[:, j] += EPSILON * np.maximum(1.0, np.abs(nudged[:, j]))
        moved += np.abs(reference_steps(env, nudged, actions)[0] - expected)
    return moved


def our_step(ours: VecEnv, actions: Any) -> tuple[Any, Any, Any]:
    """Last observations of this step (not those of a next episode), rewards and terminations."""
    obs, rewards, terminated, _, _ = ours.step(actions)
    return np.where(terminated[:, None], ours.final_obs, obs), rewards, terminated


@pytest.mark.parametrize("name", BUILT_IN)
def test_random_rollouts_follow_gymnasium(name: str) -> None:
    n, steps = 50, 200
    rng = np.random.default_rng(1)
    reference = gymnasium.make(name).unwrapped
    reference.reset(seed=0)
    ours = VecEnv(name, n, seed=1, max_steps=0)
    ours.reset()
    for _ in range(steps):
        states, actions = ours.state.copy(), random_actions(name, n, rng)
        expected = reference_steps(reference, states, actions)
        obs, rewards, terminated = our_step(ours, actions)
        assert (np.abs(obs - expected[0]) <= ROUNDING * np.maximum(1.0, np.abs(expected[0]))).all()
        assert (np.abs(rewards - expected[1]) <= ROUNDING * np.maximum(1.0, np.abs(expected[1]))).all()
        np.testing.assert_array_equal(terminated, expected[2])


@pytest.mark.parametrize("name", BUILT_IN)
def test_steps_from_all_over_the_state_space_follow_gymnasium(name: str) -> None:
    n = 2_000
    rng = np.random.default_rng(2)
    reference = gymnasium.make(name).unwrapped
    reference.reset(seed=0)
    ours = VecEnv(name, n, seed=2, max_steps=0)
    ours.reset()
    high = np.array(STATE_HIGH[name])
    low = np.array(STATE_LOW.get(name, -high))
    ours.state[:] = rng.uniform(low, high, ours.state.shape)
    states, actions = ours.state.copy(), random_actions(name, n, rng)
    expected = reference_steps(reference, states, actions)
    # Acrobot's integrator at full speed multiplies a rounding error by thousands, in double precision too.
    tolerance = 8 * conditioning(reference, states, actions, expected[0])
    obs, rewards, terminated = our_step(ours, actions)
    assert (np.abs(obs - expected[0]) <= tolerance + ROUNDING * np.maximum(1.0, np.abs(expected[0]))).all()
    assert (np.abs(rewards - expected[1]) <= ROUNDING * np.maximum(1.0, np.abs(expected[1]))).all()
    np.testing.assert_array_equal(terminated, expected[2])
    assert (terminated.sum() > 20) == (name != "Pendulum-v1")


@pytest.mark.parametrize("name", BUILT_IN)
def test_description_is_gymnasiums(name: str) -> None:
    reference = gymnasium.make(name)
    ours = native(name)
    assert ours.max_steps == reference.spec.max_episode_steps
    assert ours.reward_threshold == reference.spec.reward_threshold
    assert ours.observation_space == reference.observation_space
    assert ours.action_space == reference.action_space


@pytest.mark.parametrize("name", BUILT_IN)
def test_first_states_are_distributed_as_gymnasiums(name: str) -> None:
    n = 4_000
    reference = gymnasium.make(name).unwrapped
    theirs = np.array([(reference.reset(seed=i), np.array(reference.state))[1] for i in range(n)])
    ours = VecEnv(name, n, seed=5)
    ours.reset()
    # Uniform on the same interval: bounds, mean and spread within five standard errors of 4,000 draws.
    width = np.ptp(theirs, axis=0)
    assert (ours.state.min(axis=0) >= theirs.min(axis=0) - 0.01 * width).all()
    assert (ours.state.max(axis=0) <= theirs.max(axis=0) + 0.01 * width).all()
    error = 5 * width / np.sqrt(12 * n)
    assert (np.abs(ours.state.mean(axis=0) - theirs.mean(axis=0)) <= 2 * error).all()
    assert (np.abs(ours.state.std(axis=0) - theirs.std(axis=0)) <= error).all()
