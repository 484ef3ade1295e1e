"""Pendulum-v1: swing a pendulum up with a torque too weak to lift it, and hold it there."""

from __future__ import annotations

import math
from typing import Any

from mileage.envs.classic.acrobot import wrap_angle
from mileage.envs.native.functions import uniform
from mileage.envs.native.spec import env

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
SECONDS_PER_STEP = 0.05
GRAVITY = 10.0
MASS = 1.0
LENGTH = 1.0


@env(
    "Pendulum-v1", state_size=2, obs_size=3, action_low=-MAX_TORQUE, action_high=MAX_TORQUE,
    obs_high=(1.0, 1.0, MAX_SPEED), max_steps=200,
)  # fmt: skip
class Pendulum:
    """State: angle from upright and angular velocity. Observation: cosine and sine of the angle, angular velocity."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        """Start anywhere, turning slowly."""
        state[0] = uniform(rng, -math.pi, math.pi)
        state[1] = uniform(rng, -1.0, 1.0)

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> tuple[float, bool]:
        """Apply a torque; the cost grows with the squares of angle, velocity and torque."""
        theta, speed = state[0], state[1]
        torque = min(max(action[0], -MAX_TORQUE), MAX_TORQUE)
        angle = wrap_angle(theta)
        cost = angle * angle + 0.1 * speed * speed + 0.001 * torque * torque
        gravity = 3.0 * GRAVITY / (2.0 * LENGTH) * math.sin(theta)
        speed = speed + (gravity + 3.0 / (MASS * LENGTH * LENGTH) * torque) * SECONDS_PER_STEP
        speed = min(max(speed, -MAX_SPEED), MAX_SPEED)
        state[0] = theta + speed * SECONDS_PER_STEP
        state[1] = speed
        return -cost, False

    @staticmethod
    def observe(state: Any, obs: Any) -> None:
        """Show the angle as a point on the unit circle."""
        obs[0] = math.cos(state[0])
        obs[1] = math.sin(state[0])
        obs[2] = state[1]
