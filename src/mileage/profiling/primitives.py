"""Single operations of a run, timed by themselves: environment steps, storage, advantages, acting, one whole update."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mileage.buffers import ReplayBuffer
from mileage.envs.native.env import NativeEnv
from mileage.envs.native.vector import VecEnv
from mileage.kernels import gae, token_kl
from mileage.kernels.learners import rollout as kernels
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.kernels.machine.pointers import Frame
from mileage.profiling.limits import medians
from mileage.profiling.tracing import TraceClock
from mileage.training.agent import Agent

STEP_MANY, STEP_OWN = "environment step, 64 environments", "environment step, own number"
PUSH_ONE, PUSH_EIGHT, SAMPLE = "replay push, 1 transition", "replay push, 8 transitions", "replay sample, 256"
GAE, TOKEN_KL = "GAE, 8 × 128", "token KL (k3), 32 × 2048"
ACT, VALUE, UPDATE = "choose actions, own number", "values, own number", "one whole update"
# Calls per sample: short ones are repeated until the clock is no matter.
_CALLS = 50


def primitives(agent: Agent, effort: float = 1.0) -> dict[str, float]:
    """Median seconds of single operations with the shapes of the agent's own run; those it does not have are absent."""

    def repeated(action: Callable[[], object], calls: int) -> Callable[[], object]:
        def several() -> None:
            for _ in range(calls):
                action()

        return several

    seconds: dict[str, float] = {}
    # Each group by itself: an update leaves nothing of the others in the caches, and they nothing of its own.
    for arms in (_environments(agent), _storage(agent), _arrays(), _policy(agent)):
        found = {name: repeated(action, calls) for name, (action, calls) in arms.items()}
        # As in a run: with threads of its own, BLAS would get in the way of ours.
        with single_threaded_blas():
            taken = medians(found, seconds=0.02 * effort)
        seconds |= {name: taken[name] / calls for name, (_, calls) in arms.items()}
    return seconds


def _environments(agent: Agent) -> dict[str, tuple[Callable[[], object], int]]:
    if not isinstance(agent.spec, NativeEnv):
        return {}
    arms: dict[str, tuple[Callable[[], object], int]] = {}
    for name, count in ((STEP_MANY, 64), (STEP_OWN, agent.config.n_envs)):
        env = VecEnv(agent.spec, count)
        env.reset(seed=0)
        actions: Any = np.zeros(count, np.int64)
        if not agent.spec.n_actions:
            actions = np.zeros((count, agent.spec.action_size), np.float32)
        arms[name] = (functools.partial(env.step, actions), _CALLS)
    return arms


def _storage(agent: Agent) -> dict[str, tuple[Callable[[], object], int]]:
    obs_size, action_size = agent.policy.obs_size, agent.policy.action_size
    single, eight = (ReplayBuffer(10_000, obs_size, action_size, n_envs=n, seed=0) for n in (1, 8))
    obs, action = np.zeros(obs_size, np.float32), np.zeros(action_size, np.float32)
    many = (np.zeros((8, obs_size), np.float32), np.zeros((8, action_size), np.float32), np.zeros(8, np.float32))
    flags = np.zeros(8, np.bool_)
    for _ in range(512):
        single.push(obs, action, 1.0, False, False, obs)
    batch = single.batch(256)
    return {
        PUSH_ONE: (lambda: single.push(obs, action, 1.0, False, False, obs), _CALLS),
        PUSH_EIGHT: (lambda: eight.push_batch(*many, flags, flags, many[0]), _CALLS),
        SAMPLE: (lambda: single.sample(256, out=batch), _CALLS),
    }


def _arrays() -> dict[str, tuple[Callable[[], object], int]]:
    values = np.ones((128, 8), np.float32)
    flags, last = np.zeros((128, 8), np.uint8), np.ones(8, np.float32)
    out = (np.empty_like(values), np.empty_like(values))
    tokens = np.full((32, 2048), -1.0, np.float32)
    other = np.full((32, 2048), -1.5, np.float32)
    return {
        GAE: (lambda: gae(values, values, flags, last, out=out), _CALLS),
        TOKEN_KL: (lambda: token_kl(tokens, other, estimator="k3"), 5),
    }


def _policy(agent: Agent) -> dict[str, tuple[Callable[[], object], int]]:
    engine: Any = agent.learner
    if hasattr(engine, "replay"):
        engine._clock = TraceClock([])
        arms: dict[str, tuple[Callable[[], object], int]] = {ACT: (lambda: engine.act(0.5), _CALLS)}
        updates = engine.config.gradient_steps
        if updates > 0 and len(engine.replay) >= engine.config.batch:
            arms[UPDATE] = (lambda: engine.learn(updates), 5)
        return arms
    if agent.backend == "torch":
        return _torch_policy(agent, engine)
    frame = Frame(kernels.ACT, **engine.policy_fields(), obs=engine.shown_obs, n_envs=engine.n_envs)
    # The rollout's workspace is as large as its blocks need; one call for all environments may need more.
    work = np.zeros(engine.n_envs * (sum(engine.policy.actor_sizes) + sum(engine.policy.critic_sizes)) + 64, np.float32)
    frame.set(works=work)
    out = np.zeros(engine.n_envs, np.float32)
    return {
        ACT: (lambda: kernels.act(frame.record, 0), _CALLS),
        VALUE: (lambda: kernels.values(frame.record, out), _CALLS),
    }


def _torch_policy(agent: Agent, engine: Any) -> dict[str, tuple[Callable[[], object], int]]:
    import torch

    clock: Any = TraceClock([])
    rows = slice(0, engine.n_envs)

    def value() -> None:
        with torch.no_grad(), contextlib.suppress(AttributeError):
            engine.policy.run(engine.policy.view(engine._obs_twin.tensor[rows]), engine._memory, fast=True)

    return {ACT: (lambda: engine._act(clock, 0, rows), 10), VALUE: (value, 10)}
