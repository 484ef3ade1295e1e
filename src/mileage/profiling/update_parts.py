"""Updates that stop after a given stage: the time of a stage is the difference between two such replays.

The stages of one update follow each other as in the real kernels, and are made of the same inner functions; stopping
after the last one is the real update. Differences leave the state of caches and the meetings of threads as they are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mileage.kernels.learners import actor_critic, dqn, mlp, optim, sac, td3, units
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.pointers import f32, f64, i64, pointer_to, shift, u64
from mileage.kernels.machine.team import meet

_F = np.float32


def staged(dtype: np.dtype[np.void]) -> np.dtype[np.void]:
    """The frame type with a field for the last stage."""
    return np.dtype([*dtype.descr, ("stage", np.int64)])


ON_POLICY = staged(actor_critic.UPDATE)
SAC, TD3, DQN = staged(sac.SAC), staged(td3.TD3), staged(dqn.DQN)

ON_POLICY_STAGES = ("loop and barriers", "shuffle", "gather", "forward", "backward", "loss", "clip", "optimizer")
SAC_STAGES = (
    "loop and barriers", "target", "critic", "critic optimizer", "polyak", "actor", "actor optimizer", "temperature"
)  # fmt: skip
TD3_STAGES = ("loop and barriers", "target", "critic", "critic optimizer", "actor", "actor optimizer", "polyak")
DQN_STAGES = ("loop and barriers", "target", "forward and backward", "optimizer", "target network")


@inner
def _norm(rank: Any, n_ranks: Any, barrier: Any, grads: Any, n_params: Any, chunks: Any, sums: Any, limit: Any) -> Any:
    """The first half of `optim.descend`: add up the chunks' gradients and find their norm."""
    blocks = optim.n_blocks(n_params)
    meet(barrier, n_ranks)
    for b in range(rank * blocks // n_ranks, (rank + 1) * blocks // n_ranks):
        sums[b] = optim.reduce_gradients(grads, n_params, chunks, b)
    meet(barrier, n_ranks)
    norm, scale = optim.clip_scale(sums, blocks, limit)
    return norm, scale


@inner
def _forward_and_back(frame: Any, rows: Any, work: Any, grads: Any, back: Any, of_actor: Any) -> None:
    """One network forwards, and backwards too, from whatever stands where the loss would put its slopes."""
    params, hidden = f32(frame.params), shift(work, rows * frame.obs_size)
    delta = shift(work, frame.work_floats // 2)
    spare = shift(delta, frame.work_floats // 4)
    sizes, n, kind = i64(frame.actor), frame.n_actor, frame.activation
    if not of_actor:
        sizes, n = i64(frame.critic), frame.n_critic
        params, grads = shift(params, frame.critic_offset), shift(grads, frame.critic_offset)
    mlp.forward(params, sizes, n, rows, work, hidden, kind)
    if back:
        mlp.backward(params, sizes, n, rows, work, hidden, delta, spare, kind, grads)


@inner
def _gather(frame: Any, order: Any, rows: Any, work: Any) -> None:
    size = frame.obs_size
    for i in range(rows):
        obs = shift(f32(frame.obs), order[i] * size)
        for k in range(size):
            work[i * size + k] = obs[k]


@inner
def _minibatch(frame: Any, rank: Any, n_ranks: Any, barrier: Any, order: Any, size: Any, step: Any, work: Any) -> None:
    """`actor_critic._minibatch` up to the frame's stage."""
    stage, chunk_rows, n_params = frame.stage, frame.chunk_rows, frame.n_params
    chunks = (size + chunk_rows - 1) // chunk_rows
    grads, squares = f32(frame.grads), f32(frame.squares)
    centre, inverse = _F(0.0), _F(1.0)
    if stage >= 5 and frame.normalise > 0 and size > 1:
        centre, inverse = actor_critic._advantage_moments(f32(frame.advantages), order, size)
    for piece in range(rank * 2 * chunks // n_ranks, (rank + 1) * 2 * chunks // n_ranks):
        c, of_actor = piece % chunks, piece < chunks
        first = c * chunk_rows
        rows = min(chunk_rows, size - first)
        stats, slopes = shift(f64(frame.stats), piece * actor_critic.N_STATS), shift(grads, c * n_params)
        if stage >= 5:
            actor_critic._piece(
                frame, shift(order, first), rows, _F(1.0 / size), centre, inverse, work, slopes, stats, of_actor
            )
        elif stage >= 2:
            _gather(frame, shift(order, first), rows, work)
            if stage >= 3:
                _forward_and_back(frame, rows, work, slopes, stage >= 4, of_actor)
    if stage == 6:
        _norm(rank, n_ranks, barrier, grads, n_params, chunks, squares, frame.max_norm)
    elif stage >= 7:
        norm = optim.descend(
            rank, n_ranks, barrier, f32(frame.params), grads, f32(frame.adam_mean), f32(frame.adam_square), n_params,
            chunks, squares, frame.max_norm, frame.rate, frame.beta1, frame.beta2, frame.eps, step,
        )  # fmt: skip
        if rank == 0:
            actor_critic._add_totals(frame, chunks, norm)
    else:
        meet(barrier, n_ranks)
        meet(barrier, n_ranks)
    meet(barrier, n_ranks)


@kernel
def on_policy(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> Any:
    """`actor_critic.update` up to a stage of `ON_POLICY_STAGES` (frame `ON_POLICY`)."""
    frame = record[0]
    meeting = pointer_to(barrier)
    order, step = i64(frame.order), frame.steps
    work = shift(f32(frame.works), rank * frame.work_floats)
    for _ in range(frame.epochs):
        if rank == 0 and frame.stage >= 1:
            actor_critic._shuffle(order, frame.n_samples, u64(frame.shuffle_rng))
        meet(meeting, n_ranks)
        for start in range(0, frame.n_samples, frame.minibatch):
            size = min(frame.minibatch, frame.n_samples - start)
            _minibatch(frame, rank, n_ranks, meeting, shift(order, start), size, step + 1, work)
            step += 1
    meet(meeting, n_ranks)
    return step


@inner
def _descend_or_meet(
    frame: Any, wanted: Any, rank: Any, n_ranks: Any, barrier: Any, params: Any, means: Any, squares: Any, targets: Any,
    n_params: Any, chunks: Any, rate: Any, step: Any, tau: Any,
) -> None:  # fmt: skip
    """The real kernels' pass over all parameters, in which the targets follow (`tau` 0: not yet), or only its waits."""
    if wanted:
        optim.descend_and_follow(
            rank, n_ranks, barrier, params, f32(frame.grads), means, squares, targets, n_params, chunks,
            f32(frame.squares), frame.max_norm, rate, frame.beta1, frame.beta2, frame.eps, step, tau,
        )  # fmt: skip
    else:
        meet(barrier, n_ranks)
        if frame.max_norm > 0.0:
            meet(barrier, n_ranks)


@inner
def _sac_update(frame: Any, rank: Any, n_ranks: Any, barrier: Any, start: Any, step: Any, work: Any) -> None:
    """`sac._update` up to the frame's stage."""
    stage, batch, chunk_rows = frame.stage, frame.batch, frame.chunk_rows
    n_critic, n_actor = frame.n_critic_params, frame.n_actor_params
    chunks = (batch + chunk_rows - 1) // chunk_rows
    alpha = _F(math.exp(f64(frame.temperature)[sac.LOG_ALPHA]))
    grads = f32(frame.grads)
    for c in range(rank, chunks, n_ranks):
        stats = shift(f64(frame.stats), c * sac.N_STATS)
        for k in range(sac.N_STATS):
            stats[k] = 0.0
        rows, first = min(chunk_rows, batch - c * chunk_rows), start + c * chunk_rows
        stats[sac.SAMPLES] = rows
        if stage >= 2:
            sac._critic_chunk(frame, first, rows, alpha, work, shift(grads, c * n_critic), stats)
        elif stage == 1:
            sac._targets(frame, first, rows, alpha, work, shift(work, frame.at_rows))
    _descend_or_meet(
        frame, stage >= 3, rank, n_ranks, barrier, f32(frame.critic_params), f32(frame.critic_mean),
        f32(frame.critic_square), f32(frame.target_params), n_critic, chunks, frame.critic_rate, step,
        frame.tau if stage >= 4 else 0.0,
    )  # fmt: skip
    meet(barrier, n_ranks)
    if stage >= 5:
        for c in range(rank, chunks, n_ranks):
            rows, stats = min(chunk_rows, batch - c * chunk_rows), shift(f64(frame.stats), c * sac.N_STATS)
            sac._actor_chunk(frame, start + c * chunk_rows, rows, alpha, work, shift(grads, c * n_actor), stats)
    _descend_or_meet(
        frame, stage >= 6, rank, n_ranks, barrier, f32(frame.actor_params), f32(frame.actor_mean),
        f32(frame.actor_square), f32(frame.actor_params), n_actor, chunks, frame.actor_rate, step, 0.0,
    )  # fmt: skip
    if rank == 0 and stage >= 7:
        totals, stats = f64(frame.totals), f64(frame.stats)
        log_prob = 0.0
        for c in range(chunks):
            log_prob += stats[c * sac.N_STATS + sac.LOG_PROB]
            for k in range(sac.N_STATS):
                totals[k] += stats[c * sac.N_STATS + k]
        if frame.learn_temperature > 0:
            sac._learn_temperature(frame, log_prob / batch, step)
    meet(barrier, n_ranks)


@kernel
def sac_stages(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> Any:
    """`sac.sac_update` up to a stage of `SAC_STAGES` (frame `SAC`)."""
    frame = record[0]
    meeting = pointer_to(barrier)
    work = shift(f32(frame.works), rank * frame.work_floats)
    for u in range(frame.n_updates):
        _sac_update(frame, rank, n_ranks, meeting, u * frame.batch, frame.steps + u + 1, work)
    meet(meeting, n_ranks)
    return frame.steps + frame.n_updates


@inner
def _td3_update(frame: Any, rank: Any, n_ranks: Any, barrier: Any, start: Any, step: Any, work: Any) -> None:
    """`td3._update` up to the frame's stage."""
    stage, batch, chunk_rows = frame.stage, frame.batch, frame.chunk_rows
    n_critic, n_actor = frame.n_critic_params, frame.n_actor_params
    chunks = (batch + chunk_rows - 1) // chunk_rows
    grads = f32(frame.grads)
    for c in range(rank, chunks, n_ranks):
        stats = shift(f64(frame.stats), c * td3.N_STATS)
        for k in range(td3.N_STATS):
            stats[k] = 0.0
        rows, first = min(chunk_rows, batch - c * chunk_rows), start + c * chunk_rows
        stats[td3.SAMPLES] = rows
        if stage >= 2:
            td3._critic_chunk(frame, first, rows, work, shift(grads, c * n_critic), stats)
        elif stage == 1:
            td3._targets(frame, first, rows, work, shift(work, frame.at_rows))
    learns_policy = step % frame.policy_delay == 0
    tau = frame.tau if learns_policy and stage >= 6 else 0.0
    _descend_or_meet(
        frame, stage >= 3, rank, n_ranks, barrier, f32(frame.critic_params), f32(frame.critic_mean),
        f32(frame.critic_square), f32(frame.target_params), n_critic, chunks, frame.critic_rate, step, tau,
    )  # fmt: skip
    meet(barrier, n_ranks)
    if learns_policy:
        if stage >= 4:
            for c in range(rank, chunks, n_ranks):
                rows, stats = min(chunk_rows, batch - c * chunk_rows), shift(f64(frame.stats), c * td3.N_STATS)
                td3._actor_chunk(frame, start + c * chunk_rows, rows, work, shift(grads, c * n_actor), stats)
        _descend_or_meet(
            frame, stage >= 5, rank, n_ranks, barrier, f32(frame.actor_params), f32(frame.actor_mean),
            f32(frame.actor_square), f32(frame.target_actor_params), n_actor, chunks, frame.actor_rate,
            step // frame.policy_delay, tau,
        )  # fmt: skip
    if rank == 0 and stage >= 6:
        totals, stats = f64(frame.totals), f64(frame.stats)
        for k in range(chunks * td3.N_STATS):
            totals[k % td3.N_STATS] += stats[k]
    meet(barrier, n_ranks)


@kernel
def td3_stages(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> Any:
    """`td3.td3_update` up to a stage of `TD3_STAGES` (frame `TD3`)."""
    frame = record[0]
    meeting = pointer_to(barrier)
    work = shift(f32(frame.works), rank * frame.work_floats)
    for u in range(frame.n_updates):
        _td3_update(frame, rank, n_ranks, meeting, u * frame.batch, frame.steps + u + 1, work)
    meet(meeting, n_ranks)
    return frame.steps + frame.n_updates


@kernel
def dqn_stages(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> Any:
    """`dqn.dqn_update` up to a stage of `DQN_STAGES` (frame `DQN`)."""
    frame = record[0]
    meeting = pointer_to(barrier)
    work = shift(f32(frame.works), rank * frame.work_floats)
    for u in range(frame.n_updates):
        step = frame.steps + u + 1
        if frame.stage >= 1:
            dqn.look_ahead(frame, rank, n_ranks, meeting, u, step, work)
        if frame.stage >= 2:
            dqn.forward_and_back(frame, rank, n_ranks, meeting, u * frame.batch, work)
        if frame.stage >= 3:
            tau = frame.tau if frame.stage >= 4 and step % frame.target_every == 0 else 0.0
            units.descend_and_follow(frame, rank, n_ranks, meeting, step, tau)
        meet(meeting, n_ranks)
    meet(meeting, n_ranks)
    return frame.steps + frame.n_updates
