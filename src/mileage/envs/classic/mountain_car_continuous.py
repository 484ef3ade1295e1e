"""MountainCarContinuous-v0: the mountain car with a throttle, paying for the fuel."""

from __future__ import annotations

import math
from typing import Any

from mileage.envs.native.functions import uniform
from mileage.envs.native.spec import env

MIN_POSITION = -1.2
MAX_POSITION = 0.6
MAX_SPEED = 0.07
GOAL_POSITION = 0.45
POWER = 0.0015
GRAVITY = 0.0025


@env(
    "MountainCarContinuous-v0", state_size=2, action_low=-1.0, action_high=1.0, obs_low=(MIN_POSITION, -MAX_SPEED),
    obs_high=(MAX_POSITION, MAX_SPEED), max_steps=999, reward_threshold=90.0,
)  # fmt: skip
class MountainCarContinuous:
    """State and observation: position and velocity."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        """Start at rest near the bottom of the valley."""
        state[0] = uniform(rng, -0.6, -0.4)
        state[1] = 0.0

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> tuple[float, bool]:
        """Accelerate; reaching the goal earns 100, and the throttle as given (not as clipped) is paid for."""
        force = min(max(action[0], -1.0), 1.0)
        speed = state[1] + (force * POWER - GRAVITY * math.cos(3.0 * state[0]))
        speed = min(max(speed, -MAX_SPEED), MAX_SPEED)
        position = min(max(state[0] + speed, MIN_POSITION), MAX_POSITION)
        speed = 0.0 if (position == MIN_POSITION) & (speed < 0.0) else speed
        state[0] = position
        state[1] = speed
        arrived = (position >= GOAL_POSITION) & (speed >= 0.0)
        return (100.0 if arrived else 0.0) - 0.1 * action[0] * action[0], arrived
