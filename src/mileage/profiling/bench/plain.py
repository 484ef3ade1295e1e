"""The jobs with answers in plain NumPy: what the answers of kernels, and of other libraries, are checked against."""

from __future__ import annotations

import numpy as np

from mileage.profiling.bench import cases
from mileage.profiling.bench.cases import GAMMA, LAMBDA, Way
from mileage.types import F32, Array

_EPSILON = np.float32(1e-6)


def gae(n_envs: int, horizon: int, threads: int) -> Way:
    """Advantages and returns."""
    arrays = cases.plain_rollout(n_envs, horizon)
    return Way(lambda: _gae_rows(*arrays), answer=tuple)


def vtrace(n_envs: int, horizon: int, threads: int) -> Way:
    """Targets and advantages."""
    arrays = tuple(cases.rollout(n_envs, horizon).values())
    return Way(lambda: _vtrace_rows(*arrays), answer=tuple)


def nstep(n_envs: int, horizon: int, n: int, threads: int) -> Way:
    """N-step returns."""
    rewards, values, terminated, last = cases.plain_rollout(n_envs, horizon)
    return Way(lambda: _nstep_rows(rewards, values, terminated, last, n), answer=np.asarray)


def token_kl(rows: int, length: int, estimator: str, threads: int) -> Way:
    """Divergence of each row."""
    p, q = cases.log_probs(rows, length)

    def exact() -> Array:
        return np.asarray((np.exp(p) * (p - q)).sum(1))

    def k3() -> Array:
        d = q - p
        return np.asarray((np.exp(d) - 1.0 - d).sum(1))

    return Way(exact if estimator == "exact" else k3, answer=np.asarray)


def groups(groups: int, size: int, threads: int) -> Way:
    """Group-normalised advantages."""
    rewards = cases.rewards(groups, size)

    def run() -> Array:
        return np.asarray((rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + _EPSILON))

    return Way(run, answer=np.asarray)


def mlp(rows: int, sizes: list[int], threads: int) -> Way:
    """Forward pass of a network."""
    x, layers = cases.batch(rows, sizes[0]), cases.layers(sizes)
    return Way(lambda: _mlp_rows(x, layers), answer=np.asarray)


def _gae_rows(rewards: Array, values: Array, terminated: Array, last_values: Array) -> tuple[Array, Array]:
    """Advantages and returns (T, N), one row at a time."""
    advantages = np.empty_like(rewards)
    alive = 1.0 - terminated.astype(np.float32)
    following, trace = last_values, np.zeros_like(last_values)
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + np.float32(GAMMA) * following * alive[t] - values[t]
        trace = delta + np.float32(GAMMA * LAMBDA) * alive[t] * trace
        advantages[t] = trace
        following = values[t]
    return advantages, advantages + values


def _vtrace_rows(
    log_ratios: Array, rewards: Array, values: Array, terminated: Array, last_values: Array
) -> tuple[Array, Array]:
    """Targets and advantages (T, N), one row at a time."""
    rho = np.minimum(np.exp(log_ratios), np.float32(1.0))
    alive = np.float32(GAMMA) * (1.0 - terminated.astype(np.float32))
    deltas = rho * (rewards + alive * np.concatenate([values[1:], last_values[None]]) - values)
    corrections = np.empty_like(rewards)
    correction = np.zeros_like(last_values)
    for t in range(len(rewards) - 1, -1, -1):
        correction = deltas[t] + alive[t] * rho[t] * correction
        corrections[t] = correction
    targets = corrections + values
    following = np.concatenate([targets[1:], last_values[None]])
    return targets, rho * (rewards + alive * following - values)


def _nstep_rows(rewards: Array, values: Array, terminated: Array, last_values: Array, n: int) -> Array:
    """N-step returns (T, N), all steps at once."""
    horizon = len(rewards)
    ahead = np.concatenate([values[1:], last_values[None]])
    alive = np.float32(GAMMA) * (1.0 - terminated.astype(np.float32))
    returns = np.empty_like(rewards)
    for t in range(horizon):
        last = min(t + n, horizon) - 1
        value = ahead[last]
        for k in range(last, t - 1, -1):
            value = rewards[k] + alive[k] * value
        returns[t] = value
    return returns


def _mlp_rows(x: Array, layers: list[tuple[F32, F32]]) -> Array:
    """Outputs (B, O) of an MLP with tanh between its layers."""
    for index, (weights, bias) in enumerate(layers):
        x = x @ weights + bias
        if index < len(layers) - 1:
            x = np.tanh(x)
    return x
