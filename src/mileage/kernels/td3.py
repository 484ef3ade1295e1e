"""Twin delayed deep deterministic policy gradient in one call, for several updates (Fujimoto et al., 2018,
arXiv:1802.09477).

A deterministic tanh actor, two critics, slowly moving targets of all three; target actions are smoothed with
clipped noise, and the actor learns every `policy_delay` updates; see `mileage.kernels.twin_critic`.
"""

from __future__ import annotations

import numpy as np

from mileage.kernels import mlp, optim, random, twin_critic
from mileage.kernels.machine.frames import (
    Count,
    FrameRecord,
    Index,
    Ptr32,
    Ptr64,
    PtrI64,
    Rank,
    f32,
    frame_type,
    i64,
    shift,
    u64,
)
from mileage.kernels.machine.jit import inner
from mileage.kernels.machine.team import meet
from mileage.kernels.twin_critic import CRITIC, FIRST_STAGES, N_STATS, TARGET

_F = np.float32
# Columns of `stats` and `totals`, as in `twin_critic`; the actor's only over updates in which it learnt.
CRITIC_LOSS, ACTOR_LOSS, ACTOR_SAMPLES, Q_VALUE, SAMPLES = range(N_STATS)

STAGES = (*FIRST_STAGES, "actor", "actor optimizer", "polyak")
_ACTOR, _ACTOR_OPTIMIZER, LAST_STAGE = range(len(FIRST_STAGES), len(STAGES))

TD3 = frame_type(
    twin_critic.FIELDS,
    """
    target_actor_params: (n_actor_params,) float32
    policy_delay: int64
    target_noise noise_limit: float64
    """,
)


@inner
def _act(frame: FrameRecord, params: Ptr32, obs: Ptr32, rows: Count, work: Ptr32, actions: Ptr32) -> None:
    """Actions in (-1, 1) of an actor."""
    head = twin_critic.actor_forward(frame, params, obs, rows, work)
    for k in range(rows * frame.action_size):
        actions[k] = mlp.tanh(head[k])


@inner
def _critic_chunk(frame: FrameRecord, first: Index, rows: Count, work: Ptr32, grads: Ptr32, stats: Ptr64) -> None:
    """Bellman targets of the samples from `first` on, with smoothed actions; gradient of both critics' errors."""
    n_act, limit, deviation = frame.action_size, _F(frame.noise_limit), _F(frame.target_noise)
    targets = shift(work, frame.at_rows)
    actions = shift(targets, rows)
    next_obs = shift(f32(frame.next_obs), first * frame.obs_size)
    _act(frame, f32(frame.target_actor_params), next_obs, rows, work, actions)
    for i in range(rows):
        rng_state = shift(u64(frame.noise_rng), 2 * ((first + i) % frame.batch))
        noise = shift(f32(frame.noise), (first + i) * n_act)
        for k in range(n_act):
            noise[k] = min(max(random.normal(rng_state) * deviation, -limit), limit)
            actions[i * n_act + k] = min(max(actions[i * n_act + k] + noise[k], _F(-1.0)), _F(1.0))
    twin_critic.smaller_values(frame, next_obs, actions, rows, work, targets)
    twin_critic.bellman(frame, first, rows, targets)
    if frame.stage >= CRITIC:
        twin_critic.critic_gradient(frame, first, rows, targets, _F(1.0), work, grads, stats)


@inner
def _actor_chunk(frame: FrameRecord, first: Index, rows: Count, work: Ptr32, grads: Ptr32, stats: Ptr64) -> None:
    """Gradient of minus the first critic's value of the actor's actions."""
    n_obs, n_act, kind = frame.obs_size, frame.action_size, frame.activation
    critic, n = i64(frame.critic), frame.n_critic
    actions = shift(work, frame.at_rows)
    by_input = shift(actions, rows * n_act)
    inputs, hidden = shift(work, frame.at_inputs), shift(work, frame.at_critics)
    delta, spare = twin_critic.scratch(frame, work)
    _act(frame, f32(frame.actor_params), shift(f32(frame.obs), first * n_obs), rows, work, actions)
    twin_critic.join(frame, work, actions, rows, inputs)
    value = mlp.forward(f32(frame.critic_params), critic, n, rows, inputs, hidden, kind)
    for i in range(rows):
        stats[ACTOR_LOSS] -= value[i]
        delta[i] = _F(-1.0 / frame.batch)
    stats[ACTOR_SAMPLES] += rows
    mlp.input_gradient(f32(frame.critic_params), critic, n, rows, hidden, delta, spare, kind, by_input)
    for i in range(rows):
        for k in range(n_act):
            a = actions[i * n_act + k]
            delta[i * n_act + k] = by_input[i * (n_obs + n_act) + n_obs + k] * (_F(1.0) - a * a)
    twin_critic.actor_backward(frame, rows, work, grads)


@inner
def _update(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, start: Index, step: Index, work: Ptr32
) -> None:
    """One update on the samples from `start` on."""
    stage, chunks, grads = frame.stage, twin_critic.n_chunks(frame), f32(frame.grads)
    for c in range(rank, chunks, n_ranks):
        first, rows, stats = twin_critic.chunk(frame, c)
        twin_critic.begin_statistics(stats, rows)
        if stage >= TARGET:
            _critic_chunk(frame, start + first, rows, work, shift(grads, c * frame.n_critic_params), stats)
    learns_policy = step % frame.policy_delay == 0
    tau = frame.tau if learns_policy and stage >= LAST_STAGE else 0.0
    twin_critic.descend_critics(frame, rank, n_ranks, barrier, step, tau)
    meet(barrier, n_ranks)
    if learns_policy:
        for c in range(rank, chunks if stage >= _ACTOR else 0, n_ranks):
            first, rows, stats = twin_critic.chunk(frame, c)
            _actor_chunk(frame, start + first, rows, work, shift(grads, c * frame.n_actor_params), stats)
        targets, n_params = f32(frame.target_actor_params), frame.n_actor_params if stage >= _ACTOR_OPTIMIZER else 0
        turn = step // frame.policy_delay
        twin_critic.descend_actor(frame, rank, n_ranks, barrier, targets, n_params, turn, tau)
    if rank == 0 and stage >= LAST_STAGE:
        twin_critic.add_totals(frame)
    meet(barrier, n_ranks)


td3_update = optim.update_kernel("td3_update", _update)
"""Updates with a frame `TD3`."""

ACT = frame_type(twin_critic.ACT_FIELDS, "exploration_noise: float64")


@inner
def _choose(frame: FrameRecord, head: Ptr32, i: Index, action: Ptr32) -> None:
    """An action with exploration noise."""
    rng_state, deviation, n = shift(u64(frame.action_rng), 2 * i), _F(frame.exploration_noise), frame.action_size
    for k in range(n):
        noisy = mlp.tanh(head[i * n + k]) + deviation * random.normal(rng_state)
        action[k] = min(max(noisy, _F(-1.0)), _F(1.0))


td3_act = twin_critic.act_kernel("td3_act", _choose)
"""Actions with exploration noise for a frame `ACT`."""
