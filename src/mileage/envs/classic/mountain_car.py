"""MountainCar-v0: a car too weak for the hill must first go the other way (Moore, 1990)."""

from __future__ import annotations

import math
from typing import Any

from mileage.envs.native.functions import uniform
from mileage.envs.native.spec import env

MIN_POSITION = -1.2
MAX_POSITION = 0.6
MAX_SPEED = 0.07
GOAL_POSITION = 0.5
FORCE = 0.001
GRAVITY = 0.0025


@env(
    "MountainCar-v0", state_size=2, actions=3, obs_low=(MIN_POSITION, -MAX_SPEED), obs_high=(MAX_POSITION, MAX_SPEED),
    max_steps=200, reward_threshold=-110.0,
)  # fmt: skip
class MountainCar:
    """State and observation: position and velocity."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        """Start at rest near the bottom of the valley."""
        state[0] = uniform(rng, -0.6, -0.4)
        state[1] = 0.0

    @staticmethod
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        """Accelerate left (0), not at all (1) or right (2); every step costs one."""
        push = -FORCE if action == 0 else (FORCE if action == 2 else 0.0)
        speed = state[1] + (push - GRAVITY * math.cos(3.0 * state[0]))
        speed = min(max(speed, -MAX_SPEED), MAX_SPEED)
        position = min(max(state[0] + speed, MIN_POSITION), MAX_POSITION)
        speed = 0.0 if (position == MIN_POSITION) & (speed < 0.0) else speed
        state[0] = position
        state[1] = speed
        return -1.0, (position >= GOAL_POSITION) & (speed >= 0.0)
