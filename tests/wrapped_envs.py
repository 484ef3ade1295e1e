"""Environments in the wrappers that scripts of others put around them, and a policy that depends on these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np


class Gain:
    """A policy that is only any good if it is shown what it was trained on, and acts as it did there."""

    def __call__(self, shown: Any) -> Any:
        rows = np.asarray(shown, np.float64)
        return np.tanh(rows @ np.array([[0.3], [-1.4], [-0.9]]))


def bare() -> Any:
    """The environment of the exam, whose episodes are Gymnasium's to the bit."""
    return gymnasium.make("Pendulum-v1")


def wrapped() -> Any:
    """As scripts of CleanRL make it."""
    env: Any = gymnasium.wrappers.RecordEpisodeStatistics(bare())
    env = gymnasium.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    env = gymnasium.wrappers.ClipAction(env)
    env = gymnasium.wrappers.NormalizeObservation(env)
    env = gymnasium.wrappers.TransformObservation(env, lambda obs: np.clip(obs, -1.2, 1.2), env.observation_space)
    return gymnasium.wrappers.NormalizeReward(env)


def rescaled() -> Any:
    """As Stable-Baselines3 takes them: bounds of actions must be finite."""
    env: Any = gymnasium.wrappers.RecordEpisodeStatistics(bare())
    env = gymnasium.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    return gymnasium.wrappers.NormalizeReward(gymnasium.wrappers.NormalizeObservation(env))


def trained(make: Callable[[], Any] = wrapped, n: int = 1) -> Any:
    envs = gymnasium.vector.SyncVectorEnv([make] * n)
    envs.reset(seed=3)
    envs.action_space.seed(3)
    for _ in range(300):
        envs.step(envs.action_space.sample())
    return envs


class Odd(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return (obs * 2, *rest)
