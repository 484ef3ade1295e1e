"""What learners with two critics share: a rank's workspace, the critics' targets and gradients, and the passes of Adam.

Two critics on (observation, action) and their slowly moving targets; the smaller of both values counts (Fujimoto et
al., 2018, arXiv:1802.09477). A batch is cut into chunks as in `mileage.kernels.actor_critic`, so that results
do not depend on the number of threads.

The workspace of a rank, for the samples of one chunk; offsets are in floats, each a multiple of 16:

    0            at_inputs         at_actor      at_critics                 at_scratch        at_rows      work_floats
    | (rows, O)  | (rows, O + A)   | actor's     | critics' activations     | delta | spare   | per row    |
    | actor's    | critics' input  | activations | first | second           | for backward    | numbers    |

The last part holds what is one or a few numbers per row: targets, actions, log-probabilities, gradients by the input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.kernels import mlp, optim
from mileage.kernels.heads import to_env_action
from mileage.kernels.machine import team
from mileage.kernels.machine.frames import (
    Count,
    FrameArray,
    FrameRecord,
    Index,
    Ptr32,
    Ptr64,
    PtrI64,
    Rank,
    Real64,
    f32,
    f64,
    i64,
    shift,
    u8,
)
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.memory import flush_denormals, restore

_F = np.float32
# Columns of `stats` and `totals`: sums over samples. The third is a learner's own.
CRITIC_LOSS, _ACTOR_LOSS, _OWN, Q_VALUE, SAMPLES = range(5)
N_STATS = 5
# The first stages that an update can end after, as in `actor_critic`; what follows is the learner's own.
FIRST_STAGES = ("loop and barriers", "target", "critic", "critic optimizer")
TARGET, CRITIC, CRITIC_OPTIMIZER = range(1, len(FIRST_STAGES))

# Fields that the frames of such learners share; S = n_updates * batch samples.
FIELDS = """
    actor_params: (n_actor_params,) float32
    critic_params target_params: (n_critic_params,) float32, both critics one after the other
    actor: (n_actor,) int64, widths, inputs first
    critic: (n_critic,) int64, widths of each critic
    obs next_obs: (S, O) float32
    actions: (S, A) float32
    rewards discounts: (S,) float32
    terminated: (S,) uint8
    noise_rng: (batch, 2) uint64
    noise: (draws, S, A) float32, receives the noise of actions
    actor_mean actor_square: (n_actor_params,) float32, of Adam
    critic_mean critic_square: (n_critic_params,) float32, of Adam
    grads: (chunks, most parameters) float32
    squares: (blocks,) float32, sums of squares of gradients
    stats: (chunks, N_STATS) float64
    totals: (N_STATS,) float64, added to
    works: (ranks, work_floats) float32
    n_actor n_critic n_actor_params n_critic_params obs_size action_size activation: int64
    batch n_updates chunk_rows steps stage: int64, steps: updates so far; stage: where to end
    work_floats at_inputs at_actor at_critics at_scratch at_rows: int64, of a rank's workspace
    tau: float64, share by which targets follow
    actor_rate critic_rate beta1 beta2 eps max_norm: float64, of Adam; gradients' norm, 0 for any
"""
# Of frames for one step of the environments.
ACT_FIELDS = """
    actor_params: (n_actor_params,) float32
    actor: (n_actor,) int64
    obs: (N, O) float32
    actions: (N, A) float32, in [-1, 1]
    env_action: (N, A) float32, within the bounds
    low high: (A,) float32
    action_rng: (N, 2) uint64
    works: (floats,) float32
    n_actor obs_size action_size activation n_envs: int64
"""


def layout(rows: int, actor: tuple[int, ...], critic: tuple[int, ...]) -> dict[str, int]:
    """Where the parts of a rank's workspace for `rows` samples start, and how many floats it has."""
    widest = max(*actor[1:], *critic[1:])
    sizes = {
        "at_observations": rows * actor[0],
        "at_inputs": rows * critic[0],
        "at_actor": rows * sum(actor[1:]),
        "at_critics": 2 * rows * sum(critic[1:]),
        "at_scratch": 2 * rows * widest,
        "at_rows": rows * (4 * critic[0] + 4),
    }
    offsets = team.layout(sizes, "work_floats")
    del offsets["at_observations"]  # always the start
    return offsets


@inner
def scratch(frame: FrameRecord, work: Ptr32) -> tuple[Ptr32, Ptr32]:
    """Both scratch ranges for a backward pass: delta, which starts as the gradient by the output, and spare."""
    delta = shift(work, frame.at_scratch)
    return delta, shift(delta, (frame.at_rows - frame.at_scratch) // 2)


@inner
def second_critic(frame: FrameRecord, params: Ptr32) -> Ptr32:
    """The second critic's parameters, after the first one's."""
    return shift(params, frame.n_critic_params // 2)


@inner
def join(frame: FrameRecord, obs: Ptr32, actions: Ptr32, rows: Count, out: Ptr32) -> None:
    """Put observations and actions side by side, the critics' input."""
    n_obs, n_act = frame.obs_size, frame.action_size
    for i in range(rows):
        row = shift(out, i * (n_obs + n_act))
        for k in range(n_obs):
            row[k] = obs[i * n_obs + k]
        for k in range(n_act):
            row[n_obs + k] = actions[i * n_act + k]


@inner
def actor_forward(frame: FrameRecord, params: Ptr32, obs: Ptr32, rows: Count, work: Ptr32) -> Ptr32:
    """An actor's raw output for `obs`, which are copied to the start of the workspace."""
    for k in range(rows * frame.obs_size):
        work[k] = obs[k]
    return mlp.forward(
        params, i64(frame.actor), frame.n_actor, rows, work, shift(work, frame.at_actor), frame.activation
    )


@inner
def actor_backward(frame: FrameRecord, rows: Count, work: Ptr32, grads: Ptr32) -> None:
    """Gradient of the actor's parameters, from that by its output at the start of the scratch range."""
    delta, spare = scratch(frame, work)
    mlp.backward(
        f32(frame.actor_params), i64(frame.actor), frame.n_actor, rows, work, shift(work, frame.at_actor), delta, spare,
        frame.activation, grads,
    )  # fmt: skip


@inner
def smaller_values(frame: FrameRecord, obs: Ptr32, actions: Ptr32, rows: Count, work: Ptr32, out: Ptr32) -> None:
    """The smaller of both target critics' values."""
    inputs, hidden, weights = shift(work, frame.at_inputs), shift(work, frame.at_critics), f32(frame.target_params)
    join(frame, obs, actions, rows, inputs)
    for c in range(2):
        value = mlp.forward(weights, i64(frame.critic), frame.n_critic, rows, inputs, hidden, frame.activation)
        for i in range(rows):
            out[i] = value[i] if c == 0 else min(out[i], value[i])
        weights = second_critic(frame, weights)


@inner
def bellman(frame: FrameRecord, first: Index, rows: Count, values: Ptr32) -> None:
    """Turn values of next observations into the targets of the samples from `first` on, in place."""
    for i in range(rows):
        alive = _F(0.0) if u8(frame.terminated)[first + i] else f32(frame.discounts)[first + i]
        values[i] = f32(frame.rewards)[first + i] + alive * values[i]


@inner
def critic_gradient(
    frame: FrameRecord, first: Index, rows: Count, targets: Ptr32, factor: Real64, work: Ptr32, grads: Ptr32,
    stats: Ptr64,
) -> None:  # fmt: skip
    """Gradient of `factor` times the summed squared errors of both critics, averaged over the batch."""
    inputs, hidden = shift(work, frame.at_inputs), shift(work, frame.at_critics)
    delta, spare = scratch(frame, work)
    obs = shift(f32(frame.obs), first * frame.obs_size)
    join(frame, obs, shift(f32(frame.actions), first * frame.action_size), rows, inputs)
    critic, n, kind, weights = i64(frame.critic), frame.n_critic, frame.activation, f32(frame.critic_params)
    weight = _F(2.0 * factor / frame.batch)
    for _ in range(2):
        value = mlp.forward(weights, critic, n, rows, inputs, hidden, kind)
        for i in range(rows):
            error = value[i] - targets[i]
            stats[CRITIC_LOSS] += factor * error * error
            stats[Q_VALUE] += 0.5 * value[i]
            delta[i] = weight * error
        mlp.backward(weights, critic, n, rows, inputs, hidden, delta, spare, kind, grads)
        weights, grads = second_critic(frame, weights), second_critic(frame, grads)


@inner
def n_chunks(frame: FrameRecord) -> Count:
    """Chunks that a batch is cut into."""
    return (frame.batch + frame.chunk_rows - 1) // frame.chunk_rows


@inner
def chunk(frame: FrameRecord, c: Index) -> tuple[Index, Count, Ptr64]:
    """First sample of a chunk within its batch, its number of rows, and its statistics."""
    first = c * frame.chunk_rows
    return first, min(frame.chunk_rows, frame.batch - first), shift(f64(frame.stats), c * N_STATS)


@inner
def begin_statistics(stats: Ptr64, rows: Count) -> None:
    """Statistics of a chunk of which nothing is known but its number of rows."""
    for k in range(N_STATS):
        stats[k] = 0.0
    stats[SAMPLES] = rows


@inner
def descend_critics(frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, step: Index, tau: Real64) -> None:
    """Adam's step of both critics, after which their targets follow by a share `tau`; before its stage, its waits."""
    optim.descend_and_follow(
        rank, n_ranks, barrier, f32(frame.critic_params), f32(frame.grads), f32(frame.critic_mean),
        f32(frame.critic_square), f32(frame.target_params),
        frame.n_critic_params if frame.stage >= CRITIC_OPTIMIZER else 0, n_chunks(frame), f32(frame.squares),
        frame.max_norm, frame.critic_rate, frame.beta1, frame.beta2, frame.eps, step, tau,
    )  # fmt: skip


@inner
def descend_actor(
    frame: FrameRecord, rank: Rank, n_ranks: Count, barrier: PtrI64, targets: Ptr32, n_params: Count, step: Index,
    tau: Real64,
) -> None:  # fmt: skip
    """Adam's step of the actor, after which `targets` follow by a share `tau`; without parameters, its waits."""
    optim.descend_and_follow(
        rank, n_ranks, barrier, f32(frame.actor_params), f32(frame.grads), f32(frame.actor_mean),
        f32(frame.actor_square), targets, n_params, n_chunks(frame), f32(frame.squares), frame.max_norm,
        frame.actor_rate, frame.beta1, frame.beta2, frame.eps, step, tau,
    )  # fmt: skip


@inner
def add_totals(frame: FrameRecord) -> None:
    """Add the chunks' statistics to the call's, in order."""
    totals, stats = f64(frame.totals), f64(frame.stats)
    for k in range(n_chunks(frame) * N_STATS):
        totals[k % N_STATS] += stats[k]


def act_kernel(name: str, choose: Any) -> Any:
    """The kernel that acts for all environments: `actions` in [-1, 1], `env_action` within the bounds.

    `choose(frame, head, i, action)` is an inner function that writes the action of environment i, from the actor's
    output `head`.
    """

    def act(record: FrameArray) -> None:
        mode = flush_denormals()
        frame = record[0]
        n_act, rows, hidden = frame.action_size, frame.n_envs, f32(frame.works)
        params, actor = f32(frame.actor_params), i64(frame.actor)
        head = mlp.forward(params, actor, frame.n_actor, rows, f32(frame.obs), hidden, frame.activation)
        for i in range(rows):
            action = shift(f32(frame.actions), i * n_act)
            choose(frame, head, i, action)
            to_env_action(frame, action, shift(f32(frame.env_action), i * n_act))
        restore(mode)

    act.__name__ = act.__qualname__ = name
    return kernel(act)
