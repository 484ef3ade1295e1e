"""Advantages and returns of `mileage.kernels.arrays.advantages`, one environment and one step at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage._types import F64


def _after(t: int, n: int, following: float, terminated: Any, truncated: Any, truncated_values: Any) -> float:
    """Value of what comes after step t of environment n, where `following` is the value of the next observation."""
    if terminated[t, n]:
        return 0.0
    if truncated is not None and truncated[t, n]:
        return float(truncated_values[t, n])
    return following


def _ends(t: int, n: int, terminated: Any, truncated: Any) -> bool:
    return bool(terminated[t, n] or (truncated is not None and truncated[t, n]))


def gae(
    rewards: Any, values: Any, terminated: Any, last_values: Any, *, truncated: Any = None,
    truncated_values: Any = None, gamma: float = 0.99, lambda_: float = 0.95,
) -> tuple[F64, F64]:  # fmt: skip
    """Generalised advantage estimation: advantages and returns, (T, N) float64."""
    horizon, n_envs = rewards.shape
    advantages = np.zeros((horizon, n_envs))
    for n in range(n_envs):
        following, trace = float(last_values[n]), 0.0
        for t in reversed(range(horizon)):
            if _ends(t, n, terminated, truncated):
                trace = 0.0
            future = _after(t, n, following, terminated, truncated, truncated_values)
            delta = rewards[t, n] + gamma * future - values[t, n]
            trace = delta + gamma * lambda_ * trace
            advantages[t, n] = trace
            following = float(values[t, n])
    return advantages, advantages + values


def nstep_returns(
    rewards: Any, values: Any, terminated: Any, last_values: Any, *, n: int, truncated: Any = None,
    truncated_values: Any = None, gamma: float = 0.99,
) -> F64:  # fmt: skip
    """Discounted rewards of up to `n` steps plus what they lead to, (T, N) float64."""
    horizon, n_envs = rewards.shape
    returns = np.zeros((horizon, n_envs))
    for env in range(n_envs):
        for t in range(horizon):
            discount = 1.0
            for k in range(t, min(t + n, horizon)):
                returns[t, env] += discount * rewards[k, env]
                discount *= gamma
                if _ends(k, env, terminated, truncated) or k == min(t + n, horizon) - 1:
                    following = float(values[k + 1, env] if k + 1 < horizon else last_values[env])
                    future = _after(k, env, following, terminated, truncated, truncated_values)
                    returns[t, env] += discount * future
                    break
    return returns


def vtrace(
    log_ratios: Any, rewards: Any, values: Any, terminated: Any, last_values: Any, *, truncated: Any = None,
    truncated_values: Any = None, gamma: float = 0.99, lambda_: float = 1.0, rho_bar: float = 1.0, c_bar: float = 1.0,
) -> tuple[F64, F64]:  # fmt: skip
    """V-trace targets and policy-gradient advantages, (T, N) float64."""
    horizon, n_envs = rewards.shape
    targets, advantages = np.zeros((horizon, n_envs)), np.zeros((horizon, n_envs))
    for n in range(n_envs):
        following_value = following_target = float(last_values[n])
        for t in reversed(range(horizon)):
            ratio = float(np.exp(np.float64(log_ratios[t, n])))
            rho, c = min(rho_bar, ratio), lambda_ * min(c_bar, ratio)
            future = _after(t, n, following_value, terminated, truncated, truncated_values)
            correction = 0.0 if _ends(t, n, terminated, truncated) else following_target - following_value
            delta = rho * (rewards[t, n] + gamma * future - values[t, n])
            targets[t, n] = values[t, n] + delta + gamma * c * correction
            future_target = _after(t, n, following_target, terminated, truncated, truncated_values)
            advantages[t, n] = rho * (rewards[t, n] + gamma * future_target - values[t, n])
            following_value, following_target = float(values[t, n]), float(targets[t, n])
    return targets, advantages
