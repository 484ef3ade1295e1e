"""A rollout over environments that only Python can step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from mileage._types import F32, F64, U8
from mileage.contracts import Clock, VectorEnv
from mileage.kernels.learners import rollout as kernels
from mileage.kernels.machine.pointers import Frame
from mileage.meter import Phase


class Store(Protocol):
    """Where a rollout's second halves go: flat over time and environment, row `t * N + i`; `last_values` is (N,)."""

    rewards: F32
    terminated: U8
    truncated: U8
    truncated_values: F32
    last_values: F32


def collect_from_python(
    env: VectorEnv, frame: Frame, store: Store, episode: F64, episode_sums: F64, n_steps: int, clock: Clock,
    wanted: Callable[[], bool] = lambda: True,
) -> bool:  # fmt: skip
    """Step `env` `n_steps` times with the policy of `frame` (`ACT`), and store what happens.

    Args:
        env: vector environment of N environments.
        frame: its `obs` (N, O) float32 holds what the environments show now, and does so again afterwards.
        store: receives rewards, flags and values.
        episode: (N, 2) float64, return and length of running episodes.
        episode_sums: (blocks, 3) float64, to whose first row number, returns and lengths of ended ones are added.
        n_steps: steps of each environment.
        clock: gets the phases `inference` and `env_step`.
        wanted: asked before every step; the rollout is given up once it says no.

    Returns:
        Whether the rollout is whole.
    """
    obs, env_action = frame.array("obs"), frame.array("env_action")
    n = len(obs)
    inference, env_step = clock.phase(Phase.INFERENCE), clock.phase(Phase.ENV_STEP)
    discrete = int(frame.record["n_actions"][0]) > 0
    masks = frame.array("masks") if env.spec.masked else None
    for t in range(n_steps):
        if not wanted():
            return False
        rows = slice(t * n, (t + 1) * n)
        with inference:
            if masks is not None and (possible := env.masks) is not None:
                np.copyto(masks, possible)
            kernels.act(frame.record, t * n)
        with env_step:
            action = env_action[:, 0].astype(np.int64) if discrete else env_action
            shown, reward, terminated, truncated, infos = env.step(action)
            store.rewards[rows] = reward
            store.terminated[rows] = terminated
            store.truncated[rows] = truncated & ~terminated
        done = terminated | truncated
        episode[:, 0] += reward
        episode[:, 1] += 1.0
        if done.any():
            with inference:
                obs[:] = infos["final_obs"]
                kernels.values(frame.record, store.truncated_values[rows])
            ended = episode[done]
            episode_sums[0] += (len(ended), *ended.sum(axis=0))
            episode[done] = 0.0
        obs[:] = shown
    with inference:
        kernels.values(frame.record, store.last_values)
    return True
