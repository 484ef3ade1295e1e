"""Rings of transitions, and those with priorities: store rows, draw indices, gather batches, in plain memory.

A row holds one record per environment, and rows follow each other in time: record `row * n_envs + env`. The observation
after a transition lies `n_envs` records further on. A record holds

    obs | next_obs (only if stored) | action | reward (float32) | state (int64)

where state is 1 (terminated) + 2 (truncated) + 4 × (1 + row of the final observation, if one is kept). All that a
sample needs lies together in one or two cache lines. Bytes are copied as they are, so one compiled kernel serves every
dtype and shape.

`counters` (int64): rows written, rows begun, number of free final rows. A row is begun before its memory is touched and
written when it is complete: if more are begun than written, an interrupted writer left the last one half done.
"""

from __future__ import annotations

import math

import numpy as np

from mileage.kernels import sumtree
from mileage.kernels.machine.frames import (
    Array32,
    ArrayI64,
    ArrayU8,
    Count,
    Flag,
    FrameArray,
    FrameRecord,
    Index,
    PtrU8,
    Real32,
    Real64,
    f32,
    f64,
    frame_type,
    i64,
    shift,
    u8,
    u64,
)
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.memory import as_i64, copy_bytes, fence, float_at, prefetch, stream_bytes
from mileage.kernels.random import integers

# --- Rings of transitions: store rows, draw indices, gather batches; one record per transition in plain memory ---
# Where the transitions to be pushed are.
SOURCE = "source_obs source_actions source_rewards source_terminated source_truncated source_next_obs"
SOURCE_INTEGERS = "source_n source_wide_rewards"
RING = frame_type(
    f"""
    records: (rows, n_envs, record) uint8
    finals: (places, obs_bytes) uint8, last observations of episodes
    free: (places,) int64, places of `finals` that nothing refers to
    counters: (8,) int64
    rng: (2,) uint64
    {SOURCE}: (n_envs, ...) bytes
    n_envs rows record obs_bytes action_bytes next_at action_at reward_at state_at: int64, sizes and places in bytes
    n_step {SOURCE_INTEGERS}: int64
    gamma: float64
    """
)
BATCH = frame_type(
    """
    obs next_obs actions: (size, ...) bytes
    rewards discounts weights: (size,) float32
    terminated truncated: (size,) uint8
    indices: (size,) int64
    size: int64
    """
)
WRITTEN, BEGUN, FREE = 0, 1, 2
TERMINATED, TRUNCATED = 1, 2

# Observations from this size on, and batches that no cache holds, are written past the caches.
_LONG_COPY = 16_384
_PAST_CACHE = 1 << 22
_LINE = 64


@inner
def record_at(ring: FrameRecord, env: Index, row: Index) -> PtrU8:
    """Pointer to the bytes of one record."""
    return shift(u8(ring.records), (row * ring.n_envs + env) * ring.record)


@inner
def begin_row(ring: FrameRecord) -> Index:
    """Announce a row and return its place in the ring; whatever was there can no longer be sampled."""
    counters = i64(ring.counters)
    written = counters[WRITTEN]
    counters[BEGUN] = written + 1
    return written % ring.rows


@inner
def commit_row(ring: FrameRecord) -> None:
    """The row that was begun is complete in all environments."""
    counters = i64(ring.counters)
    counters[WRITTEN] = counters[BEGUN]


@inner
def _release_final(ring: FrameRecord, state: Index) -> None:
    """The record of `state` is about to be overwritten: the final observation it keeps is free again."""
    counters = i64(ring.counters)
    i64(ring.free)[counters[FREE]] = (state >> 2) - 1
    counters[FREE] += 1


@inner
def _keep_final(ring: FrameRecord, next_obs: PtrU8) -> Index:
    """Keep a final observation and return 1 + its row, or 0 if no row is free."""
    counters = i64(ring.counters)
    if counters[FREE] == 0:
        return 0
    counters[FREE] -= 1
    row = i64(ring.free)[counters[FREE]]
    copy_bytes(shift(u8(ring.finals), row * ring.obs_bytes), next_obs, ring.obs_bytes)
    return row + 1


@inner
def _copy_obs(out: PtrU8, obs: PtrU8, n: Count) -> None:
    if n >= _LONG_COPY:
        stream_bytes(out, obs, n)
    else:
        copy_bytes(out, obs, n)


@inner
def store(
    ring: FrameRecord, env: Index, row: Index, obs: PtrU8, action: PtrU8, reward: Real32, terminated: Flag,
    truncated: Flag, next_obs: PtrU8,
) -> Flag:  # fmt: skip
    """Write one transition; `obs`, `action`, `next_obs` point to bytes. False if no final row is free."""
    record = record_at(ring, env, row)
    at_state = as_i64(shift(record, ring.state_at))
    # Reading what is about to be overwritten would wait for memory, so only where it may keep a final row.
    if ring.next_at == 0 and at_state[0] > 3:
        _release_final(ring, at_state[0])
    _copy_obs(record, obs, ring.obs_bytes)
    copy_bytes(shift(record, ring.action_at), action, ring.action_bytes)
    float_at(record, ring.reward_at)[0] = reward
    state = (TERMINATED if terminated else 0) + (TRUNCATED if truncated else 0)
    if ring.next_at > 0:
        _copy_obs(shift(record, ring.next_at), next_obs, ring.obs_bytes)
    elif state > 0:
        final = _keep_final(ring, next_obs)
        at_state[0] = state + (final << 2)
        return final > 0
    at_state[0] = state
    return True


@inner
def _push_short(ring: FrameRecord, first: Index, row: Index) -> Flag:
    """`store` for one row of the bound source, with everything that stays the same kept out of the loop.

    A store through a pointer might change the frame, for all the compiler knows: it would be read anew each time.
    """
    obs, actions, next_obs = u8(ring.source_obs), u8(ring.source_actions), u8(ring.source_next_obs)
    terminated, truncated = u8(ring.source_terminated), u8(ring.source_truncated)
    rewards, wide_rewards, wide = f32(ring.source_rewards), f64(ring.source_rewards), ring.source_wide_rewards
    obs_bytes, action_bytes, size = ring.obs_bytes, ring.action_bytes, ring.record
    next_at, action_at, reward_at, state_at = ring.next_at, ring.action_at, ring.reward_at, ring.state_at
    record, fits = record_at(ring, 0, row), True
    for i in range(first, first + ring.n_envs):
        at_state = as_i64(shift(record, state_at))
        # Reading what is about to be overwritten would wait for memory, so only where it may keep a final row.
        if next_at == 0 and at_state[0] > 3:
            _release_final(ring, at_state[0])
        copy_bytes(record, shift(obs, i * obs_bytes), obs_bytes)
        copy_bytes(shift(record, action_at), shift(actions, i * action_bytes), action_bytes)
        float_at(record, reward_at)[0] = np.float32(wide_rewards[i]) if wide else rewards[i]
        state = np.int64(terminated[i] != 0) + 2 * np.int64(truncated[i] != 0)
        if next_at > 0:
            copy_bytes(shift(record, next_at), shift(next_obs, i * obs_bytes), obs_bytes)
        elif state > 0:
            final = _keep_final(ring, shift(next_obs, i * obs_bytes))
            fits = fits and final > 0
            state += final << 2
        at_state[0] = state
        record = shift(record, size)
    return fits


@inner
def _push_long(ring: FrameRecord, first: Index, row: Index) -> Flag:
    """`store` for one row of the bound source where copying outweighs everything else."""
    fits = True
    for env in range(ring.n_envs):
        i = first + env
        reward = np.float32(f64(ring.source_rewards)[i]) if ring.source_wide_rewards else f32(ring.source_rewards)[i]
        stored = store(
            ring, env, row, shift(u8(ring.source_obs), i * ring.obs_bytes),
            shift(u8(ring.source_actions), i * ring.action_bytes), reward, u8(ring.source_terminated)[i] != 0,
            u8(ring.source_truncated)[i] != 0, shift(u8(ring.source_next_obs), i * ring.obs_bytes),
        )  # fmt: skip
        fits = fits and stored
    fence()
    return fits


@inner
def push_source(ring: FrameRecord) -> Flag:
    """Store the transitions of the bound source, row by row; False if there was no room for a final observation."""
    fits = True
    for first in range(0, ring.source_n, ring.n_envs):
        row = begin_row(ring)
        stored = _push_long(ring, first, row) if ring.obs_bytes >= _LONG_COPY else _push_short(ring, first, row)
        fits = fits and stored
        commit_row(ring)
    return fits


@kernel
def push(rings: FrameArray) -> Flag:
    """`push_source` from Python."""
    return push_source(rings[0])


@inner
def oldest(ring: FrameRecord) -> Index:
    """Number of the oldest row that is still whole."""
    counters = i64(ring.counters)
    return max(0, max(counters[BEGUN], counters[WRITTEN]) - ring.rows)


@inner
def newest(ring: FrameRecord) -> Index:
    """Number of the row after the last that can be sampled: without stored next observations, one has to follow."""
    written = i64(ring.counters)[WRITTEN]
    return written if ring.next_at > 0 else written - 1


@inner
def prefetch_record(ring: FrameRecord, index: Index) -> None:
    """Have the lines of a record under way while others are drawn, instead of waiting for each in turn.

    Of a long record only the first lines: the rest follows in order, which the hardware foresees by itself.
    """
    at = shift(u8(ring.records), index * ring.record)
    prefetch(at)
    prefetch(shift(at, min(_LINE, ring.record - 1)))
    if ring.state_at >= 2 * _LINE:
        prefetch(shift(at, ring.action_at))
    if ring.next_at == 0:
        following = index + ring.n_envs
        if following < ring.rows * ring.n_envs:
            prefetch(shift(u8(ring.records), following * ring.record))


@inner
def draw(ring: FrameRecord, batch: FrameRecord) -> None:
    """Draw a uniform index for every row of the batch."""
    first = oldest(ring)
    count = (newest(ring) - first) * ring.n_envs
    first = first % ring.rows * ring.n_envs
    end = ring.rows * ring.n_envs
    out, rng = i64(batch.indices), u64(ring.rng)
    for b in range(batch.size):
        index = first + integers(rng, count)
        if index >= end:
            index -= end
        out[b] = index
        prefetch_record(ring, index)


@inner
def gather(ring: FrameRecord, batch: FrameRecord, start: Index, stop: Index) -> None:
    """Copy the transitions at `batch.indices` into rows `start` to `stop` of the batch, n-step returns included."""
    # Kept in locals: a store through a pointer might change the frame, for all the compiler knows.
    n_envs, record, n_step = ring.n_envs, ring.record, ring.n_step
    obs_bytes, action_bytes = ring.obs_bytes, ring.action_bytes
    next_at, action_at, reward_at, state_at = ring.next_at, ring.action_at, ring.reward_at, ring.state_at
    gamma = np.float32(ring.gamma)
    records, finals, indices = u8(ring.records), u8(ring.finals), i64(batch.indices)
    out_obs, out_next, out_actions = u8(batch.obs), u8(batch.next_obs), u8(batch.actions)
    rewards, discounts = f32(batch.rewards), f32(batch.discounts)
    terminated, truncated = u8(batch.terminated), u8(batch.truncated)
    end = ring.rows * n_envs
    # The known future ends with the last row that can be sampled.
    last = (newest(ring) - 1) % ring.rows * n_envs
    streams = obs_bytes >= _LONG_COPY and obs_bytes * batch.size >= _PAST_CACHE
    for b in range(start, stop):
        index = indices[b]
        at = shift(records, index * record)
        if streams:
            stream_bytes(shift(out_obs, b * obs_bytes), at, obs_bytes)
        else:
            copy_bytes(shift(out_obs, b * obs_bytes), at, obs_bytes)
        copy_bytes(shift(out_actions, b * action_bytes), shift(at, action_at), action_bytes)
        total, discount = float_at(at, reward_at)[0], gamma
        state = as_i64(shift(at, state_at))[0]
        for _ in range(1, n_step):
            if state & 3 or last <= index < last + n_envs:
                break
            index += n_envs if index + n_envs < end else n_envs - end
            at = shift(records, index * record)
            total += discount * float_at(at, reward_at)[0]
            discount *= gamma
            state = as_i64(shift(at, state_at))[0]
        if next_at > 0:
            after = shift(at, next_at)
        elif state & 3:
            after = shift(finals, ((state >> 2) - 1) * obs_bytes)
        else:
            after = shift(records, (index + (n_envs if index + n_envs < end else n_envs - end)) * record)
        if streams:
            stream_bytes(shift(out_next, b * obs_bytes), after, obs_bytes)
        else:
            copy_bytes(shift(out_next, b * obs_bytes), after, obs_bytes)
        rewards[b] = total
        discounts[b] = np.float32(0.0) if state & TERMINATED else discount
        terminated[b] = state & TERMINATED
        truncated[b] = (state & TRUNCATED) >> 1
    if streams:
        fence()


@kernel
def sample(rings: FrameArray, batches: FrameArray) -> Flag:
    """Draw and gather a whole batch."""
    draw(rings[0], batches[0])
    gather(rings[0], batches[0], 0, batches[0].size)
    return True


@kernel
def draw_only(rings: FrameArray, batches: FrameArray) -> Flag:
    """Draw the indices of a batch."""
    draw(rings[0], batches[0])
    return True


@kernel
def gather_rows(start: Index, stop: Index, rings: FrameArray, batches: FrameArray) -> Flag:
    """Gather part of a batch whose indices are drawn; parts share nothing and may run on several threads."""
    gather(rings[0], batches[0], start, stop)
    return True


@kernel
def bind(
    batches: FrameArray, obs: ArrayU8, next_obs: ArrayU8, actions: ArrayU8, rewards: Array32, discounts: Array32,
    terminated: ArrayU8, truncated: ArrayU8, indices: ArrayI64, weights: Array32,
) -> Flag:  # fmt: skip
    """Enter the addresses of a batch's arrays, one dimension each, in its frame; ten times faster than from Python."""
    batch = batches[0]
    batch.obs, batch.next_obs, batch.actions = obs.ctypes.data, next_obs.ctypes.data, actions.ctypes.data
    batch.rewards, batch.discounts = rewards.ctypes.data, discounts.ctypes.data
    batch.terminated, batch.truncated = terminated.ctypes.data, truncated.ctypes.data
    batch.indices, batch.weights, batch.size = indices.ctypes.data, weights.ctypes.data, indices.shape[0]
    return True


# --- A ring and a tree of priorities together: admitting new rows, and sampling in one call ---
@inner
def _set_row(ring: FrameRecord, tree: FrameRecord, number: Index, value: Real64) -> None:
    """Give row `number` the priority `value` in all environments."""
    sums = f64(tree.sums)
    row = number % ring.rows
    for env in range(ring.n_envs):
        sums[row * ring.n_envs + env] = value
    for level in range(1, tree.levels + 1):
        previous = -1
        for env in range(ring.n_envs):
            node = (row * ring.n_envs + env) >> (sumtree.BITS * level)
            if node != previous:
                sumtree.refresh(tree, level, node)
                previous = node


@inner
def admit_rows(ring: FrameRecord, tree: FrameRecord, before: Index, value: Real64) -> None:
    """Bring the tree up to date with the rows begun since `before`: sampleable rows get `value`, a pending one 0."""
    counters = i64(ring.counters)
    written, begun = counters[WRITTEN], counters[BEGUN]
    if ring.next_at > 0:
        for number in range(max(before, written - ring.rows), written):
            _set_row(ring, tree, number, value)
    else:
        # The row that was newest before has got its successor.
        for number in range(max(before - 1, written - ring.rows, 0), written - 1):
            _set_row(ring, tree, number, value)
        if written > 0:
            _set_row(ring, tree, written - 1, 0.0)
    if begun > written:
        _set_row(ring, tree, begun - 1, 0.0)


@kernel
def admit(rings: FrameArray, trees: FrameArray, before: Index, value: Real64) -> Flag:
    """`admit_rows` from Python."""
    admit_rows(rings[0], trees[0], before, value)
    return True


@kernel
def sample_by_priority(
    rings: FrameArray, trees: FrameArray, batches: FrameArray, beta: Real64, with_rows: Flag
) -> Flag:
    """Draw the indices and importance weights of a batch, and gather its rows if asked."""
    ring, tree, batch = rings[0], trees[0], batches[0]
    indices, weights, leaves = i64(batch.indices), f32(batch.weights), f64(tree.sums)
    rng, share = u64(ring.rng), sumtree.total_of(tree) / batch.size
    for b in range(batch.size):
        indices[b] = sumtree.draw_share(tree, rng, b, share)
        prefetch_record(ring, indices[b])
    least = sumtree.minimum_of(tree)
    for b in range(batch.size):
        weights[b] = np.float32(math.pow(leaves[indices[b]] / least, -beta))
    if with_rows:
        gather(ring, batch, 0, batch.size)
    return True
