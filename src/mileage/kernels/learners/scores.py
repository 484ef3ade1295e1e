"""What a policy says about transitions that another one made: log-probabilities of their actions, and values.

Off-policy corrections need both under the weights that are about to be updated. Rows are cut into pieces whose size
depends on nothing, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from mileage.kernels.learners import heads, mlp
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.kinds import Count, FrameArray, FrameRecord, Index, Ptr32, PtrI64, Rank, Real32
from mileage.kernels.machine.pointers import f32, frame_type, i64, pointer_to, shift
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
            row, action = shift(head, i * width), shift(f32(frame.actions), (first + i) * frame.action_size)
            if frame.n_actions > 0:
                log_prob = row[int(action[0])] - heads.log_normaliser(row, width)
            else:
                log_prob = _gaussian_log_prob(row, shift(params, frame.log_std_offset), width, action)
            f32(frame.log_probs)[first + i] = log_prob


@kernel
def score(rank: Rank, n_ranks: Count, barrier: PtrI64, record: FrameArray) -> None:
    """Score all rows (frame `SCORE`); `works` holds `work_floats` float32 for each rank."""
    frame = record[0]
    work = shift(f32(frame.works), rank * frame.work_floats)
    for first in range(rank * PIECE_ROWS, frame.n_valued, n_ranks * PIECE_ROWS):
        _piece(frame, first, min(PIECE_ROWS, frame.n_valued - first), work)
    meet(pointer_to(barrier), n_ranks)
