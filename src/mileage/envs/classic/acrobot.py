"""Acrobot-v1: swing the tip of a two-link arm above a line with a motor at the elbow only (Sutton, 1996)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mileage.envs.native.functions import uniform
from mileage.envs.native.spec import env

# --- Angles in environment code ---
TWO_PI = 2.0 * math.pi


def wrap_angle(angle: float) -> float:
    """The same angle in [-pi, pi); `angle` is a float32."""
    wrapped: float = angle - TWO_PI * np.floor((angle + math.pi) / TWO_PI)
    return wrapped


SECONDS_PER_STEP = 0.2
GRAVITY = 9.8
# Both links: length 1, mass 1, centre of mass in the middle, moment of inertia 1.
MID = 0.5
INERTIA = 1.0
MAX_SPEED_1 = 4.0 * math.pi
MAX_SPEED_2 = 9.0 * math.pi


def acceleration(theta_1: float, theta_2: float, speed_1: float, speed_2: float, torque: float) -> tuple[float, float]:
    """Angular accelerations of both links (Sutton and Barto, second edition, section 11.3)."""
    sine_2, cosine_2 = math.sin(theta_2), math.cos(theta_2)
    d_1 = MID * MID + (1.0 + MID * MID + 2.0 * MID * cosine_2) + 2.0 * INERTIA
    d_2 = MID * MID + MID * cosine_2 + INERTIA
    # cos(x - pi/2) = sin(x)
    phi_2 = MID * GRAVITY * math.sin(theta_1 + theta_2)
    phi_1 = (
        -MID * speed_2 * speed_2 * sine_2
        - 2.0 * MID * speed_2 * speed_1 * sine_2
        + (MID + 1.0) * GRAVITY * math.sin(theta_1)
        + phi_2
    )
    ratio = d_2 / d_1
    acc_2 = (torque + ratio * phi_1 - MID * speed_1 * speed_1 * sine_2 - phi_2) / (MID * MID + INERTIA - d_2 * ratio)
    acc_1 = -(d_2 * acc_2 + phi_1) / d_1
    return acc_1, acc_2


@env(
    "Acrobot-v1", state_size=4, obs_size=6, actions=3, obs_high=(1.0, 1.0, 1.0, 1.0, MAX_SPEED_1, MAX_SPEED_2),
    max_steps=500, reward_threshold=-100.0,
)  # fmt: skip
class Acrobot:
    """State: both joint angles and their velocities. Observation: cosine and sine of each angle, velocities."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        """Start hanging down, nearly at rest."""
        for j in range(4):
            state[j] = uniform(rng, -0.1, 0.1)

    @staticmethod
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        """Apply a torque of -1, 0 or 1 and integrate by one Runge-Kutta step of order four."""
        torque = -1.0 if action == 0 else (1.0 if action == 2 else 0.0)
        dt, half = SECONDS_PER_STEP, 0.5 * SECONDS_PER_STEP
        p, q, u, v = state[0], state[1], state[2], state[3]
        a_1, b_1 = acceleration(p, q, u, v, torque)
        u_2, v_2 = u + half * a_1, v + half * b_1
        a_2, b_2 = acceleration(p + half * u, q + half * v, u_2, v_2, torque)
        u_3, v_3 = u + half * a_2, v + half * b_2
        a_3, b_3 = acceleration(p + half * u_2, q + half * v_2, u_3, v_3, torque)
        u_4, v_4 = u + dt * a_3, v + dt * b_3
        a_4, b_4 = acceleration(p + dt * u_3, q + dt * v_3, u_4, v_4, torque)
        sixth = SECONDS_PER_STEP / 6.0
        p = wrap_angle(p + sixth * (u + 2.0 * u_2 + 2.0 * u_3 + u_4))
        q = wrap_angle(q + sixth * (v + 2.0 * v_2 + 2.0 * v_3 + v_4))
        u = u + sixth * (a_1 + 2.0 * a_2 + 2.0 * a_3 + a_4)
        v = v + sixth * (b_1 + 2.0 * b_2 + 2.0 * b_3 + b_4)
        state[0] = p
        state[1] = q
        state[2] = min(max(u, -MAX_SPEED_1), MAX_SPEED_1)
        state[3] = min(max(v, -MAX_SPEED_2), MAX_SPEED_2)
        up = -math.cos(p) - math.cos(q + p) > 1.0
        return (0.0 if up else -1.0), up

    @staticmethod
    def observe(state: Any, obs: Any) -> None:
        """Show the angles as points on the unit circle."""
        obs[0] = math.cos(state[0])
        obs[1] = math.sin(state[0])
        obs[2] = math.cos(state[1])
        obs[3] = math.sin(state[1])
        obs[4] = state[2]
        obs[5] = state[3]
