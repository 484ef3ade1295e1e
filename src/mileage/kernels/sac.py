"""Soft actor-critic in one call: targets, twin critics, actor, temperature and polyak averaging, for several updates.

A tanh-squashed Gaussian actor with state-dependent deviation, two critics on (observation, action), and their
slowly moving targets (Haarnoja et al., 2018, arXiv:1812.05905); see `mileage.kernels.twin_critic`.
"""

from __future__ import annotations

import math

import numpy as np

from mileage.kernels import mlp, optim, twin_critic
from mileage.kernels.heads import LOG_STD_HIGH, LOG_STD_LOW, SQUASH_EPS, sample_squashed
from mileage.kernels.machine.frames import (
    Count,
    Flag,
    FrameRecord,
    Index,
    Ptr32,
    Ptr64,
    PtrI64,
    Rank,
    Real32,
    Real64,
    f32,
    f64,
    frame_type,
    i64,
    shift,
    u64,
)
from mileage.kernels.machine.jit import inner
from mileage.kernels.machine.team import meet
from mileage.kernels.twin_critic import CRITIC, FIRST_STAGES, N_STATS, TARGET

_F = np.float32
# Columns of `stats` and `totals`, as in `twin_critic`.
CRITIC_LOSS, ACTOR_LOSS, LOG_PROB, Q_VALUE, SAMPLES = range(N_STATS)
# Entries of `temperature`, float64: its logarithm, Adam's two moments of that, and its target entropy.
LOG_ALPHA, ALPHA_MEAN, ALPHA_SQUARE, TARGET_ENTROPY = range(4)

STAGES = (*FIRST_STAGES, "polyak", "actor", "actor optimizer", "temperature")
_POLYAK, _ACTOR, _ACTOR_OPTIMIZER, LAST_STAGE = range(len(FIRST_STAGES), len(STAGES))

SAC = frame_type(
    twin_critic.FIELDS,
    """
    temperature: (4,) float64
    learn_temperature: int64
    temperature_rate: float64
    """,
)


@inner
def _sample(
    frame: FrameRecord, obs: Ptr32, rows: Count, first: Index, draw: Index, work: Ptr32, actions: Ptr32,
    log_probs: Ptr32,
) -> Ptr32:  # fmt: skip
    """Actions and log-probabilities of the current policy; the noise is kept from `noise[draw, first]` on.

    Returns the pointer to the actor's raw output.
    """
    n_act = frame.action_size
    head = twin_critic.actor_forward(frame, f32(frame.actor_params), obs, rows, work)
    for i in range(rows):
        row = first + i
        noise = shift(f32(frame.noise), (draw * frame.batch * frame.n_updates + row) * n_act)
        rng_state = shift(u64(frame.noise_rng), 2 * (row % frame.batch))
        log_probs[i] = sample_squashed(shift(head, 2 * n_act * i), n_act, rng_state, shift(actions, i * n_act), noise)
    return head


@inner
def _critic_chunk(
    frame: FrameRecord, first: Index, rows: Count, alpha: Real32, work: Ptr32, grads: Ptr32, stats: Ptr64
) -> None:
    """Soft Bellman targets of the samples from `first` on; gradient of half the squared errors of both critics."""
    targets = shift(work, frame.at_rows)
    actions = shift(targets, rows)
    log_probs = shift(actions, rows * frame.action_size)
    next_obs = shift(f32(frame.next_obs), first * frame.obs_size)
    _sample(frame, next_obs, rows, first, 0, work, actions, log_probs)
    twin_critic.smaller_values(frame, next_obs, actions, rows, work, targets)
    for i in range(rows):
        targets[i] -= alpha * log_probs[i]
    twin_critic.bellman(frame, first, rows, targets)
    if frame.stage >= CRITIC:
        twin_critic.critic_gradient(frame, first, rows, targets, 0.5, work, grads, stats)


@inner
def _actor_slopes(
    frame: FrameRecord, head: Ptr32, noise: Ptr32, action: Ptr32, by_action: Ptr32, alpha: Real32, weight: Real32,
    out: Ptr32,
) -> None:  # fmt: skip
    """Loss gradient by one row of the actor's output, from that by the squashed action."""
    n = frame.action_size
    for k in range(n):
        a = action[k]
        slope = _F(1.0) - a * a
        by_squash = alpha * weight * _F(2.0) * a * slope / (slope + SQUASH_EPS) + by_action[k] * slope
        out[k] = by_squash
        raw = head[n + k]
        inside = raw > LOG_STD_LOW and raw < LOG_STD_HIGH
        out[n + k] = (by_squash * noise[k] * _F(math.exp(raw)) - alpha * weight) if inside else _F(0.0)


@inner
def _keep_rows(
    sizes: PtrI64, n_sizes: Count, rows: Count, hidden: Ptr32, q1: Ptr32, q2: Ptr32, n_kept: Count, first_smaller: Flag
) -> None:
    """Pack a critic's activations, in place, into those of the `n_kept` rows where its value is the smaller one.

    Values themselves, the last layer's, stay where they are.
    """
    source, target = hidden, hidden
    for layer in range(1, n_sizes - 1):
        width = sizes[layer]
        kept = 0
        for i in range(rows):
            if (q1[i] <= q2[i]) == first_smaller:
                row, out = shift(source, i * width), shift(target, kept * width)
                for k in range(width):
                    out[k] = row[k]
                kept += 1
        source, target = shift(source, rows * width), shift(target, n_kept * width)


@inner
def _actor_chunk(
    frame: FrameRecord, first: Index, rows: Count, alpha: Real32, work: Ptr32, grads: Ptr32, stats: Ptr64
) -> None:
    """Gradient of alpha * log-probability minus the smaller critic's value.

    Of the two critics only the smaller one counts in a row, so each is differentiated in its own rows alone.
    """
    n_obs, n_act, kind = frame.obs_size, frame.action_size, frame.activation
    critic, n = i64(frame.critic), frame.n_critic
    actions = shift(work, frame.at_rows)
    log_probs = shift(actions, rows * n_act)
    by_input = shift(log_probs, rows)
    inputs = shift(work, frame.at_inputs)
    delta, spare = twin_critic.scratch(frame, work)
    hidden1 = shift(work, frame.at_critics)
    hidden2 = shift(hidden1, (frame.at_scratch - frame.at_critics) // 2)
    weights1 = f32(frame.critic_params)
    weights2 = twin_critic.second_critic(frame, weights1)
    weight = _F(1.0 / frame.batch)

    head = _sample(frame, shift(f32(frame.obs), first * n_obs), rows, first, 1, work, actions, log_probs)
    twin_critic.join(frame, work, actions, rows, inputs)
    q1 = mlp.forward(weights1, critic, n, rows, inputs, hidden1, kind)
    q2 = mlp.forward(weights2, critic, n, rows, inputs, hidden2, kind)
    by_second = shift(by_input, rows * (n_obs + n_act))
    n_first = 0
    for i in range(rows):
        n_first += q1[i] <= q2[i]
        stats[ACTOR_LOSS] += alpha * log_probs[i] - min(q1[i], q2[i])
        stats[LOG_PROB] += log_probs[i]
    _keep_rows(critic, n, rows, hidden1, q1, q2, n_first, True)
    _keep_rows(critic, n, rows, hidden2, q1, q2, rows - n_first, False)
    for i in range(n_first):
        delta[i] = -weight
    mlp.input_gradient(weights1, critic, n, n_first, hidden1, delta, spare, kind, by_input)
    for i in range(rows - n_first):
        delta[i] = -weight
    mlp.input_gradient(weights2, critic, n, rows - n_first, hidden2, delta, spare, kind, by_second)

    by_first, by_second = shift(by_input, n_obs), shift(by_second, n_obs)
    for i in range(rows):
        row = by_first if q1[i] <= q2[i] else by_second
        if q1[i] <= q2[i]:
            by_first = shift(by_first, n_obs + n_act)
        else:
            by_second = shift(by_second, n_obs + n_act)
        noise = shift(f32(frame.noise), (frame.batch * frame.n_updates + first + i) * n_act)
        out = shift(delta, 2 * n_act * i)
        _actor_slopes(frame, shift(head, 2 * n_act * i), noise, shift(actions, i * n_act), row, alpha, weight, out)
    twin_critic.actor_backward(frame, rows, work, grads)


@inner
def _learn_temperature(frame: FrameRecord, mean_log_prob: Real64, step: Index) -> None:
    """One Adam step on the logarithm of the temperature."""
    state = f64(frame.temperature)
    slope = -(mean_log_prob + state[TARGET_ENTROPY])
    state[ALPHA_MEAN] = frame.beta1 * state[ALPHA_MEAN] + (1.0 - frame.beta1) * slope
    state[ALPHA_SQUARE] = frame.beta2 * state[ALPHA_SQUARE] + (1.0 - frame.beta2) * slope * slope
    mean = state[ALPHA_MEAN] / (1.0 - math.pow(frame.beta1, 1.0 * step))
    square = state[ALPHA_SQUARE] / (1.0 - math.pow(frame.beta2, 1.0 * step))
    state[LOG_ALPHA] -= frame.temperature_rate * mean / (math.sqrt(square) + frame.eps)


@inner
def _update(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, start: Index, step: Index, work: Ptr32
) -> None:
    """One update on the samples from `start` on."""
    stage, chunks, grads = frame.stage, twin_critic.n_chunks(frame), f32(frame.grads)
    alpha = _F(math.exp(f64(frame.temperature)[LOG_ALPHA]))
    for c in range(rank, chunks, n_ranks):
        first, rows, stats = twin_critic.chunk(frame, c)
        twin_critic.begin_statistics(stats, rows)
        if stage >= TARGET:
            _critic_chunk(frame, start + first, rows, alpha, work, shift(grads, c * frame.n_critic_params), stats)
    tau = frame.tau if stage >= _POLYAK else 0.0
    twin_critic.descend_critics(frame, rank, n_ranks, barrier, step, tau)
    meet(barrier, n_ranks)
    for c in range(rank, chunks if stage >= _ACTOR else 0, n_ranks):
        first, rows, stats = twin_critic.chunk(frame, c)
        _actor_chunk(frame, start + first, rows, alpha, work, shift(grads, c * frame.n_actor_params), stats)
    n_params = frame.n_actor_params if stage >= _ACTOR_OPTIMIZER else 0
    twin_critic.descend_actor(frame, rank, n_ranks, barrier, f32(frame.actor_params), n_params, step, 0.0)
    if rank == 0 and stage >= LAST_STAGE:
        twin_critic.add_totals(frame)
        log_prob = 0.0
        for c in range(chunks):
            log_prob += f64(frame.stats)[c * N_STATS + LOG_PROB]
        if frame.learn_temperature > 0:
            _learn_temperature(frame, log_prob / frame.batch, step)
    meet(barrier, n_ranks)


sac_update = optim.update_kernel("sac_update", _update)
"""Updates with a frame `SAC`."""

ACT = frame_type(twin_critic.ACT_FIELDS, "deterministic: int64")


@inner
def _choose(frame: FrameRecord, head: Ptr32, i: Index, action: Ptr32) -> None:
    """Draw an action in (-1, 1)."""
    n = frame.action_size
    row, noise = shift(head, 2 * n * i), shift(head, 2 * n * frame.n_envs)
    sample_squashed(row, n, shift(u64(frame.action_rng), 2 * i), action, noise)
    if frame.deterministic > 0:
        for k in range(n):
            action[k] = mlp.tanh(row[k])


sac_act = twin_critic.act_kernel("sac_act", _choose)
"""Actions drawn for a frame `ACT`."""
