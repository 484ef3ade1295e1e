"""Single operations of a run, timed by themselves: environment steps, storage, advantages, and a learner's own."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping

import numpy as np

from mileage.buffers import ReplayBuffer
from mileage.contracts import Policy
from mileage.description import Description, Task
from mileage.envs.native.vector import NativeEnv, VecEnv
from mileage.kernels import gae, token_kl
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.profiling.roofline import medians
from mileage.training.agent import Agent

STEP_MANY, STEP_OWN = "environment step, 64 environments", "environment step, own number"
PUSH_ONE, PUSH_EIGHT, SAMPLE = "replay push, 1 transition", "replay push, 8 transitions", "replay sample, 256"
GAE, TOKEN_KL = "GAE, 8 × 128", "token KL (k3), 32 × 2048"
# Short operations are repeated until reading the clock takes no time beside them, but not more often than this.
_SAMPLE_SECONDS, _MOST_CALLS = 5e-4, 50


def primitives(agent: Agent, described: Description, effort: float = 1.0) -> dict[str, float]:
    """Median seconds of single operations with the shapes of the agent's own run; those it does not have are absent."""
    seconds: dict[str, float] = {}
    if not described.operations:
        return seconds
    # As in a run: with threads of its own, BLAS would get in the way of ours.
    with single_threaded_blas(), described.paused():
        # Each group by itself: an update leaves nothing of the others in the caches, and they nothing of its own.
        for group in (_environments(agent), _storage(agent.policy), _arrays(), described.operations):
            seconds |= _seconds(group, 0.02 * effort) if group else {}
    return seconds


def _seconds(operations: Mapping[str, Task], limit: float) -> dict[str, float]:
    calls = {name: _calls(action) for name, action in operations.items()}
    arms = {name: functools.partial(_repeat, action, calls[name]) for name, action in operations.items()}
    return {name: taken / calls[name] for name, taken in medians(arms, seconds=limit).items()}


def _calls(action: Task) -> int:
    """How often an operation is done per sample."""
    action()  # compiles, touches memory
    start = time.perf_counter()
    action()
    once = max(time.perf_counter() - start, 1e-9)
    return max(1, min(_MOST_CALLS, round(_SAMPLE_SECONDS / once)))


def _repeat(action: Task, calls: int) -> None:
    for _ in range(calls):
        action()


def _environments(agent: Agent) -> dict[str, Task]:
    if not isinstance(agent.spec, NativeEnv):
        return {}
    operations: dict[str, Task] = {}
    for name, count in ((STEP_MANY, 64), (STEP_OWN, agent.config.n_envs)):
        env = VecEnv(agent.spec, count)
        env.reset(seed=0)
        shape = (count,) if agent.spec.n_actions else (count, agent.spec.action_size)
        actions = np.zeros(shape, np.int64 if agent.spec.n_actions else np.float32)
        operations[name] = functools.partial(env.step, actions)
    return operations


def _storage(policy: Policy) -> dict[str, Task]:
    obs_size, action_size = policy.obs_size, policy.action_size
    single, eight = (ReplayBuffer(10_000, obs_size, action_size, n_envs=n, seed=0) for n in (1, 8))
    obs, action = np.zeros(obs_size, np.float32), np.zeros(action_size, np.float32)
    many = (np.zeros((8, obs_size), np.float32), np.zeros((8, action_size), np.float32), np.zeros(8, np.float32))
    flags = np.zeros(8, np.bool_)
    for _ in range(512):
        single.push(obs, action, 1.0, False, False, obs)
    batch = single.batch(256)
    return {
        PUSH_ONE: lambda: single.push(obs, action, 1.0, False, False, obs),
        PUSH_EIGHT: lambda: eight.push_batch(*many, flags, flags, many[0]),
        SAMPLE: lambda: single.sample(256, out=batch),
    }


def _arrays() -> dict[str, Task]:
    values = np.ones((128, 8), np.float32)
    flags, last = np.zeros((128, 8), np.uint8), np.ones(8, np.float32)
    out = (np.empty_like(values), np.empty_like(values))
    tokens = np.full((32, 2048), -1.0, np.float32)
    other = np.full((32, 2048), -1.5, np.float32)
    return {
        GAE: lambda: gae(values, values, flags, last, out=out),
        TOKEN_KL: lambda: token_kl(tokens, other, estimator="k3"),
    }
