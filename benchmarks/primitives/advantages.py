"""GAE, V-trace and n-step returns by NumPy, torch, JAX, rlox and torchrl."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mileage.profiling.bench import cases, plain
from mileage.profiling.bench.cases import GAMMA, LAMBDA, Way

from .arms import on_jax_device, torch_threads

_UNROLLS = (1, 8)


def pair(result: Any) -> tuple[Any, Any]:
    """Two results as arrays."""
    return np.asarray(result[0]), np.asarray(result[1])


def _columns(result: Any, n_envs: int, horizon: int) -> tuple[Any, ...]:
    return tuple(np.asarray(part).reshape(n_envs, horizon).T for part in result)


def gae_numpy(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """NumPy."""
    yield plain.gae(n_envs, horizon, threads)


def _gae_by_torch(rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
    import torch

    advantages = torch.empty_like(rewards)
    # All that does not depend on the trace is done for all steps at once.
    alive = 1.0 - terminated.to(torch.float32)
    deltas = rewards + GAMMA * torch.cat([values[1:], last_values[None]]) * alive - values
    decay = GAMMA * LAMBDA * alive
    trace = torch.zeros_like(last_values)
    for t in range(len(rewards) - 1, -1, -1):
        trace = torch.addcmul(deltas[t], decay[t], trace)
        advantages[t] = trace
    return advantages, advantages + values


def gae_torch(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """Torch operations, one row at a time."""
    yield from _torch(_gae_by_torch, cases.plain_rollout(n_envs, horizon), threads)


def gae_jax(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """A jitted scan."""
    import jax
    import jax.numpy as jnp

    def build(unroll: int) -> Any:
        @jax.jit
        def run(rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
            alive = 1.0 - terminated.astype(jnp.float32)
            deltas = rewards + GAMMA * jnp.concatenate([values[1:], last_values[None]]) * alive - values
            xs = (deltas, GAMMA * LAMBDA * alive)
            _, advantages = jax.lax.scan(_carry, jnp.zeros_like(last_values), xs, reverse=True, unroll=unroll)
            return advantages, advantages + values

        return run

    yield from _jax(build, cases.plain_rollout(n_envs, horizon))


def gae_rlox(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """The batched call of rlox, on the environment-major arrays it wants."""
    from rlox import compute_gae_batched_f32

    *arrays, last = cases.plain_rollout(n_envs, horizon)
    flat = [np.ascontiguousarray(array.T.astype(np.float32)).reshape(-1) for array in arrays]
    yield Way(
        lambda: compute_gae_batched_f32(*flat, last, horizon, GAMMA, LAMBDA),
        answer=lambda result: _columns(result, n_envs, horizon),
    )


def gae_torchrl(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """The functions of torchrl, plain and vectorised, on (N, T, 1)."""
    import torch
    from torchrl.objectives.value import functional

    rewards, values, terminated, last = cases.plain_rollout(n_envs, horizon)
    following = np.concatenate([values[1:], last[None]])
    tensors = [torch.from_numpy(np.ascontiguousarray(a.T))[..., None] for a in (values, following, rewards, terminated)]

    def answer(result: Any) -> Any:
        return tuple(np.asarray(part)[..., 0].T for part in result)

    for name in ("generalized_advantage_estimate", "vec_generalized_advantage_estimate"):
        function = getattr(functional, name)
        for label, prepare in torch_threads(threads):
            yield Way(
                functools.partial(function, GAMMA, LAMBDA, *tensors, terminated=tensors[-1]),
                answer=answer, label=f"{name.split('_')[0]}, {label}", prepare=prepare,
            )  # fmt: skip


def vtrace_numpy(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """NumPy."""
    yield plain.vtrace(n_envs, horizon, threads)


def _vtrace_by_torch(log_ratios: Any, rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
    import torch

    rho = torch.exp(log_ratios).clamp(max=1.0)
    alive = GAMMA * (1.0 - terminated.to(torch.float32))
    deltas = rho * (rewards + alive * torch.cat([values[1:], last_values[None]]) - values)
    decay = alive * rho
    corrections = torch.empty_like(rewards)
    correction = torch.zeros_like(last_values)
    for t in range(len(rewards) - 1, -1, -1):
        correction = torch.addcmul(deltas[t], decay[t], correction)
        corrections[t] = correction
    targets = corrections + values
    return targets, rho * (rewards + alive * torch.cat([targets[1:], last_values[None]]) - values)


def vtrace_torch(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """Torch operations, one row at a time."""
    yield from _torch(_vtrace_by_torch, tuple(cases.rollout(n_envs, horizon).values()), threads)


def vtrace_jax(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """A jitted scan."""
    import jax
    import jax.numpy as jnp

    def build(unroll: int) -> Any:
        @jax.jit
        def run(log_ratios: Any, rewards: Any, values: Any, terminated: Any, last_values: Any) -> Any:
            rho = jnp.minimum(jnp.exp(log_ratios), 1.0)
            alive = GAMMA * (1.0 - terminated.astype(jnp.float32))
            deltas = rho * (rewards + alive * jnp.concatenate([values[1:], last_values[None]]) - values)
            start, xs = jnp.zeros_like(last_values), (deltas, alive * rho)
            _, corrections = jax.lax.scan(_carry, start, xs, reverse=True, unroll=unroll)
            targets = corrections + values
            following = jnp.concatenate([targets[1:], last_values[None]])
            return targets, rho * (rewards + alive * following - values)

        return run

    yield from _jax(build, tuple(cases.rollout(n_envs, horizon).values()))


def vtrace_rlox(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """The call of rlox, which takes one environment at a time."""
    from rlox import compute_vtrace

    *arrays, last_values = cases.rollout(n_envs, horizon).values()
    rows = [np.ascontiguousarray(array.T.astype(np.float32)) for array in arrays]
    last = [float(value) for value in last_values]
    yield Way(
        lambda: [compute_vtrace(*(row[n] for row in rows), last[n], GAMMA) for n in range(n_envs)],
        answer=lambda result: (np.stack([r[0] for r in result], 1), np.stack([r[1] for r in result], 1)),
    )


def vtrace_torchrl(n_envs: int, horizon: int, threads: int) -> Iterator[Way]:
    """The function of torchrl, on (N, T, 1)."""
    import torch
    from torchrl.objectives.value.functional import vtrace_advantage_estimate

    log_ratios, rewards, values, terminated, last = cases.rollout(n_envs, horizon).values()
    following = np.concatenate([values[1:], last[None]])
    arrays = (log_ratios, np.zeros_like(log_ratios), values, following, rewards, terminated)
    pi, mu, value, after, reward, done = (torch.from_numpy(np.ascontiguousarray(a.T))[..., None] for a in arrays)
    for label, prepare in torch_threads(threads):
        yield Way(
            lambda: vtrace_advantage_estimate(GAMMA, pi, mu, value, after, reward, done, terminated=done),
            label=label, prepare=prepare,
        )  # fmt: skip


def nstep_numpy(n_envs: int, horizon: int, n: int, threads: int) -> Iterator[Way]:
    """NumPy."""
    yield plain.nstep(n_envs, horizon, n, threads)


def _carry(trace: Any, x: Any) -> Any:
    delta, decay = x
    trace = delta + decay * trace
    return trace, trace


def _torch(function: Callable[..., Any], arrays: tuple[Any, ...], threads: int) -> Iterator[Way]:
    import torch

    tensors = [torch.from_numpy(array) for array in arrays]
    for label, prepare in torch_threads(threads):
        yield Way(lambda: function(*tensors), answer=pair, label=label, prepare=prepare)


def _jax(build: Callable[[int], Any], arrays: tuple[Any, ...]) -> Iterator[Way]:
    """A scan, plain and unrolled: unrolling helps it at some sizes."""
    device = on_jax_device(*arrays)
    for unroll in _UNROLLS:
        yield Way(_blocking(build(unroll), device), answer=pair, label=f"unroll {unroll}")


def _blocking(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    import jax

    return lambda: jax.block_until_ready(function(*arguments))
