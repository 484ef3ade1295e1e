"""The inputs of the jobs: drawn from fixed seeds, so that every process works on the same numbers."""

from __future__ import annotations

import itertools

import numpy as np

from mileage._types import F32, I64, Array

GAMMA, LAMBDA = 0.99, 0.95
BATCH = 256
ACTION_ROWS = 64


def rollout(n_envs: int, horizon: int) -> dict[str, Array]:
    """Arrays (T, N) of a rollout and its last values (N,)."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> F32:
        return rng.normal(size=shape).astype(np.float32)

    return {
        "log_ratios": floats(horizon, n_envs) * np.float32(0.3),
        "rewards": floats(horizon, n_envs),
        "values": floats(horizon, n_envs),
        "terminated": rng.random((horizon, n_envs)) < 0.02,
        "last_values": floats(n_envs),
    }


def plain_rollout(n_envs: int, horizon: int) -> tuple[Array, ...]:
    """Rewards, values, terminated, last values."""
    return tuple(rollout(n_envs, horizon).values())[1:]


def log_probs(rows: int, length: int) -> tuple[F32, F32]:
    """Two sets of log-probabilities (B, L) float32, each row a distribution."""
    rng = np.random.default_rng(0)
    p, q = (np.log(rng.dirichlet(np.ones(length) * 5.0, rows)).astype(np.float32) for _ in range(2))
    return p, q


def rewards(groups: int, size: int) -> F32:
    """Rewards (G, K) float32 of answers."""
    return np.random.default_rng(0).normal(size=(groups, size)).astype(np.float32)


def batch(rows: int, width: int) -> F32:
    """Samples (B, D) float32."""
    return np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)


def actions(n_envs: int) -> I64:
    """Random CartPole actions (ACTION_ROWS, N) int64."""
    return np.random.default_rng(0).integers(0, 2, (ACTION_ROWS, n_envs))


def transitions(n: int, size: int, dtype: str = "float32") -> dict[str, Array]:
    """One transition of each of `n` environments with observations of `size` numbers."""
    rng = np.random.default_rng(0)
    return {
        "obs": (rng.random((n, size)) * 200).astype(dtype),
        "next_obs": (rng.random((n, size)) * 200).astype(dtype),
        "actions": rng.random((n, 1)).astype(np.float32),
        "rewards": rng.random(n).astype(np.float32),
        "flags": np.zeros(n, np.bool_),
    }


def priorities() -> list[F32]:
    """New priorities (BATCH,) float32 for many updates."""
    rng = np.random.default_rng(0)
    return [rng.random(BATCH).astype(np.float32) + 0.01 for _ in range(64)]


def layers(sizes: list[int]) -> list[tuple[F32, F32]]:
    """Weights (I, O) and biases (O,) float32 of an MLP."""
    rng = np.random.default_rng(0)
    kind = np.float32
    pairs = itertools.pairwise(sizes)
    return [(rng.normal(size=(i, o)).astype(kind) / kind(i**0.5), np.zeros(o, kind)) for i, o in pairs]
