"""CartPole stepped by Gymnasium, rlox, gymnax and envpool, with random actions in the form each likes best."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from mileage.profiling.bench import cases
from mileage.profiling.bench.cases import ACTION_ROWS, Way, in_python


def step_gymnasium(n_envs: int, threads: int) -> Iterator[Way]:
    """Gymnasium's own vectorised CartPole."""
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", num_envs=n_envs, vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    yield in_python(envs.step, cases.actions(n_envs))


def step_rlox(n_envs: int, threads: int) -> Iterator[Way]:
    """The native CartPole of rlox."""
    import rlox

    envs = rlox.VecEnv(n_envs, seed=0, env_id="CartPole-v1")
    envs.reset_all(seed=0)
    yield in_python(envs.step_all, cases.actions(n_envs).astype(np.uint32))


def step_envpool(n_envs: int, threads: int) -> Iterator[Way]:
    """Envpool on one thread and on all."""
    import envpool

    for n in dict.fromkeys((1, threads)):
        envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=n_envs, num_threads=n, seed=0)
        envs.reset()
        arm = in_python(envs.step, cases.actions(n_envs).astype(np.int32))
        yield Way(arm.run, arm.units, label=f"{n} thread{'s' * (n > 1)}")


def step_gymnax(n_envs: int, threads: int) -> Iterator[Way]:
    """One jitted scan over all steps, the way JAX is fastest."""
    import gymnax
    import jax
    import jax.numpy as jnp

    warnings.filterwarnings("ignore", message=".*precision lowered.*")
    env, params = gymnax.make("CartPole-v1")
    keys = jax.random.split(jax.random.PRNGKey(0), n_envs)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)
    actions = jnp.asarray(cases.actions(n_envs))
    stepped = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def step(carry: Any, action: Any) -> Any:
        key, state = carry
        key, part = jax.random.split(key)
        obs, state, reward, done, _ = stepped(jax.random.split(part, n_envs), state, action, params)
        return (key, state), (obs[0, 0], reward.sum(), done.sum())

    scan = jax.jit(lambda carry: jax.lax.scan(step, carry, actions))
    carry = (jax.random.PRNGKey(1), state)

    def run() -> None:
        nonlocal carry
        carry, out = scan(carry)
        jax.block_until_ready((carry, out))

    yield Way(run, units=ACTION_ROWS)
