"""What a policy says about transitions that another one made: log-probabilities of their actions, and values.

Off-policy corrections need both under the weights that are about to be updated. Rows are cut into pieces whose size
depends on nothing, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from mileage.kernels.learners import heads, mlp, parts
from mileage.kernels.machine.denormals import flush_denormals, restore
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.kinds import Count, FrameArray, FrameRecord, Index, Ptr32, PtrI64, Rank, Real32
from mileage.kernels.machine.pointers import extended, f32, frame_type, i64, pointer_to, shift, u8
from mileage.kernels.machine.team import meet

_F = np.float32
# Rows of one piece of work: enough for matrix products to be worth their call.
PIECE_ROWS = 128

SCORE = frame_type(
    mlp.ACTOR_AND_CRITIC,
    """
    obs: (n_valued, O) float32, normalised; the first `n_scored` have actions
    actions: (n_scored, A) float32
    log_probs: (n_scored,) float32, written
    values: (n_valued,) float32, written
    works: (ranks, work_floats) float32
    n_scored n_valued work_floats: int64
    """,
)
# The same with actions of several parts, or masks.
MASKED_SCORE = extended(SCORE, parts.FIELDS, "masks: (n_scored, M) uint8")


def pieces(n_valued: int) -> int:
    """Pieces of work that `n_valued` rows are cut into."""
    return -(-n_valued // PIECE_ROWS)


def work_floats(*networks: tuple[int, ...]) -> int:
    """Floats of workspace per rank: the activations of a piece."""
    return PIECE_ROWS * max(sum(sizes[1:]) for sizes in networks)


@inner
def _gaussian_log_prob(mean: Ptr32, log_std: Ptr32, n: Count, action: Ptr32) -> Real32:
    """Log-density of `action` (n,) under independent Gaussians."""
    log_prob = _F(0.0)
    for k in range(n):
        z = (action[k] - mean[k]) * _F(math.exp(-log_std[k]))
        log_prob -= _F(0.5) * z * z + log_std[k] + heads.HALF_LOG_TWO_PI
    return log_prob


@inner
def _log_prob_of_parts(frame: FrameRecord, head: Ptr32, width: Count, row: Index) -> Real32:
    """`_log_prob` among what the masks allow; overwrites `head`."""
    action = shift(f32(frame.actions), row * frame.action_size)
    mask, log_std = shift(u8(frame.masks), row * frame.n_choices), shift(f32(frame.params), frame.log_std_offset)
    log_prob, _ = parts.log_probs(frame, head, log_std, mask, action, head)
    return log_prob


@inner(masked=_log_prob_of_parts)
def _log_prob(frame: FrameRecord, head: Ptr32, width: Count, row: Index) -> Real32:
    """Log-probability of the action in a row of the rollout, whose actor's output is `head` (width,)."""
    action = shift(f32(frame.actions), row * frame.action_size)
    if frame.n_actions > 0:
        return head[int(action[0])] - heads.log_normaliser(head, width)
    return _gaussian_log_prob(head, shift(f32(frame.params), frame.log_std_offset), width, action)


@inner
def _piece(frame: FrameRecord, first: Index, rows: Count, work: Ptr32) -> None:
    """Values of `rows` rows from `first` on, and log-probabilities of those that have actions."""
    params, x = f32(frame.params), shift(f32(frame.obs), first * frame.obs_size)
    critic = shift(params, frame.critic_offset)
    value = mlp.forward(critic, i64(frame.critic), frame.n_critic, rows, x, work, frame.activation)
    for i in range(rows):
        f32(frame.values)[first + i] = value[i]
    scored = min(rows, frame.n_scored - first)
    if scored > 0:
        actor = i64(frame.actor)
        width = actor[frame.n_actor - 1]
        head = mlp.forward(params, actor, frame.n_actor, scored, x, work, frame.activation)
        for i in range(scored):
            f32(frame.log_probs)[first + i] = _log_prob(frame, shift(head, i * width), width, first + i)


@kernel
def score(rank: Rank, n_ranks: Count, barrier: PtrI64, record: FrameArray) -> None:
    """Score all rows (frame `SCORE`); `works` holds `work_floats` float32 for each rank."""
    mode = flush_denormals()
    frame = record[0]
    work = shift(f32(frame.works), rank * frame.work_floats)
    for first in range(rank * PIECE_ROWS, frame.n_valued, n_ranks * PIECE_ROWS):
        _piece(frame, first, min(PIECE_ROWS, frame.n_valued - first), work)
    meet(pointer_to(barrier), n_ranks)
    restore(mode)
