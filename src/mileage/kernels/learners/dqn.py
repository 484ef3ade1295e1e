"""Deep Q-learning in one call, for several updates: double, dueling, n-step and prioritised where asked for.

Targets bootstrap from the target network at the online network's choice (van Hasselt et al., 2016,
arXiv:1509.06461) or at its own; a dueling head holds the state's value first and the actions' advantages after it
(Wang et al., 2016, arXiv:1511.06581). The loss is Huber's. Threads share the network by hidden units
(`learners.units`): results do not depend on their number. The target network stands still for many updates: what
it says of all their samples is computed before them, as matrix products of many rows are faster than those of few.
"""

from __future__ import annotations

import numpy as np

from mileage.kernels.arrays import random
from mileage.kernels.learners import heads, mlp, optim, parts, units
from mileage.kernels.machine.denormals import flush_denormals, restore
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.kinds import Count, FrameArray, FrameRecord, Index, Ptr32, PtrI64, PtrU64, Rank
from mileage.kernels.machine.pointers import extended, f32, f64, frame_type, i64, shift, u8, u64
from mileage.kernels.machine.team import meet

_F = np.float32
# Entries of `totals`: sums over samples.
LOSS, Q_VALUE, SAMPLES = range(3)
N_STATS = 3

# An update ends after `frame.stage`, as in `learners.actor_critic`.
STAGES = ("loop and barriers", "target", "forward and backward", "optimizer", "target network")
_TARGET, _GRADIENT, _OPTIMIZER, LAST_STAGE = range(1, len(STAGES))

# S = n_updates * batch samples, K actions.
DQN = frame_type(
    units.FIELDS,
    """
    obs next_obs: (S, O) float32
    actions rewards discounts weights: (S,) float32
    terminated: (S,) uint8
    td_errors: (S,) float32, receives value minus target
    next_q: (S, K) float32, receives the target network's values
    totals: (N_STATS,) float64, added to
    works: (ranks, work_floats) float32
    n_actions obs_size dueling double n_updates ahead_rows: int64
    steps stage target_every: int64, updates so far; where to end; updates between two target networks
    work_floats at_delta at_q at_slopes: int64, of a rank's own memory
    tau huber: float64, share by which the target network follows; where the loss turns linear
    """,
)
# The same with masks.
MASKED_DQN = extended(DQN, "masks: (S, K) uint8, what is possible in `next_obs`")
# Rows that the target network sees at a time: more are no faster.
AHEAD_ROWS = 128


def layout(batch: int, ahead_rows: int, sizes: tuple[int, ...], pieces: int) -> dict[str, int]:
    """Where the parts of a rank's own memory and of that which ranks share start, and how many floats both have."""
    hidden, delta = units.own_floats(batch, sizes)
    own = {"at_delta": hidden, "at_q": hidden + delta, "at_slopes": hidden + delta + 2 * batch * sizes[-1]}
    floats = max(own["at_slopes"] + batch * sizes[-1], ahead_rows * sum(sizes[1:]))
    return own | {"work_floats": -(-floats // 16) * 16} | units.layout(batch, sizes, pieces)


@inner
def _q_rows(frame: FrameRecord, head: Ptr32, rows: Count) -> Ptr32:
    """Action values: pointer to the first row; rows are `n_actions + dueling` apart.

    Turns rows of a dueling head (value, advantages) into action values in place, from their second entry on.
    """
    n = frame.n_actions
    if frame.dueling == 0:
        return head
    for i in range(rows):
        row = shift(head, i * (n + 1))
        mean = _F(0.0)
        for k in range(n):
            mean += row[1 + k]
        mean /= _F(n)
        for k in range(n):
            row[1 + k] += row[0] - mean
    return shift(head, 1)


@inner
def _next_values(frame: FrameRecord, rank: Rank, n_ranks: Count, first: Index, samples: Count, work: Ptr32) -> None:
    """Write `next_q`, the target network's action values, for `samples` samples from `first` on."""
    stride, n = frame.n_actions + frame.dueling, frame.n_actions
    block = min(frame.ahead_rows, (samples + frame.pieces - 1) // frame.pieces)
    for b in range(rank, (samples + block - 1) // block, n_ranks):
        start, rows = first + b * block, min(block, samples - b * block)
        head = mlp.forward(
            f32(frame.target_params), i64(frame.sizes), frame.n_sizes, rows,
            shift(f32(frame.next_obs), start * frame.obs_size), work, frame.activation,
        )  # fmt: skip
        q = _q_rows(frame, head, rows)
        for i in range(rows):
            for k in range(n):
                f32(frame.next_q)[(start + i) * n + k] = q[i * stride + k]


@inner
def _look_ahead(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, update: Index, step: Index, work: Ptr32
) -> None:
    """Before an update that meets a new target network, or the call's first one: see to all updates until the next."""
    since = (step - 1) % frame.target_every
    if update == 0 or since == 0:
        updates = min(frame.target_every - since, frame.n_updates - update)
        _next_values(frame, rank, n_ranks, update * frame.batch, updates * frame.batch, work)
        meet(barrier, n_ranks)


@inner
def _best_allowed(frame: FrameRecord, values: Ptr32, sample: Index) -> Index:
    """`_best` among what the mask allows."""
    return parts.argmax(values, shift(u8(frame.masks), sample * frame.n_actions), frame.n_actions)


@inner(masked=_best_allowed)
def _best(frame: FrameRecord, values: Ptr32, sample: Index) -> Index:
    """The best action after a sample by its `values`."""
    return heads.argmax(values, frame.n_actions)


@inner
def _slopes(frame: FrameRecord, rank: Rank, first: Index, q: Ptr32, choosers: Ptr32, out: Ptr32) -> None:
    """Gradient of the weighted mean Huber loss by the network's output, for the samples from `first` on.

    `q` and `choosers` are action values of the observations and, for double learning, of those that follow. Every rank
    does this for itself; the first writes the temporal-difference errors and adds up `totals`.
    """
    stride, n, huber = frame.n_actions + frame.dueling, frame.n_actions, _F(frame.huber)
    loss, values = 0.0, 0.0
    for i in range(frame.batch):
        s = first + i
        next_q = shift(f32(frame.next_q), s * n)
        choice = _best(frame, shift(choosers, i * stride) if frame.double > 0 else next_q, s)
        alive = _F(0.0) if u8(frame.terminated)[s] else f32(frame.discounts)[s]
        action = int(f32(frame.actions)[s])
        value = q[i * stride + action]
        error = value - (f32(frame.rewards)[s] + alive * next_q[choice])
        size, weight = abs(error), f32(frame.weights)[s]
        slope = weight * min(max(error, -huber), huber) / _F(frame.batch)
        row = shift(out, i * stride)
        if frame.dueling > 0:
            row[0] = slope
        for k in range(n):
            chosen = _F(1.0) if k == action else _F(0.0)
            share = _F(1.0) / _F(n) if frame.dueling > 0 else _F(0.0)
            row[frame.dueling + k] = slope * (chosen - share)
        if rank == 0:
            f32(frame.td_errors)[s] = error
            loss += weight * (_F(0.5) * error * error if size <= huber else huber * (size - _F(0.5) * huber))
            values += value
    if rank == 0:
        totals = f64(frame.totals)
        totals[LOSS] += loss
        totals[Q_VALUE] += values
        totals[SAMPLES] += frame.batch


@inner
def _forward_and_back(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, first: Index, work: Ptr32
) -> None:
    """Write the gradient of the loss on the samples from `first` on, once `next_q` is there."""
    shared, obs = f32(frame.shared), shift(f32(frame.obs), first * frame.obs_size)
    q, slopes = shift(work, frame.at_q), shift(work, frame.at_slopes)
    choosers = shift(q, frame.batch * (frame.n_actions + frame.dueling))
    if frame.double > 0:
        next_obs, parts = shift(f32(frame.next_obs), first * frame.obs_size), shift(shared, frame.at_more_parts)
        units.forward(frame, rank, n_ranks, barrier, next_obs, work, parts, choosers)
        choosers = _q_rows(frame, choosers, frame.batch)
    units.forward(frame, rank, n_ranks, barrier, obs, work, shift(shared, frame.at_parts), q)
    _slopes(frame, rank, first, _q_rows(frame, q, frame.batch), choosers, slopes)
    units.backward(frame, rank, n_ranks, barrier, obs, work, slopes, shift(work, frame.at_delta))


@inner
def _update(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, start: Index, step: Index, work: Ptr32
) -> None:
    """One update on the samples from `start` on."""
    if frame.stage >= _TARGET:
        _look_ahead(frame, rank, n_ranks, barrier, start // frame.batch, step, work)
    if frame.stage >= _GRADIENT:
        _forward_and_back(frame, rank, n_ranks, barrier, start, work)
    if frame.stage >= _OPTIMIZER:
        tau = frame.tau if frame.stage >= LAST_STAGE and step % frame.target_every == 0 else 0.0
        units.descend_and_follow(frame, rank, n_ranks, barrier, step, tau)
    meet(barrier, n_ranks)


dqn_update = optim.update_kernel("dqn_update", _update)
"""Updates with a frame `DQN`."""

ACT = frame_type(
    """
    params: (n_params,) float32
    sizes: (n_sizes,) int64
    obs: (N, O) float32
    actions: (N,) int64
    action_rng: (N, 2) uint64
    works: (floats,) float32
    n_sizes n_actions obs_size activation dueling n_envs: int64
    epsilon: float64
    """
)
MASKED_ACT = extended(ACT, "masks: (N, K) uint8")


@inner
def _explore_allowed(frame: FrameRecord, values: Ptr32, i: Index, rng_state: PtrU64) -> Index:
    """`_explore` among what the mask allows."""
    n = frame.n_actions
    mask = shift(u8(frame.masks), i * n)
    choice = parts.argmax(values, mask, n)
    if random.uniform01(rng_state) < _F(frame.epsilon):
        choice = parts.any_allowed(mask, n, rng_state)
    return choice


@inner(masked=_explore_allowed)
def _explore(frame: FrameRecord, values: Ptr32, i: Index, rng_state: PtrU64) -> Index:
    """The best action of environment `i` by its `values`, or a random one."""
    choice = heads.argmax(values, frame.n_actions)
    if random.uniform01(rng_state) < _F(frame.epsilon):
        choice = random.integers(rng_state, frame.n_actions)
    return choice


@kernel
def dqn_act(record: FrameArray) -> None:
    """Epsilon-greedy actions (N,) int64 for all environments (frame `ACT`)."""
    mode = flush_denormals()
    frame = record[0]
    rows, stride = frame.n_envs, frame.n_actions + frame.dueling
    head = mlp.forward(
        f32(frame.params), i64(frame.sizes), frame.n_sizes, rows, f32(frame.obs), f32(frame.works), frame.activation
    )
    for i in range(rows):
        rng_state = shift(u64(frame.action_rng), 2 * i)
        # The value of a dueling head moves all actions alike: the largest advantage is the largest action value.
        i64(frame.actions)[i] = _explore(frame, shift(head, i * stride + frame.dueling), i, rng_state)
    restore(mode)
