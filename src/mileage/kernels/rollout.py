"""The whole rollout in one call: observe, actor and critic forward, sample, step, store; and its evaluation twin.

Environments are cut into blocks whose size depends on their number alone; a thread takes whole blocks and runs each through all
steps. Blocks share nothing, so threads never wait for each other before the end, and results do not depend on them.

Rollout arrays are flat over time and environment: row `t * N + i`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.kernels import heads, mlp
from mileage.kernels._jit import kernel
from mileage.kernels._pointers import call_int64
from mileage.kernels._team import meet

_F = np.float32


def block_size(n_envs: int) -> int:
    """Environments per block: a quarter of all, a multiple of 4, from 4 to 32."""
    return min(32, max(4, -(-n_envs // 16) * 4))


@kernel
def load_observations(
    obs: Any, first: Any, rows: Any, mean: Any, scale: Any, limit: Any, work: Any, keep: Any, keep_row: Any
) -> None:
    """Normalise `rows` observations from `obs[first]` on into the start of `work` and into `keep[keep_row]` on."""
    size = obs.shape[1]
    for i in range(rows):
        for k in range(size):
            value = min(max((obs[first + i, k] - mean[k]) * scale[k], -limit), limit)
            work[i * size + k] = value
            keep[keep_row + i, k] = value


@kernel
def to_env_action(action: Any, row: Any, low: Any, high: Any, out: Any, out_row: Any) -> None:
    """Map a policy's action in [-1, 1] to the environment's bounds, clipped; unbounded dimensions pass as they are."""
    for k in range(action.shape[1]):
        value = action[row, k]
        if low[k] > -_F(np.inf) and high[k] < _F(np.inf):
            value = min(max(value, _F(-1.0)), _F(1.0))
            value = low[k] + (value + _F(1.0)) * _F(0.5) * (high[k] - low[k])
        out[out_row, k] = value


@kernel
def policy_step(
    obs: Any,
    lo: Any,
    rows: Any,
    row: Any,
    net: Any,
    norm: Any,
    n_actions: Any,
    bounds: Any,
    action_rng: Any,
    store: Any,
    env_action: Any,
    work: Any,
) -> None:
    """Choose actions for `rows` environments from `lo` on, and store the transition's first half at `row` on.

    `net` = (params, actor sizes, critic sizes, critic offset, log-std offset, activation); `norm` = (mean, scale, limit);
    `bounds` = (low, high); `store` = (obs, actions, log-probs, values).
    """
    params, actor, critic, critic_offset, log_std_offset, kind = net
    s_obs, s_actions, s_log_probs, s_values = store
    load_observations(obs, lo, rows, norm[0], norm[1], norm[2], work, s_obs, row)
    hidden = rows * obs.shape[1]
    value = mlp.forward(params, critic_offset, critic, rows, work, 0, hidden, kind)
    for i in range(rows):
        s_values[row + i] = work[value + i]
    head = mlp.forward(params, 0, actor, rows, work, 0, hidden, kind)
    width = actor[actor.shape[0] - 1]
    for i in range(rows):
        rng_state = action_rng[lo + i]
        if n_actions > 0:
            choice, log_prob = heads.sample_categorical(work, head + i * width, width, rng_state)
            s_actions[row + i, 0] = _F(choice)
            env_action[lo + i, 0] = _F(choice)
        else:
            log_prob = heads.sample_gaussian(
                work, head + i * width, params, log_std_offset, width, rng_state, s_actions, row + i
            )
            to_env_action(s_actions, row + i, bounds[0], bounds[1], env_action, lo + i)
        s_log_probs[row + i] = log_prob


@kernel
def values_of(obs: Any, lo: Any, rows: Any, net: Any, norm: Any, work: Any, out: Any, row: Any) -> None:
    """Critic values of `rows` observations from `lo` on, into `out[row]` on."""
    params, _, critic, critic_offset, _, kind = net
    size = obs.shape[1]
    for i in range(rows):
        for k in range(size):
            work[i * size + k] = min(max((obs[lo + i, k] - norm[0][k]) * norm[1][k], -norm[2]), norm[2])
    value = mlp.forward(params, critic_offset, critic, rows, work, 0, rows * size, kind)
    for i in range(rows):
        out[row + i] = work[value + i]


@kernel
def _end_episodes(
    reward: Any, terminated: Any, truncated: Any, row: Any, lo: Any, rows: Any, episode: Any, sums: Any
) -> None:
    """Add rewards to running returns; close the episodes that ended. `sums` = (count, returns, lengths) of the block."""
    for i in range(rows):
        episode[lo + i, 0] += reward[row + i]
        episode[lo + i, 1] += 1.0
        if terminated[row + i] + truncated[row + i] > 0:
            sums[0] += 1.0
            sums[1] += episode[lo + i, 0]
            sums[2] += episode[lo + i, 1]
            episode[lo + i, 0] = 0.0
            episode[lo + i, 1] = 0.0


@kernel
def rollout(
    rank: Any,
    n_ranks: Any,
    barrier_state: Any,
    n_steps: Any,
    advance: Any,
    max_steps: Any,
    env: Any,
    net: Any,
    norm: Any,
    n_actions: Any,
    bounds: Any,
    action_rng: Any,
    store: Any,
    outcome: Any,
    last_values: Any,
    episode: Any,
    episode_sums: Any,
    env_action: Any,
    works: Any,
) -> None:
    """Collect `n_steps` from every environment.

    `env` = (state, elapsed, rng, obs, final_obs), one row each; `outcome` = (rewards, terminated, truncated, values of the final
    observation of truncated steps), flat (T*N,); `episode_sums` (blocks, 3) float64 and `works` (ranks, floats) float32.
    """
    state, elapsed, rng, obs, final_obs = env
    rewards, terminated, truncated, truncated_values = outcome
    n_envs = obs.shape[0]
    n_blocks = episode_sums.shape[0]
    block = -(-n_envs // n_blocks)
    block = -(-block // 4) * 4
    work = works[rank]
    for b in range(rank, n_blocks, n_ranks):
        lo = b * block
        rows = min(block, n_envs - lo)
        sums = episode_sums[b]
        for t in range(n_steps):
            row = t * n_envs + lo
            policy_step(obs, lo, rows, row, net, norm, n_actions, bounds, action_rng, store, env_action, work)
            ended = call_int64(
                advance,
                (
                    (state, lo),
                    (elapsed, lo),
                    (rng, lo),
                    (env_action, lo),
                    (obs, lo),
                    (rewards, row),
                    (terminated, row),
                    (truncated, row),
                    (final_obs, lo),
                    rows,
                    max_steps,
                ),
            )
            _end_episodes(rewards, terminated, truncated, row, lo, rows, episode, sums)
            if ended > 0:
                for i in range(rows):
                    if truncated[row + i] > 0:
                        values_of(final_obs, lo + i, 1, net, norm, work, truncated_values, row + i)
        values_of(obs, lo, rows, net, norm, work, last_values, lo)
    meet(barrier_state, n_ranks)


@kernel
def evaluate(
    rank: Any,
    n_ranks: Any,
    barrier_state: Any,
    block: Any,
    advance: Any,
    max_steps: Any,
    env: Any,
    net: Any,
    norm: Any,
    n_actions: Any,
    bounds: Any,
    action_rng: Any,
    deterministic: Any,
    scratch: Any,
    returns: Any,
    lengths: Any,
    works: Any,
) -> None:
    """Play one episode in every environment; fill `returns` and `lengths` (N,).

    `scratch` = (normalised obs, actions, env actions, rewards, terminated, truncated), one row per environment.
    `lengths` must be zero at first.
    """
    state, elapsed, rng, obs, final_obs = env
    params, actor, _, _, log_std_offset, kind = net
    s_obs, s_actions, env_action, rewards, terminated, truncated = scratch
    n_envs = obs.shape[0]
    n_blocks = -(-n_envs // block)
    width = actor[actor.shape[0] - 1]
    work = works[rank]
    for b in range(rank, n_blocks, n_ranks):
        lo = b * block
        rows = min(block, n_envs - lo)
        alive = rows
        for i in range(rows):
            returns[lo + i] = 0.0
        while alive > 0:
            load_observations(obs, lo, rows, norm[0], norm[1], norm[2], work, s_obs, lo)
            head = mlp.forward(params, 0, actor, rows, work, 0, rows * obs.shape[1], kind)
            for i in range(rows):
                offset = head + i * width
                if n_actions > 0:
                    choice = heads.argmax(work, offset, width)
                    if not deterministic:
                        choice, _ = heads.sample_categorical(work, offset, width, action_rng[lo + i])
                    env_action[lo + i, 0] = _F(choice)
                else:
                    for k in range(width):
                        s_actions[lo + i, k] = work[offset + k]
                    if not deterministic:
                        heads.sample_gaussian(
                            work, offset, params, log_std_offset, width, action_rng[lo + i], s_actions, lo + i
                        )
                    to_env_action(s_actions, lo + i, bounds[0], bounds[1], env_action, lo + i)
            call_int64(
                advance,
                (
                    (state, lo),
                    (elapsed, lo),
                    (rng, lo),
                    (env_action, lo),
                    (obs, lo),
                    (rewards, lo),
                    (terminated, lo),
                    (truncated, lo),
                    (final_obs, lo),
                    rows,
                    max_steps,
                ),
            )
            for i in range(rows):
                if lengths[lo + i] <= 0:
                    returns[lo + i] += rewards[lo + i]
                    # A running episode counts its length below zero; the sign turns when it ends.
                    lengths[lo + i] -= 1
                    if terminated[lo + i] + truncated[lo + i] > 0:
                        lengths[lo + i] = -lengths[lo + i]
                        alive -= 1
    meet(barrier_state, n_ranks)
