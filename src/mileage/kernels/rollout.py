"""The whole rollout in one call: observe, forward, sample, step, store; its evaluation twin; and its parts, to replay.

Environments are cut into blocks whose size depends on their number alone; a thread takes whole blocks and runs each
through all steps. Blocks share nothing, so threads never wait for each other before the end, and results do not
depend on them.

Rollout arrays are flat over time and environment: row `t * N + i`. A rank's workspace holds the activations of a block,
after the normalised observations where those are not stored.

The fused kernel chooses, steps and stores in one loop that cannot be timed from outside. Here the same inner functions
run again over the same memory: inference on the stored observations, the environments with the stored actions from
where they stood, and the stores. Every replay writes what the rollout wrote before: that is tested, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.kernels import heads, mlp
from mileage.kernels.machine.frames import (
    Array32,
    Count,
    FrameArray,
    FrameRecord,
    Index,
    Ptr32,
    Ptr64,
    PtrI64,
    Rank,
    call_int64,
    extended,
    f32,
    f64,
    frame_type,
    i64,
    pointer_to,
    shift,
    u8,
    u64,
)
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.memory import flush_denormals, restore
from mileage.kernels.machine.team import meet

_F = np.float32

# Of every frame with a policy in it. Observations are (obs - mean) * scale, kept within +-limit. An evaluated row of
# the actor's output starts with `head_skip` numbers that are not about actions (a dueling head's value); with
# `squashed` its actions go through tanh, and log deviations follow the means.
_POLICY = f"""
    {mlp.ACTOR_AND_CRITIC}
    mean scale: (O,) float32
    low high: (A,) float32, bounds of the environment's actions
    action_rng: (N, 2) uint64
    head_skip squashed: int64
    limit: float64
    obs: (N, O) float32, what the environments show
    env_action: (N, A) float32, for the environments
    works: (ranks, work_floats) float32
    n_envs: int64, N
"""
_ENVS = """
    advance: address, of the environment's step function
    state: (N, state_size) float32
    elapsed: (N,) int64
    rng: (N, 2) uint64
    final_obs: (N, O) float32
    state_size max_steps block work_floats: int64, block: environments that one thread runs through all steps
"""
# T * N rows, time first.
_STORE = """
    store_raw_obs store_obs: (T * N, O) float32, as shown and normalised; may be one where nothing is normalised
    store_actions: (T * N, A) float32
    store_log_probs store_values: (T * N,) float32
"""
ROLLOUT = frame_type(
    _POLICY,
    _ENVS,
    _STORE,
    """
    rewards: (T * N,) float32
    terminated truncated: (T * N,) uint8
    truncated_values: (T * N,) float32, of final observations
    last_values: (N,) float32, of the observations after the last step
    episode: (N, 2) float64, return and length of the running episodes
    episode_sums: (blocks, 3) float64, number of those that ended, their returns and lengths; added to
    n_steps: int64, T
    """,
)
EVALUATE = frame_type(
    _POLICY,
    _ENVS,
    """
    actions: (N, A) float32, the policy's
    rewards: (N,) float32
    terminated truncated: (N,) uint8
    returns: (N,) float64
    lengths: (N,) int64
    cut: (N,) uint8, whether the episode was truncated
    deterministic: int64
    """,
)
ACT = frame_type(_POLICY, _STORE)
# The same with actions of several parts, or masks: of them there is one for everything that is possible.
_MASKS = f"""
    {heads.FIELDS}
    masks: (N, M) uint8, what is possible now
    faults: (1,) int64, set to 1 where an environment leaves nothing possible
"""
_STORED_MASKS = "store_masks: (T * N, M) uint8"
_MASK = "mask: address, of the environment's function that writes `masks`; 0 for none"
MASKED_ROLLOUT = extended(ROLLOUT, _MASKS, _STORED_MASKS, _MASK)
MASKED_EVALUATE = extended(EVALUATE, _MASKS, _MASK)
MASKED_ACT = extended(ACT, _MASKS, _STORED_MASKS)


def block_size(n_envs: int) -> int:
    """Environments per block: about a quarter of all, a multiple of 4, from 4 to 32."""
    return min(32, max(4, -(-n_envs // 16) * 4))


@inner
def load(frame: FrameRecord, obs: Ptr32, rows: Count, out: Ptr32) -> None:
    """Normalise `rows` observations from `obs` on into `out`."""
    mean, scale, limit, size = f32(frame.mean), f32(frame.scale), _F(frame.limit), frame.obs_size
    for i in range(rows):
        for k in range(size):
            value = (obs[i * size + k] - mean[k]) * scale[k]
            out[i * size + k] = min(max(value, -limit), limit)


@inner
def critic_values(frame: FrameRecord, x: Ptr32, rows: Count, hidden: Ptr32, out: Ptr32) -> None:
    """Critic values of the normalised observations `x`, into `out`."""
    weights = shift(f32(frame.params), frame.critic_offset)
    value = mlp.forward(weights, i64(frame.critic), frame.n_critic, rows, x, hidden, frame.activation)
    for i in range(rows):
        out[i] = value[i]


@inner
def value_last(frame: FrameRecord, lo: Index, rows: Count, work: Ptr32) -> None:
    """Write `last_values` of `rows` environments from `lo` on: what they show now is worth."""
    load(frame, shift(f32(frame.obs), lo * frame.obs_size), rows, work)
    critic_values(frame, work, rows, shift(work, rows * frame.obs_size), shift(f32(frame.last_values), lo))


@inner
def _valued(frame: FrameRecord, rows: Count, row: Index, work: Ptr32) -> Ptr32:
    """The actor's output for `rows` stored observations from `row` on; their values are stored beside them."""
    x = shift(f32(frame.store_obs), row * frame.obs_size)
    critic_values(frame, x, rows, work, shift(f32(frame.store_values), row))
    return mlp.forward(f32(frame.params), i64(frame.actor), frame.n_actor, rows, x, work, frame.activation)


@inner
def _choose_parts(frame: FrameRecord, lo: Index, rows: Count, row: Index, work: Ptr32) -> None:
    """`choose` among what the stored masks allow."""
    action_size = frame.action_size
    head = _valued(frame, rows, row, work)
    width, log_std = i64(frame.actor)[frame.n_actor - 1], shift(f32(frame.params), frame.log_std_offset)
    for i in range(rows):
        rng_state = shift(u64(frame.action_rng), 2 * (lo + i))
        mask = shift(u8(frame.store_masks), (row + i) * frame.n_choices)
        action = shift(f32(frame.store_actions), (row + i) * action_size)
        log_prob = heads.sample(frame, shift(head, i * width), log_std, mask, rng_state, action)
        heads.parts_to_env_action(frame, action, shift(f32(frame.env_action), (lo + i) * action_size))
        f32(frame.store_log_probs)[row + i] = log_prob


@inner(masked=_choose_parts)
def choose(frame: FrameRecord, lo: Index, rows: Count, row: Index, work: Ptr32) -> None:
    """Values, actions and their log-probabilities for `rows` stored observations from `row` on, stored beside them."""
    action_size = frame.action_size
    head = _valued(frame, rows, row, work)
    width = i64(frame.actor)[frame.n_actor - 1]
    log_std = shift(f32(frame.params), frame.log_std_offset)
    log_probs = shift(f32(frame.store_log_probs), row)
    for i in range(rows):
        rng_state = shift(u64(frame.action_rng), 2 * (lo + i))
        action = shift(f32(frame.store_actions), (row + i) * action_size)
        env_action = shift(f32(frame.env_action), (lo + i) * action_size)
        logits = shift(head, i * width)
        if frame.n_actions > 0:
            choice, log_prob = heads.sample_categorical(logits, width, rng_state)
            action[0] = _F(choice)
            env_action[0] = _F(choice)
        else:
            log_prob = heads.sample_gaussian(logits, log_std, width, rng_state, action)
            heads.to_env_action(frame, action, env_action)
        log_probs[i] = log_prob


@inner
def _store_given_masks(frame: FrameRecord, lo: Index, rows: Count, row: Index) -> None:
    """Keep the masks of `rows` environments from `lo` on beside the observations from `row` on."""
    n = frame.n_choices
    for i in range(rows):
        given, kept = shift(u8(frame.masks), (lo + i) * n), shift(u8(frame.store_masks), (row + i) * n)
        for k in range(n):
            kept[k] = given[k]
        if heads.allow_all_if_none(frame, kept):
            i64(frame.faults)[0] = 1


@inner(masked=_store_given_masks)
def _store_masks(frame: FrameRecord, lo: Index, rows: Count, row: Index) -> None:
    """There are none."""


@inner
def _call_mask(frame: FrameRecord, lo: Index, rows: Count) -> Count:
    """Have the environment write the masks of `rows` environments from `lo` on; less than 0 if one failed."""
    if frame.mask == 0:
        return 0
    state, masks = shift(f32(frame.state), lo * frame.state_size), shift(u8(frame.masks), lo * frame.n_choices)
    return call_int64(frame.mask, (state, shift(i64(frame.elapsed), lo), masks, rows))


@inner(masked=_call_mask)
def ask_masks(frame: FrameRecord, lo: Index, rows: Count) -> Count:
    """There are none."""
    return 0


@inner
def _policy_step(frame: FrameRecord, lo: Index, rows: Count, row: Index, work: Ptr32) -> None:
    """Choose actions for `rows` environments from `lo` on, and store the transitions' first halves from `row` on."""
    obs_size = frame.obs_size
    obs, raw = shift(f32(frame.obs), lo * obs_size), shift(f32(frame.store_raw_obs), row * obs_size)
    for k in range(rows * obs_size):
        raw[k] = obs[k]
    load(frame, obs, rows, shift(f32(frame.store_obs), row * obs_size))
    _store_masks(frame, lo, rows, row)
    choose(frame, lo, rows, row, work)


@inner
def advance(frame: FrameRecord, lo: Index, rows: Count, row: Index) -> Count:
    """Step `rows` environments from `lo` on; rewards and flags go to `row` on.

    Returns how many episodes ended; less than 0 if an environment failed.
    """
    arguments = (
        shift(f32(frame.state), lo * frame.state_size), shift(i64(frame.elapsed), lo), shift(u64(frame.rng), 2 * lo),
        shift(f32(frame.env_action), lo * frame.action_size), shift(f32(frame.obs), lo * frame.obs_size),
        shift(f32(frame.rewards), row), shift(u8(frame.terminated), row), shift(u8(frame.truncated), row),
        shift(f32(frame.final_obs), lo * frame.obs_size), rows, frame.max_steps,
    )  # fmt: skip
    return call_int64(frame.advance, arguments)


@inner
def end_episodes(frame: FrameRecord, lo: Index, rows: Count, row: Index, sums: Ptr64) -> None:
    """Add rewards to running returns; close what ended. `sums` = (count, returns, lengths) of the block."""
    for i in range(rows):
        episode = shift(f64(frame.episode), 2 * (lo + i))
        episode[0] += f32(frame.rewards)[row + i]
        episode[1] += 1.0
        if u8(frame.terminated)[row + i] | u8(frame.truncated)[row + i]:
            sums[0] += 1.0
            sums[1] += episode[0]
            sums[2] += episode[1]
            episode[0] = 0.0
            episode[1] = 0.0


@inner
def _bootstrap(frame: FrameRecord, lo: Index, rows: Count, row: Index, work: Ptr32) -> None:
    """Value the final observation of every truncated step."""
    for i in range(rows):
        if u8(frame.truncated)[row + i]:
            final_obs = shift(f32(frame.final_obs), (lo + i) * frame.obs_size)
            load(frame, final_obs, 1, work)
            critic_values(frame, work, 1, shift(work, frame.obs_size), shift(f32(frame.truncated_values), row + i))


def block_kernel(name: str, play: Any) -> Any:
    """The kernel that shares out blocks of environments over the ranks.

    `play(frame, b, lo, rows, work)` is an inner function for block b: the `rows` environments from `lo` on.
    """

    def blocks(rank: Rank, n_ranks: Count, barrier: PtrI64, record: FrameArray) -> None:
        mode = flush_denormals()
        frame = record[0]
        n_envs, block = frame.n_envs, frame.block
        work = shift(f32(frame.works), rank * frame.work_floats)
        for b in range(rank, (n_envs + block - 1) // block, n_ranks):
            lo = b * block
            play(frame, b, lo, min(block, n_envs - lo), work)
        meet(pointer_to(barrier), n_ranks)
        restore(mode)

    blocks.__name__ = blocks.__qualname__ = name
    return kernel(blocks)


@inner
def _collect(frame: FrameRecord, b: Index, lo: Index, rows: Count, work: Ptr32) -> None:
    """Collect `n_steps` from every environment of a block."""
    n_envs, sums = frame.n_envs, shift(f64(frame.episode_sums), 3 * b)
    for t in range(frame.n_steps):
        row = t * n_envs + lo
        if ask_masks(frame, lo, rows) < 0:
            break
        _policy_step(frame, lo, rows, row, work)
        ended = advance(frame, lo, rows, row)
        if ended < 0:
            break
        end_episodes(frame, lo, rows, row, sums)
        if ended > 0:
            _bootstrap(frame, lo, rows, row, work)
    value_last(frame, lo, rows, work)


rollout = block_kernel("rollout", _collect)
"""Collects `n_steps` from every environment (frame `ROLLOUT`)."""


@inner
def _evaluate_parts(frame: FrameRecord, lo: Index, rows: Count, work: Ptr32) -> None:
    """`_evaluate_step` among what the masks allow."""
    actor, params = i64(frame.actor), f32(frame.params)
    load(frame, shift(f32(frame.obs), lo * frame.obs_size), rows, work)
    hidden = shift(work, rows * frame.obs_size)
    head = mlp.forward(params, actor, frame.n_actor, rows, work, hidden, frame.activation)
    width, n = actor[frame.n_actor - 1], frame.action_size
    for i in range(rows):
        logits = shift(head, i * width + frame.head_skip)
        mask = shift(u8(frame.masks), (lo + i) * frame.n_choices)
        action = shift(f32(frame.actions), (lo + i) * n)
        if heads.allow_all_if_none(frame, mask):
            i64(frame.faults)[0] = 1
        if frame.deterministic > 0:
            heads.mode(frame, logits, mask, action)
        else:
            rng_state = shift(u64(frame.action_rng), 2 * (lo + i))
            heads.sample(frame, logits, shift(params, frame.log_std_offset), mask, rng_state, action)
        heads.parts_to_env_action(frame, action, shift(f32(frame.env_action), (lo + i) * n))


@inner(masked=_evaluate_parts)
def _evaluate_step(frame: FrameRecord, lo: Index, rows: Count, work: Ptr32) -> None:
    """Write the actions of an evaluated policy for `rows` environments from `lo` on."""
    actor, params = i64(frame.actor), f32(frame.params)
    load(frame, shift(f32(frame.obs), lo * frame.obs_size), rows, work)
    hidden = shift(work, rows * frame.obs_size)
    head = mlp.forward(params, actor, frame.n_actor, rows, work, hidden, frame.activation)
    width = actor[frame.n_actor - 1]
    n = frame.action_size
    for i in range(rows):
        logits = shift(head, i * width + frame.head_skip)
        rng_state = shift(u64(frame.action_rng), 2 * (lo + i))
        env_action = shift(f32(frame.env_action), (lo + i) * n)
        if frame.n_actions > 0:
            choice = heads.argmax(logits, frame.n_actions)
            if frame.deterministic == 0:
                choice, _ = heads.sample_categorical(logits, frame.n_actions, rng_state)
            env_action[0] = _F(choice)
        else:
            action = shift(f32(frame.actions), (lo + i) * n)
            for k in range(n):
                action[k] = mlp.tanh(logits[k]) if frame.squashed > 0 else logits[k]
            if frame.deterministic == 0 and frame.squashed > 0 and width == 2 * n:
                # The environment's action is overwritten below: until then it may hold the noise.
                heads.sample_squashed(logits, n, rng_state, action, env_action)
            elif frame.deterministic == 0 and frame.squashed == 0:
                heads.sample_gaussian(logits, shift(params, frame.log_std_offset), n, rng_state, action)
            heads.to_env_action(frame, action, env_action)


@inner
def _play(frame: FrameRecord, b: Index, lo: Index, rows: Count, work: Ptr32) -> None:
    """Play one episode in every environment of a block."""
    returns, lengths = f64(frame.returns), i64(frame.lengths)
    for i in range(lo, lo + rows):
        returns[i] = 0.0
        lengths[i] = 0
    alive = rows
    while alive > 0:
        if ask_masks(frame, lo, rows) < 0:
            break
        _evaluate_step(frame, lo, rows, work)
        if advance(frame, lo, rows, lo) < 0:
            break
        for i in range(lo, lo + rows):
            # A running episode counts its length below zero; the sign turns when it ends.
            if lengths[i] <= 0:
                returns[i] += f32(frame.rewards)[i]
                lengths[i] -= 1
                if u8(frame.terminated)[i] | u8(frame.truncated)[i]:
                    lengths[i] = -lengths[i]
                    u8(frame.cut)[i] = u8(frame.truncated)[i]
                    alive -= 1


evaluate = block_kernel("evaluate", _play)
"""Plays one episode per environment (frame `EVALUATE`); fills `returns`, `lengths` and `cut`."""


@kernel
def act(record: FrameArray, row: Index) -> None:
    """Choose actions for a frame `ACT`, stepped by Python; store the first halves from `row` on."""
    mode = flush_denormals()
    frame = record[0]
    _policy_step(frame, 0, frame.n_envs, row, f32(frame.works))
    restore(mode)


@kernel
def values(record: FrameArray, out: Array32) -> None:
    """Critic values of a frame `ACT`'s observations, into `out` (N,) float32."""
    mode = flush_denormals()
    frame = record[0]
    work = f32(frame.works)
    load(frame, f32(frame.obs), frame.n_envs, work)
    critic_values(frame, work, frame.n_envs, shift(work, frame.n_envs * frame.obs_size), pointer_to(out))
    restore(mode)


# --- The parts of the fused rollout, each replayed alone on what a real rollout has stored ---
@inner
def _environments(frame: FrameRecord, b: Index, lo: Index, rows: Count, work: Ptr32) -> None:
    n_envs, size = frame.n_envs, frame.action_size
    for t in range(frame.n_steps):
        row = t * n_envs + lo
        for i in range(rows):
            action = shift(f32(frame.store_actions), (row + i) * size)
            env_action = shift(f32(frame.env_action), (lo + i) * size)
            if frame.n_actions > 0:
                env_action[0] = action[0]
            else:
                heads.to_env_action(frame, action, env_action)
        advance(frame, lo, rows, row)


@inner
def _inference(frame: FrameRecord, b: Index, lo: Index, rows: Count, work: Ptr32) -> None:
    n_envs = frame.n_envs
    for t in range(frame.n_steps):
        row = t * n_envs + lo
        choose(frame, lo, rows, row, work)
        for i in range(rows):
            if u8(frame.truncated)[row + i]:
                final_obs = shift(f32(frame.final_obs), (lo + i) * frame.obs_size)
                load(frame, final_obs, 1, work)
                spare = shift(work, frame.obs_size)
                critic_values(frame, work, 1, spare, shift(f32(frame.last_values), lo + i))
    value_last(frame, lo, rows, work)


@inner
def _storage(frame: FrameRecord, b: Index, lo: Index, rows: Count, work: Ptr32) -> None:
    n_envs, size, sums = frame.n_envs, frame.obs_size, shift(f64(frame.episode_sums), 3 * b)
    for t in range(frame.n_steps):
        row = t * n_envs + lo
        obs, raw = shift(f32(frame.obs), lo * size), shift(f32(frame.store_raw_obs), row * size)
        # The other way round, as many bytes: what is stored stays as it is.
        for k in range(rows * size):
            obs[k] = raw[k]
        # Where nothing is normalised both are the same memory, and loading is the identity.
        load(frame, obs, rows, shift(f32(frame.store_obs), row * size))
        end_episodes(frame, lo, rows, row, sums)


environments = block_kernel("environments", _environments)
"""Steps all environments through the stored actions (frame `ROLLOUT`)."""
inference = block_kernel("inference", _inference)
"""Values, actions and log-probabilities of all stored observations (frame `ROLLOUT`), those of cut-offs included:
`final_obs` holds the last final observation of every environment, which stands for all of them."""
storage = block_kernel("storage", _storage)
"""Normalises and stores raw observations once more, and adds up the rewards of episodes (frame `ROLLOUT`)."""
