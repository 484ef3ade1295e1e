"""Deep Q-learning in one call, for several updates: double, dueling, n-step and prioritised where asked for.

Targets bootstrap from the target network at the online network's choice (van Hasselt et al., 2016,
arXiv:1509.06461) or at its own; a dueling head holds the state's value first and the actions' advantages after it
(Wang et al., 2016, arXiv:1511.06581). The loss is Huber's. Chunks are as in `mileage.kernels.actor_critic`: results
do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.kernels import heads, mlp, optim, random
from mileage.kernels._jit import inner, kernel
from mileage.kernels._pointers import f32, f64, frame_type, i64, pointer_to, shift, u8, u64
from mileage.kernels._team import meet

_F = np.float32
# Columns of `stats` and `totals`: sums over samples.
LOSS, Q_VALUE, SAMPLES = range(3)
N_STATS = 3

DQN = frame_type(
    arrays="params target_params sizes obs actions rewards next_obs terminated discounts weights td_errors adam_mean"
    " adam_square grads squares stats totals works",
    integers="n_sizes n_params n_actions obs_size activation dueling double batch n_updates chunk_rows steps"
    " target_every work_floats at_hidden at_scratch at_rows",
    floats="tau rate beta1 beta2 eps max_norm huber",
)


def layout(rows: int, sizes: tuple[int, ...]) -> dict[str, int]:
    """Where the parts of a rank's workspace for `rows` samples start, and how many floats it has."""
    parts = {
        "at_input": rows * sizes[0],
        "at_hidden": rows * sum(sizes[1:]),
        "at_scratch": 2 * rows * max(sizes[1:]),
        "at_rows": 2 * rows,
    }
    offsets, start = {}, 0
    for name, size in parts.items():
        offsets[name] = start
        start += -(-size // 16) * 16
    offsets["work_floats"] = start
    del offsets["at_input"]  # always the start
    return offsets


@inner
def _q_row(frame: Any, head: Any) -> None:
    """Turn one row of a dueling head (value, advantages) into action values, in place from its second entry on."""
    n = frame.n_actions
    mean = _F(0.0)
    for k in range(n):
        mean += head[1 + k]
    mean /= _F(n)
    for k in range(n):
        head[1 + k] += head[0] - mean


@inner
def _q_values(frame: Any, params: Any, obs: Any, rows: Any, work: Any) -> Any:
    """Action values: pointer to the first row; rows are `n_actions + dueling` apart."""
    for k in range(rows * frame.obs_size):
        work[k] = obs[k]
    hidden = shift(work, frame.at_hidden)
    head = mlp.forward(params, i64(frame.sizes), frame.n_sizes, rows, work, hidden, frame.activation)
    if frame.dueling == 0:
        return head
    for i in range(rows):
        _q_row(frame, shift(head, i * (frame.n_actions + 1)))
    return shift(head, 1)


@inner
def _targets(frame: Any, first: Any, rows: Any, work: Any, out: Any) -> None:
    """Bellman targets of the samples from `first` on."""
    stride, n = frame.n_actions + frame.dueling, frame.n_actions
    next_obs = shift(f32(frame.next_obs), first * frame.obs_size)
    choices = shift(out, rows)
    if frame.double > 0:
        q = _q_values(frame, f32(frame.params), next_obs, rows, work)
        for i in range(rows):
            choices[i] = _F(heads.argmax(shift(q, i * stride), n))
    q = _q_values(frame, f32(frame.target_params), next_obs, rows, work)
    for i in range(rows):
        row = shift(q, i * stride)
        choice = int(choices[i]) if frame.double > 0 else heads.argmax(row, n)
        alive = _F(0.0) if u8(frame.terminated)[first + i] else f32(frame.discounts)[first + i]
        out[i] = f32(frame.rewards)[first + i] + alive * row[choice]


@inner
def _chunk(frame: Any, first: Any, rows: Any, work: Any, grads: Any, stats: Any) -> None:
    """Gradient of the weighted mean Huber loss; writes the temporal-difference errors."""
    targets = shift(work, frame.at_rows)
    _targets(frame, first, rows, work, targets)
    stride, n, huber = frame.n_actions + frame.dueling, frame.n_actions, _F(frame.huber)
    delta = shift(work, frame.at_scratch)
    spare = shift(delta, (frame.at_rows - frame.at_scratch) // 2)
    q = _q_values(frame, f32(frame.params), shift(f32(frame.obs), first * frame.obs_size), rows, work)
    for i in range(rows):
        action = int(f32(frame.actions)[first + i])
        value = q[i * stride + action]
        error = value - targets[i]
        f32(frame.td_errors)[first + i] = error
        size, weight = abs(error), f32(frame.weights)[first + i]
        stats[LOSS] += weight * (_F(0.5) * error * error if size <= huber else huber * (size - _F(0.5) * huber))
        stats[Q_VALUE] += value
        slope = weight * min(max(error, -huber), huber) / _F(frame.batch)
        out = shift(delta, i * stride)
        if frame.dueling > 0:
            out[0] = slope
        for k in range(n):
            chosen = _F(1.0) if k == action else _F(0.0)
            share = _F(1.0) / _F(n) if frame.dueling > 0 else _F(0.0)
            out[frame.dueling + k] = slope * (chosen - share)
    mlp.backward(
        f32(frame.params), i64(frame.sizes), frame.n_sizes, rows, work, shift(work, frame.at_hidden), delta, spare,
        frame.activation, grads,
    )  # fmt: skip


@inner
def _update(frame: Any, rank: Any, n_ranks: Any, barrier: Any, start: Any, step: Any, work: Any) -> None:
    """One update on the samples from `start` on."""
    batch, chunk_rows, n_params = frame.batch, frame.chunk_rows, frame.n_params
    chunks = (batch + chunk_rows - 1) // chunk_rows
    grads = f32(frame.grads)
    for c in range(rank, chunks, n_ranks):
        stats = shift(f64(frame.stats), c * N_STATS)
        for k in range(N_STATS):
            stats[k] = 0.0
        rows = min(chunk_rows, batch - c * chunk_rows)
        stats[SAMPLES] = rows
        _chunk(frame, start + c * chunk_rows, rows, work, shift(grads, c * n_params), stats)
    optim.descend_and_follow(
        rank, n_ranks, barrier, f32(frame.params), grads, f32(frame.adam_mean), f32(frame.adam_square),
        f32(frame.target_params), n_params, chunks, f32(frame.squares), frame.max_norm, frame.rate, frame.beta1,
        frame.beta2, frame.eps, step, frame.tau if step % frame.target_every == 0 else 0.0,
    )  # fmt: skip
    if rank == 0:
        totals, stats = f64(frame.totals), f64(frame.stats)
        for c in range(chunks):
            for k in range(N_STATS):
                totals[k] += stats[c * N_STATS + k]
    meet(barrier, n_ranks)


@kernel
def dqn_update(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> Any:
    """Run `n_updates` updates (frame `DQN`), each on its own `batch` samples; return the number of updates so far.

    Sample arrays hold `n_updates * batch` rows; `td_errors` (n_updates * batch,) float32 receives value minus
    target; every `target_every` updates the target network moves a share `tau` towards the online one; `stats`
    (chunks, 3) and `totals` (3,) float64.
    """
    frame = record[0]
    meeting = pointer_to(barrier)
    work = shift(f32(frame.works), rank * frame.work_floats)
    for u in range(frame.n_updates):
        _update(frame, rank, n_ranks, meeting, u * frame.batch, frame.steps + u + 1, work)
    meet(meeting, n_ranks)
    return frame.steps + frame.n_updates


ACT = frame_type(
    arrays="params sizes obs actions action_rng works",
    integers="n_sizes n_actions obs_size activation dueling n_envs",
    floats="epsilon",
)


@kernel
def dqn_act(record: Any) -> None:
    """Epsilon-greedy actions (N,) int64 for all environments (frame `ACT`)."""
    frame = record[0]
    rows, n = frame.n_envs, frame.n_actions
    stride = n + frame.dueling
    head = mlp.forward(
        f32(frame.params), i64(frame.sizes), frame.n_sizes, rows, f32(frame.obs), f32(frame.works), frame.activation
    )
    for i in range(rows):
        rng_state = shift(u64(frame.action_rng), 2 * i)
        # The value of a dueling head moves all actions alike: the largest advantage is the largest action value.
        choice = heads.argmax(shift(head, i * stride + frame.dueling), n)
        if random.uniform01(rng_state) < _F(frame.epsilon):
            choice = random.integers(rng_state, n)
        i64(frame.actions)[i] = choice
