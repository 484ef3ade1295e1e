"""Twin delayed deep deterministic policy gradient in one call, for several updates (Fujimoto et al., 2018,
arXiv:1802.09477).

A deterministic tanh actor, two critics, slowly moving targets of all three; target actions are smoothed with
clipped noise, and the actor learns every `policy_delay` updates. Chunks and workspace are those of
`mileage.kernels.learners.sac`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.kernels.arrays import random
from mileage.kernels.learners import mlp, optim
from mileage.kernels.learners.sac import _join
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.pointers import f32, f64, frame_type, i64, pointer_to, shift, u8, u64
from mileage.kernels.machine.team import meet

_F = np.float32
# Columns of `stats` and `totals`: sums over samples; the actor's only over updates in which it learnt.
CRITIC_LOSS, ACTOR_LOSS, ACTOR_SAMPLES, Q_VALUE, SAMPLES = range(5)
N_STATS = 5

# An update ends after `frame.stage`, as in `learners.actor_critic`.
STAGES = ("loop and barriers", "target", "critic", "critic optimizer", "actor", "actor optimizer", "polyak")
_TARGET, _CRITIC, _CRITIC_OPTIMIZER, _ACTOR, _ACTOR_OPTIMIZER, LAST_STAGE = range(1, len(STAGES))

TD3 = frame_type(
    arrays="actor_params critic_params target_actor_params target_params actor critic obs actions rewards next_obs"
    " terminated discounts noise_rng noise actor_mean actor_square critic_mean critic_square grads squares stats"
    " totals works",
    integers="n_actor n_critic n_actor_params n_critic_params obs_size action_size activation batch n_updates"
    " chunk_rows steps stage policy_delay work_floats at_inputs at_actor at_critics at_scratch at_rows",
    floats="tau actor_rate critic_rate beta1 beta2 eps max_norm target_noise noise_limit",
)


@inner
def _act(frame: Any, params: Any, obs: Any, rows: Any, work: Any, actions: Any) -> Any:
    """Actions in (-1, 1) of an actor; returns the pointer to its raw output."""
    for k in range(rows * frame.obs_size):
        work[k] = obs[k]
    hidden = shift(work, frame.at_actor)
    head = mlp.forward(params, i64(frame.actor), frame.n_actor, rows, work, hidden, frame.activation)
    for k in range(rows * frame.action_size):
        actions[k] = mlp.tanh(head[k])
    return head


@inner
def _targets(frame: Any, first: Any, rows: Any, work: Any, out: Any) -> None:
    """Bellman targets of the samples from `first` on, with smoothed target actions."""
    n_act, limit, deviation = frame.action_size, _F(frame.noise_limit), _F(frame.target_noise)
    inputs, hidden = shift(work, frame.at_inputs), shift(work, frame.at_critics)
    actions = shift(out, rows)
    next_obs = shift(f32(frame.next_obs), first * frame.obs_size)
    _act(frame, f32(frame.target_actor_params), next_obs, rows, work, actions)
    for i in range(rows):
        rng_state = shift(u64(frame.noise_rng), 2 * ((first + i) % frame.batch))
        noise = shift(f32(frame.noise), (first + i) * n_act)
        for k in range(n_act):
            noise[k] = min(max(random.normal(rng_state) * deviation, -limit), limit)
            actions[i * n_act + k] = min(max(actions[i * n_act + k] + noise[k], _F(-1.0)), _F(1.0))
    _join(frame, next_obs, actions, rows, inputs)
    for c in range(2):
        weights = shift(f32(frame.target_params), c * (frame.n_critic_params // 2))
        value = mlp.forward(weights, i64(frame.critic), frame.n_critic, rows, inputs, hidden, frame.activation)
        for i in range(rows):
            out[i] = value[i] if c == 0 else min(out[i], value[i])
    for i in range(rows):
        alive = _F(0.0) if u8(frame.terminated)[first + i] else f32(frame.discounts)[first + i]
        out[i] = f32(frame.rewards)[first + i] + alive * out[i]


@inner
def _critic_chunk(frame: Any, first: Any, rows: Any, work: Any, grads: Any, stats: Any) -> None:
    """Gradient of the summed mean squared errors of both critics."""
    targets = shift(work, frame.at_rows)
    _targets(frame, first, rows, work, targets)
    if frame.stage < _CRITIC:
        return
    inputs, hidden = shift(work, frame.at_inputs), shift(work, frame.at_critics)
    delta = shift(work, frame.at_scratch)
    spare = shift(delta, (frame.at_rows - frame.at_scratch) // 2)
    obs = shift(f32(frame.obs), first * frame.obs_size)
    _join(frame, obs, shift(f32(frame.actions), first * frame.action_size), rows, inputs)
    critic, n, half = i64(frame.critic), frame.n_critic, frame.n_critic_params // 2
    weight = _F(2.0 / frame.batch)
    for c in range(2):
        weights = shift(f32(frame.critic_params), c * half)
        value = mlp.forward(weights, critic, n, rows, inputs, hidden, frame.activation)
        for i in range(rows):
            error = value[i] - targets[i]
            stats[CRITIC_LOSS] += error * error
            stats[Q_VALUE] += 0.5 * value[i]
            delta[i] = weight * error
        mlp.backward(weights, critic, n, rows, inputs, hidden, delta, spare, frame.activation, shift(grads, c * half))


@inner
def _actor_chunk(frame: Any, first: Any, rows: Any, work: Any, grads: Any, stats: Any) -> None:
    """Gradient of minus the first critic's value of the actor's actions."""
    n_obs, n_act, kind = frame.obs_size, frame.action_size, frame.activation
    critic, n = i64(frame.critic), frame.n_critic
    actions = shift(work, frame.at_rows)
    by_input = shift(actions, rows * n_act)
    inputs, hidden = shift(work, frame.at_inputs), shift(work, frame.at_critics)
    delta = shift(work, frame.at_scratch)
    spare = shift(delta, (frame.at_rows - frame.at_scratch) // 2)
    _act(frame, f32(frame.actor_params), shift(f32(frame.obs), first * n_obs), rows, work, actions)
    _join(frame, work, actions, rows, inputs)
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
    mlp.backward(
        f32(frame.actor_params),
        i64(frame.actor),
        frame.n_actor,
        rows,
        work,
        shift(work, frame.at_actor),
        delta,
        spare,
        kind,
        grads,
    )


@inner
def _update(frame: Any, rank: Any, n_ranks: Any, barrier: Any, start: Any, step: Any, work: Any) -> None:
    """One update on the samples from `start` on."""
    batch, chunk_rows, n_critic, n_actor = frame.batch, frame.chunk_rows, frame.n_critic_params, frame.n_actor_params
    stage = frame.stage
    chunks = (batch + chunk_rows - 1) // chunk_rows
    grads, sums = f32(frame.grads), f32(frame.squares)
    for c in range(rank, chunks, n_ranks):
        stats = shift(f64(frame.stats), c * N_STATS)
        for k in range(N_STATS):
            stats[k] = 0.0
        rows = min(chunk_rows, batch - c * chunk_rows)
        stats[SAMPLES] = rows
        if stage >= _TARGET:
            _critic_chunk(frame, start + c * chunk_rows, rows, work, shift(grads, c * n_critic), stats)
    learns_policy = step % frame.policy_delay == 0
    tau = frame.tau if learns_policy and stage >= LAST_STAGE else 0.0
    optim.descend_and_follow(
        rank, n_ranks, barrier, f32(frame.critic_params), grads, f32(frame.critic_mean), f32(frame.critic_square),
        f32(frame.target_params), n_critic if stage >= _CRITIC_OPTIMIZER else 0, chunks, sums, frame.max_norm,
        frame.critic_rate, frame.beta1, frame.beta2, frame.eps, step, tau,
    )  # fmt: skip
    meet(barrier, n_ranks)
    if learns_policy:
        for c in range(rank, chunks, n_ranks):
            rows = min(chunk_rows, batch - c * chunk_rows)
            stats = shift(f64(frame.stats), c * N_STATS)
            if stage >= _ACTOR:
                _actor_chunk(frame, start + c * chunk_rows, rows, work, shift(grads, c * n_actor), stats)
        optim.descend_and_follow(
            rank, n_ranks, barrier, f32(frame.actor_params), grads, f32(frame.actor_mean), f32(frame.actor_square),
            f32(frame.target_actor_params), n_actor if stage >= _ACTOR_OPTIMIZER else 0, chunks, sums, frame.max_norm,
            frame.actor_rate, frame.beta1, frame.beta2, frame.eps, step // frame.policy_delay, tau,
        )  # fmt: skip
    if rank == 0 and stage >= LAST_STAGE:
        totals, stats = f64(frame.totals), f64(frame.stats)
        for c in range(chunks):
            for k in range(N_STATS):
                totals[k] += stats[c * N_STATS + k]
    meet(barrier, n_ranks)


@kernel
def td3_update(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> Any:
    """Run `n_updates` updates (frame `TD3`), each on its own `batch` samples; return the number of updates so far.

    Sample arrays hold `n_updates * batch` rows; `noise` (n_updates * batch, A) float32 receives the target noise;
    `noise_rng` is (batch, 2) uint64; `grads` (chunks, most parameters) float32; `stats` (chunks, 5) and `totals`
    (5,) float64.
    """
    frame = record[0]
    meeting = pointer_to(barrier)
    work = shift(f32(frame.works), rank * frame.work_floats)
    for u in range(frame.n_updates):
        _update(frame, rank, n_ranks, meeting, u * frame.batch, frame.steps + u + 1, work)
    meet(meeting, n_ranks)
    return frame.steps + frame.n_updates


ACT = frame_type(
    arrays="actor_params actor obs env_action actions low high action_rng works",
    integers="n_actor obs_size action_size activation n_envs",
    floats="exploration_noise",
)


@kernel
def td3_act(record: Any) -> None:
    """Actions with exploration noise for all environments (frame `ACT`)."""
    frame = record[0]
    n_act, rows = frame.action_size, frame.n_envs
    low, high, deviation = f32(frame.low), f32(frame.high), _F(frame.exploration_noise)
    head = mlp.forward(
        f32(frame.actor_params),
        i64(frame.actor),
        frame.n_actor,
        rows,
        f32(frame.obs),
        f32(frame.works),
        frame.activation,
    )
    for i in range(rows):
        rng_state = shift(u64(frame.action_rng), 2 * i)
        for k in range(n_act):
            action = mlp.tanh(head[i * n_act + k]) + deviation * random.normal(rng_state)
            action = min(max(action, _F(-1.0)), _F(1.0))
            f32(frame.actions)[i * n_act + k] = action
            f32(frame.env_action)[i * n_act + k] = low[k] + (action + _F(1.0)) * _F(0.5) * (high[k] - low[k])
