"""Environments in which something can be planted: PLANT names what is slow, and comments mark the line."""

from __future__ import annotations

import os
import time

import gymnasium as gym
import numpy as np

PLANT = os.environ.get("PLANT", "")
EPISODE = 25


class Walk(gym.Env[np.ndarray, np.ndarray]):
    """A point that is pushed about; cheap, and the same from any seed on."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if PLANT == "reset":
            time.sleep(0.06)  # plant: reset
        self.state = self.np_random.normal(0.0, 0.1, 4).astype(np.float32)
        self.steps = 0
        return self.state.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        if PLANT == "step":
            time.sleep(0.003)  # plant: step
        push = 2.0 * float(np.asarray(action).ravel()[0]) - 1.0
        self.state = np.clip(0.9 * self.state + 0.05 * push, -10.0, 10.0).astype(np.float32)
        self.steps += 1
        return self.state.copy(), 1.0 - abs(float(self.state[0])), self.steps >= EPISODE, False, {}


class WalkDiscrete(Walk):
    action_space = gym.spaces.Discrete(2)


class WalkContinuous(Walk):
    action_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)


gym.register("WalkDiscrete-v0", WalkDiscrete)
gym.register("WalkContinuous-v0", WalkContinuous)

if PLANT == "logger":
    from torch.utils.tensorboard import SummaryWriter

    plain = SummaryWriter.add_scalar

    def add_scalar(self: SummaryWriter, *args: object, **kwargs: object) -> None:
        time.sleep(0.02)  # plant: logger
        plain(self, *args, **kwargs)

    SummaryWriter.add_scalar = add_scalar
