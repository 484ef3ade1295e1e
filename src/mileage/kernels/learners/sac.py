"""Soft actor-critic in one call: targets, twin critics, actor, temperature and polyak averaging, for several updates.

A tanh-squashed Gaussian actor with state-dependent deviation, two critics on (observation, action), and their
slowly moving targets (Haarnoja et al., 2018, arXiv:1812.05905). A batch is cut into chunks as in
`mileage.kernels.learners.actor_critic`, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mileage.kernels.learners import mlp, optim
from mileage.kernels.learners.heads import LOG_STD_HIGH, LOG_STD_LOW, SQUASH_EPS, sample_squashed
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.pointers import f32, f64, frame_type, i64, pointer_to, shift, u8, u64
from mileage.kernels.machine.team import meet

_F = np.float32
# Columns of `stats` and `totals`: sums over samples.
CRITIC_LOSS, ACTOR_LOSS, LOG_PROB, Q_VALUE, SAMPLES = range(5)
N_STATS = 5
# Entries of `temperature`, float64: its logarithm, Adam's two moments of that, and its target entropy.
LOG_ALPHA, ALPHA_MEAN, ALPHA_SQUARE, TARGET_ENTROPY = range(4)

# An update ends after `frame.stage`, as in `learners.actor_critic`.
STAGES = (
    "loop and barriers", "target", "critic", "critic optimizer", "polyak", "actor", "actor optimizer", "temperature"
)  # fmt: skip
_TARGET, _CRITIC, _CRITIC_OPTIMIZER, _POLYAK, _ACTOR, _ACTOR_OPTIMIZER, LAST_STAGE = range(1, len(STAGES))

SAC = frame_type(
    arrays="actor_params critic_params target_params actor critic obs actions rewards next_obs terminated discounts"
    " noise_rng noise actor_mean actor_square critic_mean critic_square grads squares stats totals temperature works",
    integers="n_actor n_critic n_actor_params n_critic_params obs_size action_size activation batch n_updates"
    " chunk_rows steps stage work_floats learn_temperature at_inputs at_actor at_critics at_scratch at_rows",
    floats="tau actor_rate critic_rate temperature_rate beta1 beta2 eps max_norm",
)


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
    offsets, start = {}, 0
    for name, size in sizes.items():
        offsets[name] = start
        start += -(-size // 16) * 16
    offsets["work_floats"] = start
    del offsets["at_observations"]  # always the start
    return offsets


@inner
def _join(frame: Any, obs: Any, actions: Any, rows: Any, out: Any) -> None:
    """Put observations and actions side by side, the critics' input."""
    n_obs, n_act = frame.obs_size, frame.action_size
    for i in range(rows):
        row = shift(out, i * (n_obs + n_act))
        for k in range(n_obs):
            row[k] = obs[i * n_obs + k]
        for k in range(n_act):
            row[n_obs + k] = actions[i * n_act + k]


@inner
def _sample(frame: Any, obs: Any, rows: Any, first: Any, draw: Any, work: Any, actions: Any, log_probs: Any) -> None:
    """Actions and log-probabilities of the current policy; the noise is kept from `noise[draw, first]` on."""
    n_act, n_obs = frame.action_size, frame.obs_size
    for k in range(rows * n_obs):
        work[k] = obs[k]
    head = mlp.forward(
        f32(frame.actor_params),
        i64(frame.actor),
        frame.n_actor,
        rows,
        work,
        shift(work, frame.at_actor),
        frame.activation,
    )
    for i in range(rows):
        row = first + i
        noise = shift(f32(frame.noise), (draw * frame.batch * frame.n_updates + row) * n_act)
        rng_state = shift(u64(frame.noise_rng), 2 * (row % frame.batch))
        log_probs[i] = sample_squashed(shift(head, 2 * n_act * i), n_act, rng_state, shift(actions, i * n_act), noise)


@inner
def _targets(frame: Any, first: Any, rows: Any, alpha: Any, work: Any, out: Any) -> None:
    """Soft Bellman targets of the samples from `first` on."""
    inputs, hidden = shift(work, frame.at_inputs), shift(work, frame.at_critics)
    actions = shift(out, rows)
    log_probs = shift(actions, rows * frame.action_size)
    next_obs = shift(f32(frame.next_obs), first * frame.obs_size)
    _sample(frame, next_obs, rows, first, 0, work, actions, log_probs)
    _join(frame, next_obs, actions, rows, inputs)
    critic, n = i64(frame.critic), frame.n_critic
    for c in range(2):
        weights = shift(f32(frame.target_params), c * (frame.n_critic_params // 2))
        value = mlp.forward(weights, critic, n, rows, inputs, hidden, frame.activation)
        for i in range(rows):
            out[i] = value[i] if c == 0 else min(out[i], value[i])
    for i in range(rows):
        alive = _F(0.0) if u8(frame.terminated)[first + i] else f32(frame.discounts)[first + i]
        out[i] = f32(frame.rewards)[first + i] + alive * (out[i] - alpha * log_probs[i])


@inner
def _critic_chunk(frame: Any, first: Any, rows: Any, alpha: Any, work: Any, grads: Any, stats: Any) -> None:
    """Gradient of half the summed squared errors of both critics."""
    targets = shift(work, frame.at_rows)
    _targets(frame, first, rows, alpha, work, targets)
    if frame.stage < _CRITIC:
        return
    inputs, hidden = shift(work, frame.at_inputs), shift(work, frame.at_critics)
    delta = shift(work, frame.at_scratch)
    spare = shift(delta, (frame.at_rows - frame.at_scratch) // 2)
    obs = shift(f32(frame.obs), first * frame.obs_size)
    _join(frame, obs, shift(f32(frame.actions), first * frame.action_size), rows, inputs)
    critic, n, half = i64(frame.critic), frame.n_critic, frame.n_critic_params // 2
    weight = _F(1.0 / frame.batch)
    for c in range(2):
        weights = shift(f32(frame.critic_params), c * half)
        value = mlp.forward(weights, critic, n, rows, inputs, hidden, frame.activation)
        for i in range(rows):
            error = value[i] - targets[i]
            stats[CRITIC_LOSS] += 0.5 * error * error
            stats[Q_VALUE] += 0.5 * value[i]
            delta[i] = weight * error
        mlp.backward(weights, critic, n, rows, inputs, hidden, delta, spare, frame.activation, shift(grads, c * half))


@inner
def _actor_slopes(
    frame: Any, head: Any, noise: Any, action: Any, by_action: Any, alpha: Any, weight: Any, out: Any
) -> None:
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
    sizes: Any, n_sizes: Any, rows: Any, hidden: Any, q1: Any, q2: Any, n_kept: Any, first_smaller: Any
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
def _actor_chunk(frame: Any, first: Any, rows: Any, alpha: Any, work: Any, grads: Any, stats: Any) -> None:
    """Gradient of alpha * log-probability minus the smaller critic's value.

    Of the two critics only the smaller one counts in a row, so each is differentiated in its own rows alone.
    """
    n_obs, n_act, kind = frame.obs_size, frame.action_size, frame.activation
    critic, n, half = i64(frame.critic), frame.n_critic, frame.n_critic_params // 2
    actions = shift(work, frame.at_rows)
    log_probs = shift(actions, rows * n_act)
    by_input = shift(log_probs, rows)
    inputs = shift(work, frame.at_inputs)
    delta = shift(work, frame.at_scratch)
    spare = shift(delta, (frame.at_rows - frame.at_scratch) // 2)
    hidden1 = shift(work, frame.at_critics)
    hidden2 = shift(hidden1, (frame.at_scratch - frame.at_critics) // 2)
    weights1, weights2 = f32(frame.critic_params), shift(f32(frame.critic_params), half)
    weight = _F(1.0 / frame.batch)

    _sample(frame, shift(f32(frame.obs), first * n_obs), rows, first, 1, work, actions, log_probs)
    _join(frame, work, actions, rows, inputs)
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

    head = shift(work, frame.at_actor)
    actor = i64(frame.actor)
    for layer in range(1, frame.n_actor - 1):
        head = shift(head, rows * actor[layer])
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
    mlp.backward(
        f32(frame.actor_params),
        actor,
        frame.n_actor,
        rows,
        work,
        shift(work, frame.at_actor),
        delta,
        spare,
        kind,
        grads,
    )


@inner
def _learn_temperature(frame: Any, mean_log_prob: Any, step: Any) -> None:
    """One Adam step on the logarithm of the temperature."""
    state = f64(frame.temperature)
    slope = -(mean_log_prob + state[TARGET_ENTROPY])
    state[ALPHA_MEAN] = frame.beta1 * state[ALPHA_MEAN] + (1.0 - frame.beta1) * slope
    state[ALPHA_SQUARE] = frame.beta2 * state[ALPHA_SQUARE] + (1.0 - frame.beta2) * slope * slope
    mean = state[ALPHA_MEAN] / (1.0 - math.pow(frame.beta1, 1.0 * step))
    square = state[ALPHA_SQUARE] / (1.0 - math.pow(frame.beta2, 1.0 * step))
    state[LOG_ALPHA] -= frame.temperature_rate * mean / (math.sqrt(square) + frame.eps)


@inner
def _update(frame: Any, rank: Any, n_ranks: Any, barrier: Any, start: Any, step: Any, work: Any) -> None:
    """One update on the samples from `start` on."""
    batch, chunk_rows, n_critic, n_actor = frame.batch, frame.chunk_rows, frame.n_critic_params, frame.n_actor_params
    stage = frame.stage
    chunks = (batch + chunk_rows - 1) // chunk_rows
    alpha = _F(math.exp(f64(frame.temperature)[LOG_ALPHA]))
    grads, sums = f32(frame.grads), f32(frame.squares)
    for c in range(rank, chunks, n_ranks):
        stats = shift(f64(frame.stats), c * N_STATS)
        for k in range(N_STATS):
            stats[k] = 0.0
        rows = min(chunk_rows, batch - c * chunk_rows)
        stats[SAMPLES] = rows
        if stage >= _TARGET:
            _critic_chunk(frame, start + c * chunk_rows, rows, alpha, work, shift(grads, c * n_critic), stats)
    optim.descend_and_follow(
        rank, n_ranks, barrier, f32(frame.critic_params), grads, f32(frame.critic_mean), f32(frame.critic_square),
        f32(frame.target_params), n_critic if stage >= _CRITIC_OPTIMIZER else 0, chunks, sums, frame.max_norm,
        frame.critic_rate, frame.beta1, frame.beta2, frame.eps, step, frame.tau if stage >= _POLYAK else 0.0,
    )  # fmt: skip
    meet(barrier, n_ranks)
    for c in range(rank, chunks, n_ranks):
        rows = min(chunk_rows, batch - c * chunk_rows)
        stats = shift(f64(frame.stats), c * N_STATS)
        if stage >= _ACTOR:
            _actor_chunk(frame, start + c * chunk_rows, rows, alpha, work, shift(grads, c * n_actor), stats)
    optim.descend_and_follow(
        rank, n_ranks, barrier, f32(frame.actor_params), grads, f32(frame.actor_mean), f32(frame.actor_square),
        f32(frame.actor_params), n_actor if stage >= _ACTOR_OPTIMIZER else 0, chunks, sums, frame.max_norm,
        frame.actor_rate, frame.beta1, frame.beta2, frame.eps, step, 0.0,
    )  # fmt: skip
    if rank == 0 and stage >= LAST_STAGE:
        totals, stats = f64(frame.totals), f64(frame.stats)
        log_prob = 0.0
        for c in range(chunks):
            log_prob += stats[c * N_STATS + LOG_PROB]
            for k in range(N_STATS):
                totals[k] += stats[c * N_STATS + k]
        if frame.learn_temperature > 0:
            _learn_temperature(frame, log_prob / batch, step)
    meet(barrier, n_ranks)


@kernel
def sac_update(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> Any:
    """Run `n_updates` updates (frame `SAC`), each on its own `batch` samples; return the number of updates so far.

    Sample arrays hold `n_updates * batch` rows; `noise` (2, n_updates * batch, A) float32 receives the noise of
    target and policy actions; `noise_rng` is (batch, 2) uint64; `grads` (chunks, most parameters) float32; `stats`
    (chunks, 5), `totals` (5,) and `temperature` (4,) float64.
    """
    frame = record[0]
    meeting = pointer_to(barrier)
    work = shift(f32(frame.works), rank * frame.work_floats)
    for u in range(frame.n_updates):
        _update(frame, rank, n_ranks, meeting, u * frame.batch, frame.steps + u + 1, work)
    meet(meeting, n_ranks)
    return frame.steps + frame.n_updates


ACT = frame_type(
    arrays="actor_params actor obs env_action actions low high action_rng works",
    integers="n_actor obs_size action_size activation n_envs deterministic",
)


@kernel
def sac_act(record: Any) -> None:
    """Draw actions for all environments (frame `ACT`): `actions` in (-1, 1), `env_action` within the bounds."""
    frame = record[0]
    n_act, rows, hidden = frame.action_size, frame.n_envs, f32(frame.works)
    actor = i64(frame.actor)
    head = mlp.forward(f32(frame.actor_params), actor, frame.n_actor, rows, f32(frame.obs), hidden, frame.activation)
    noise = shift(head, 2 * n_act * rows)
    low, high = f32(frame.low), f32(frame.high)
    for i in range(rows):
        action = shift(f32(frame.actions), i * n_act)
        sample_squashed(shift(head, 2 * n_act * i), n_act, shift(u64(frame.action_rng), 2 * i), action, noise)
        for k in range(n_act):
            if frame.deterministic > 0:
                action[k] = mlp.tanh(head[2 * n_act * i + k])
            f32(frame.env_action)[i * n_act + k] = low[k] + (action[k] + _F(1.0)) * _F(0.5) * (high[k] - low[k])
