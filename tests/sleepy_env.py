"""An environment that takes its time."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class Sleepy(gymnasium.Env[Any, Any]):
    """Sleeps a few milliseconds every step; episodes end after three."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.003) -> None:
        self._seconds, self._steps = seconds, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        self._steps += 1
        return np.zeros(2, np.float32), 1.0, self._steps >= 3, False, {}


SLEEPY = "Sleepy-v0"
if SLEEPY not in gymnasium.registry:
    gymnasium.register(SLEEPY, Sleepy, max_episode_steps=10)
