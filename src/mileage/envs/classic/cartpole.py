"""CartPole-v1: keep a pole upright on a cart by pushing the cart left or right (Barto, Sutton and Anderson, 1983)."""

from __future__ import annotations

import math
from typing import Any

from mileage.envs.native.functions import uniform
from mileage.envs.native.spec import env

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.1
HALF_LENGTH = 0.5
FORCE = 10.0
SECONDS_PER_STEP = 0.02
X_LIMIT = 2.4
ANGLE_LIMIT = 12.0 * math.pi / 180.0


@env(
    "CartPole-v1", state_size=4, actions=2, obs_high=(2.0 * X_LIMIT, math.inf, 2.0 * ANGLE_LIMIT, math.inf),
    max_steps=500, reward_threshold=475.0,
)  # fmt: skip
class CartPole:
    """State and observation: cart position and velocity, pole angle and angular velocity."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        """Start near upright and at rest."""
        for j in range(4):
            state[j] = uniform(rng, -0.05, 0.05)

    @staticmethod
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        """Push left (0) or right (1) and integrate by Euler's method."""
        x, x_dot, theta, theta_dot = state[0], state[1], state[2], state[3]
        force = FORCE if action == 1 else -FORCE
        sine, cosine = math.sin(theta), math.cos(theta)
        push = (force + POLE_MASS * HALF_LENGTH * theta_dot * theta_dot * sine) / TOTAL_MASS
        theta_acc = (GRAVITY * sine - cosine * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine * cosine / TOTAL_MASS)
        )
        x_acc = push - POLE_MASS * HALF_LENGTH * theta_acc * cosine / TOTAL_MASS
        x = x + SECONDS_PER_STEP * x_dot
        theta = theta + SECONDS_PER_STEP * theta_dot
        state[0] = x
        state[1] = x_dot + SECONDS_PER_STEP * x_acc
        state[2] = theta
        state[3] = theta_dot + SECONDS_PER_STEP * theta_acc
        return 1.0, (abs(x) > X_LIMIT) | (abs(theta) > ANGLE_LIMIT)
