"""Token KL, group advantages and running moments by NumPy, torch, JAX, rlox and Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mileage.profiling.bench import cases, plain
from mileage.profiling.bench.cases import Way

from .arms import on_jax_device, torch_threads

_EPSILON = 1e-6


def _kl(module: Any, p: Any, q: Any, estimator: str) -> Any:
    """Divergence (B,) by NumPy, torch or JAX, whose functions have the same names."""
    if estimator == "exact":
        return (module.exp(p) * (p - q)).sum(1)
    d = q - p
    return (module.exp(d) - 1.0 - d).sum(1)


def kl_numpy(rows: int, length: int, estimator: str, threads: int) -> Iterator[Way]:
    """NumPy."""
    yield plain.token_kl(rows, length, estimator, threads)


def kl_torch(rows: int, length: int, estimator: str, threads: int) -> Iterator[Way]:
    """Torch operations."""
    import torch

    p, q = (torch.from_numpy(array) for array in cases.log_probs(rows, length))
    for label, prepare in torch_threads(threads):
        yield Way(lambda: _kl(torch, p, q, estimator), answer=np.asarray, label=label, prepare=prepare)


def kl_jax(rows: int, length: int, estimator: str, threads: int) -> Iterator[Way]:
    """One jitted function."""
    import jax
    import jax.numpy as jnp

    p, q = on_jax_device(*cases.log_probs(rows, length))
    function = jax.jit(lambda p, q: _kl(jnp, p, q, estimator))
    yield Way(lambda: jax.block_until_ready(function(p, q)), answer=np.asarray)


def kl_rlox(rows: int, length: int, estimator: str, threads: int) -> Iterator[Way]:
    """The batched calls of rlox."""
    import rlox

    p, q = (array.reshape(-1) for array in cases.log_probs(rows, length))
    if estimator == "exact":
        yield Way(lambda: rlox.compute_batch_token_kl_f32(p, q, length), answer=np.asarray)
    else:
        # Its ratio is the other way round: p/q - 1 - log(p/q).
        yield Way(lambda: rlox.compute_batch_token_kl_schulman_f32(q, p, length), answer=np.asarray)


def groups_numpy(groups: int, size: int, threads: int) -> Iterator[Way]:
    """NumPy."""
    yield plain.groups(groups, size, threads)


def groups_torch(groups: int, size: int, threads: int) -> Iterator[Way]:
    """Torch operations."""
    import torch

    rewards = torch.from_numpy(cases.rewards(groups, size))

    def run() -> Any:
        std, mean = torch.std_mean(rewards, 1, correction=0, keepdim=True)
        return (rewards - mean) / (std + _EPSILON)

    for label, prepare in torch_threads(threads):
        yield Way(run, answer=np.asarray, label=label, prepare=prepare)


def groups_jax(groups: int, size: int, threads: int) -> Iterator[Way]:
    """One jitted function."""
    import jax
    import jax.numpy as jnp

    (rewards,) = on_jax_device(cases.rewards(groups, size))
    function = jax.jit(lambda r: (r - r.mean(1, keepdims=True)) / (jnp.std(r, 1, keepdims=True) + _EPSILON))
    yield Way(lambda: jax.block_until_ready(function(rewards)), answer=np.asarray)


def groups_rlox(groups: int, size: int, threads: int) -> Iterator[Way]:
    """The batched call of rlox, in the float64 it wants."""
    from rlox import compute_batch_group_advantages

    flat = cases.rewards(groups, size).astype(np.float64).reshape(-1)
    yield Way(lambda: compute_batch_group_advantages(flat, size), answer=lambda r: np.asarray(r).reshape(groups, size))


def moments_numpy(rows: int, width: int, threads: int) -> Iterator[Way]:
    """Mean and variance of a batch, not yet merged with what came before."""
    batch = cases.batch(rows, width)
    yield Way(lambda: (batch.mean(0), batch.var(0)))


def moments_sb3(rows: int, width: int, threads: int) -> Iterator[Way]:
    """What VecNormalize does with a batch."""
    from stable_baselines3.common.running_mean_std import RunningMeanStd

    batch, moments = cases.batch(rows, width), RunningMeanStd(shape=(width,))
    yield Way(lambda: moments.update(batch))
