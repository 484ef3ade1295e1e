"""Advantages, token divergences and moments of `mileage.kernels`, one environment and one step at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.types import F64


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


# --- Advantages within groups, of `mileage.kernels.arrays` ---
def group_advantages(rewards: Any, *, normalize_std: bool = True, epsilon: float = 1e-6) -> F64:
    """Rewards minus the mean of their group, over its standard deviation plus epsilon, (G, K) float64."""
    rewards = np.asarray(rewards, np.float64)
    centred: F64 = rewards - rewards.mean(axis=1, keepdims=True)
    if not normalize_std:
        return centred
    advantages: F64 = centred / (rewards.std(axis=1, keepdims=True) + epsilon)
    return advantages


# --- Divergences of token distributions, of `mileage.kernels.tokens` ---
def token_kl(
    log_probs: Any, reference_log_probs: Any, *, estimator: str = "k3", mask: Any = None, reduction: str = "sum"
) -> F64:
    """Divergence of each row, (B,) float64."""
    log_p, log_q = np.asarray(log_probs, np.float64), np.asarray(reference_log_probs, np.float64)
    taken = np.ones(log_p.shape, bool) if mask is None else np.asarray(mask) != 0
    with np.errstate(invalid="ignore", over="ignore"):
        if estimator == "exact":
            terms = np.where(log_p == -np.inf, 0.0, np.exp(log_p) * (log_p - log_q))
        elif estimator == "k1":
            terms = log_p - log_q
        elif estimator == "k2":
            terms = 0.5 * np.square(log_p - log_q)
        else:
            terms = np.expm1(log_q - log_p) - (log_q - log_p)
    total: F64 = np.where(taken, terms, 0.0).sum(axis=1)
    if reduction == "mean":
        total = total / np.maximum(taken.sum(axis=1), 1)
    return total


# --- Mean and variance of many samples at once, of `mileage.kernels.moments` ---
def mean_and_variance(samples: Any, ddof: int = 0) -> tuple[F64, F64]:
    """Mean and variance over the first axis, float64: what `RunningMoments` holds after seeing `samples`."""
    samples = np.asarray(samples, np.float64)
    return samples.mean(axis=0), samples.var(axis=0, ddof=ddof)
