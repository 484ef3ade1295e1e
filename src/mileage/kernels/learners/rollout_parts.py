"""The parts of the fused rollout, each replayed alone on what a real rollout has stored.

The fused kernel chooses, steps and stores in one loop that cannot be timed from outside. Here the same inner functions
run again over the same memory: inference on the stored observations, the environments with the stored actions from
where they stood, and the stores. Every replay writes what the rollout wrote before: that is tested, bit for bit.
"""

from __future__ import annotations

from mileage.kernels.learners import heads
from mileage.kernels.learners import rollout as fused
from mileage.kernels.machine.jit import inner
from mileage.kernels.machine.kinds import Count, FrameRecord, Index, Ptr32
from mileage.kernels.machine.pointers import f32, f64, shift, u8


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
        fused.advance(frame, lo, rows, row)


@inner
def _inference(frame: FrameRecord, b: Index, lo: Index, rows: Count, work: Ptr32) -> None:
    n_envs = frame.n_envs
    for t in range(frame.n_steps):
        row = t * n_envs + lo
        fused.choose(frame, lo, rows, row, work)
        for i in range(rows):
            if u8(frame.truncated)[row + i]:
                final_obs = shift(f32(frame.final_obs), (lo + i) * frame.obs_size)
                fused.load(frame, final_obs, 1, work)
                spare = shift(work, frame.obs_size)
                fused.critic_values(frame, work, 1, spare, shift(f32(frame.last_values), lo + i))
    fused.value_last(frame, lo, rows, work)


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
        fused.load(frame, obs, rows, shift(f32(frame.store_obs), row * size))
        fused.end_episodes(frame, lo, rows, row, sums)


environments = fused.block_kernel("environments", _environments)
"""Steps all environments through the stored actions (frame `ROLLOUT`)."""
inference = fused.block_kernel("inference", _inference)
"""Values, actions and log-probabilities of all stored observations (frame `ROLLOUT`), those of cut-offs included:
`final_obs` holds the last final observation of every environment, which stands for all of them."""
storage = fused.block_kernel("storage", _storage)
"""Normalises and stores raw observations once more, and adds up the rewards of episodes (frame `ROLLOUT`)."""
