"""Advantages and value targets over rollouts: GAE, n-step returns, V-trace, and answers relative to their group.

Rollouts are time-major (T, N), C-contiguous, float32: T steps of N environments. Index t is the transition that starts
at observation t; `terminated[t]` and `truncated[t]` are what that step returned. A terminated step has no future; a
truncated step was cut by a time limit, and its future is worth the value of the final observation it returned,
`truncated_values[t]` (read only where `truncated` is set). Neither lets anything of the next episode through. A step
that is both counts as terminated.

Masks are bool, uint8 or float32 (non-zero is true), each read as it is, without a copy. `out=` names the arrays to
write to, which makes a call free of allocations. Inputs are never changed. The rollout of one environment may be (T,),
with one number as its last value; results are then (T,) too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.errors import UsageError, require
from mileage.kernels.machine.checks import (
    F32_DTYPE,
    F64_DTYPE,
    check_all_finite,
    check_array,
    check_count,
    check_disjoint,
    check_mask,
    check_number,
    check_out,
    check_unit,
    check_writable,
    matrix_shape,
)
from mileage.kernels.machine.exp import exp
from mileage.kernels.machine.frames import Array32, ArrayU8, Count, Flag, Index, Real32, Real64
from mileage.kernels.machine.jit import kernel
from mileage.kernels.machine.memory import empty
from mileage.kernels.machine.team import run_shards
from mileage.types import F32, F64, U8, Bool

# --- Advantages and value targets over rollouts: GAE, n-step returns, V-trace ---
Mask = Bool | U8 | F32

# Fused multiply-add is all the freedom LLVM needs here; sums keep their order.
_CONTRACT = {"contract"}
_ZERO = np.float32(0.0)


def gae(
    rewards: F32, values: F32, terminated: Mask, last_values: F32, *, truncated: Mask | None = None,
    truncated_values: F32 | None = None, gamma: float = 0.99, lambda_: float = 0.95,
    out: tuple[F32, F32] | None = None, check_finite: bool = False,
) -> tuple[F32, F32]:  # fmt: skip
    """Generalised advantage estimation (Schulman et al., 2016, arXiv:1506.02438).

    Args:
        rewards: (T, N) float32.
        values: (T, N) float32, the critic at the observation each step started from.
        terminated: (T, N) bool, uint8 or float32.
        last_values: (N,) float32, the critic at the observation after the last step.
        truncated: (T, N) bool, uint8 or float32; None if no step was truncated.
        truncated_values: (T, N) float32, the critic at the final observation of truncated steps; required with
            `truncated`.
        gamma: discount, 0 to 1.
        lambda_: decay of the traces, 0 (one-step errors) to 1 (discounted returns minus values).
        out: (advantages, returns) to write to, each (T, N) float32, overlapping no input.
        check_finite: raise if an input holds NaN or infinity (costs a pass over each).

    Returns:
        advantages (T, N) and returns (T, N), float32; returns are advantages + values.
    """
    if _is_line(rewards):
        both: tuple[F32, F32] = _one_column(
            gae, (rewards, values, terminated), last_values, out, truncated=truncated,
            truncated_values=truncated_values, gamma=gamma, lambda_=lambda_, check_finite=check_finite,
        )  # fmt: skip
        return both
    shape = matrix_shape("rewards", rewards, "(T, N)")
    rollout = _check_rollout(shape, rewards, values, terminated, last_values, truncated, truncated_values, check_finite)
    gamma, lambda_ = check_unit("gamma", gamma), check_unit("lambda_", lambda_)
    advantages, returns = check_out(out, ("advantages", "returns"), shape, rollout)
    run_shards(gae_columns, shape[1], shape[0], *rollout, gamma, lambda_, advantages, returns)
    return advantages, returns


def nstep_returns(
    rewards: F32, values: F32, terminated: Mask, last_values: F32, *, n: int, truncated: Mask | None = None,
    truncated_values: F32 | None = None, gamma: float = 0.99, out: F32 | None = None, check_finite: bool = False,
) -> F32:  # fmt: skip
    """Rewards of up to `n` steps, discounted, plus the discounted value of where they lead.

    The sum stops early at the end of an episode (worth 0, or `truncated_values`) and at the end of the rollout
    (worth `last_values`). Takes n operations per element, on rows that stay in cache.

    Args, beside those that are as for `gae`:
        n: number of steps, at least 1; T or more gives the discounted return of the rest of the rollout.
        out: (T, N) float32 to write to, overlapping no input.

    Returns:
        returns (T, N) float32.
    """
    if _is_line(rewards):
        found: F32 = _one_column(
            nstep_returns, (rewards, values, terminated), last_values, out, n=n, truncated=truncated,
            truncated_values=truncated_values, gamma=gamma, check_finite=check_finite,
        )  # fmt: skip
        return found
    shape = matrix_shape("rewards", rewards, "(T, N)")
    rollout = _check_rollout(shape, rewards, values, terminated, last_values, truncated, truncated_values, check_finite)
    gamma, n = check_unit("gamma", gamma), check_count("n", n)
    if out is None:
        out = empty(shape)
    else:
        check_writable("out", out, shape, F32_DTYPE)
        check_disjoint((out,), rollout)
    n = min(n, shape[0])
    run_shards(nstep_columns, shape[1], shape[0] * n, *rollout, n, gamma, out)
    return out


def vtrace(
    log_ratios: F32, rewards: F32, values: F32, terminated: Mask, last_values: F32, *, truncated: Mask | None = None,
    truncated_values: F32 | None = None, gamma: float = 0.99, lambda_: float = 1.0, rho_bar: float = 1.0,
    c_bar: float = 1.0, out: tuple[F32, F32] | None = None, check_finite: bool = False,
) -> tuple[F32, F32]:  # fmt: skip
    """V-trace targets and policy-gradient advantages (Espeholt et al., 2018, arXiv:1802.01561, equation 1).

    Args, beside those that are as for `gae`:
        log_ratios: (T, N) float32, log-probability of the action taken under the learned policy minus that under the
            policy that took it.
        lambda_: extra decay of the traces, 0 to 1 (remark 2 of the paper).
        rho_bar: clip of the ratios that weigh temporal differences, above 0; infinity does not clip.
        c_bar: clip of the ratios in the traces, above 0, at most `rho_bar`.
        out: (targets, advantages) to write to, each (T, N) float32, overlapping no input.

    Returns:
        targets vs (T, N) for the critic and advantages (T, N) for the policy gradient, float32.
    """
    if _is_line(log_ratios):
        both: tuple[F32, F32] = _one_column(
            vtrace, (log_ratios, rewards, values, terminated), last_values, out, truncated=truncated,
            truncated_values=truncated_values, gamma=gamma, lambda_=lambda_, rho_bar=rho_bar, c_bar=c_bar,
            check_finite=check_finite,
        )  # fmt: skip
        return both
    shape = matrix_shape("log_ratios", log_ratios, "(T, N)")
    check_array("log_ratios", log_ratios, shape)
    rollout = _check_rollout(shape, rewards, values, terminated, last_values, truncated, truncated_values, check_finite)
    gamma, lambda_ = check_unit("gamma", gamma), check_unit("lambda_", lambda_)
    rho_bar, c_bar = check_number("rho_bar", rho_bar), check_number("c_bar", c_bar)
    if not 0.0 < c_bar <= rho_bar:
        raise UsageError(f"c_bar and rho_bar must satisfy 0 < c_bar <= rho_bar, not c_bar={c_bar}, rho_bar={rho_bar}")
    if check_finite:
        check_all_finite(log_ratios=log_ratios)
    targets, advantages = check_out(out, ("targets", "advantages"), shape, (log_ratios, *rollout))
    settings = (gamma, lambda_, rho_bar, c_bar)
    # An exponential and two passes: about four times the work of GAE.
    run_shards(vtrace_columns, shape[1], 4 * shape[0], log_ratios, *rollout, *settings, targets, advantages)
    return targets, advantages


def _is_line(array: Any) -> bool:
    """Whether a rollout is one environment's, (T,)."""
    return type(array) is np.ndarray and array.ndim == 1 and array.size > 0


def _one_column(function: Any, rollout: tuple[Any, ...], last_value: Any, out: Any, **options: Any) -> Any:
    """`function` of one environment's rollout, whose arrays are (T,) and whose last value is a number or (1,)."""

    def column(array: Any) -> Any:
        return array[:, None] if _is_line(array) else array

    last = last_value
    if not isinstance(last_value, np.ndarray):
        last = np.full(1, check_number("last_values", last_value), np.float32)
    elif last_value.ndim == 0 and last_value.dtype == F32_DTYPE:
        last = last_value.reshape(1)
    columns = tuple(column(array) for array in out) if isinstance(out, tuple) else column(out)
    options = {name: column(value) for name, value in options.items()}
    found = function(*(column(array) for array in rollout), last, out=columns, **options)
    if out is not None:
        return out
    return tuple(array[:, 0] for array in found) if isinstance(found, tuple) else found[:, 0]


def _check_rollout(
    shape: tuple[int, int], rewards: Any, values: Any, terminated: Any, last_values: Any, truncated: Any,
    truncated_values: Any, finite: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Check the arrays of a rollout and return all six, with stand-ins for truncation that was left out."""
    check_array("rewards", rewards, shape)
    check_array("values", values, shape)
    check_mask("terminated", terminated, shape)
    check_array("last_values", last_values, shape[1:])
    if truncated is None:
        if truncated_values is not None:
            raise UsageError("truncated is missing: truncated_values mean nothing without it")
        # A step that is both counts as terminated: with the same mask for both, nothing is truncated.
        truncated, truncated_values = terminated, values
    else:
        check_mask("truncated", truncated, shape)
        if truncated_values is None:
            raise UsageError(
                "truncated_values is missing: a truncated step is worth the value of its final observation; "
                "pass those values as (T, N) float32"
            )
        check_array("truncated_values", truncated_values, shape)
    if finite:
        check_all_finite(rewards=rewards, values=values, last_values=last_values)
        # Only those that are read.
        check_all_finite(truncated_values=np.where(truncated, truncated_values, _ZERO))
    return rewards, values, terminated, last_values, truncated, truncated_values


@kernel
def _future(following: Real32, terminated: Flag, truncated: Flag, truncated_value: Real32) -> Real32:
    """What follows a step: `following`, unless the episode ended there. Selects, not branches: they vectorise."""
    following = truncated_value if truncated != 0 else following
    return _ZERO if terminated != 0 else following


# The kernels below work on columns [start, stop) and can be called from other kernels. Rows are walked backwards; the
# row written before is the carry, so that nothing is kept per environment, and the last row, which has no successor,
# is peeled off. Columns are counted unsigned: Numba would guard signed ones against counting from the end, and LLVM
# would give up on vectorising. So it would on loops over too many arrays to check for aliasing: hence several loops.


@kernel(fastmath=_CONTRACT)
def gae_columns(
    start: Index, stop: Index, rewards: Array32, values: Array32, terminated: ArrayU8, last_values: Array32,
    truncated: ArrayU8, truncated_values: Array32, gamma: Real64, lambda_: Real64, out_advantages: Array32,
    out_returns: Array32,
) -> None:  # fmt: skip
    """GAE of some columns, arguments as in `gae`."""
    first, end = np.uint64(start), np.uint64(stop)
    discount = np.float32(gamma)
    decay = np.float32(gamma * lambda_)
    last = rewards.shape[0] - 1
    for n in range(first, end):
        future = _future(last_values[n], terminated[last, n], truncated[last, n], truncated_values[last, n])
        advantage = rewards[last, n] + discount * future - values[last, n]
        out_advantages[last, n] = advantage
        out_returns[last, n] = advantage + values[last, n]
    for step in range(last):
        t = last - 1 - step
        for n in range(first, end):
            future = _future(values[t + 1, n], terminated[t, n], truncated[t, n], truncated_values[t, n])
            trace = _ZERO if (terminated[t, n] != 0) | (truncated[t, n] != 0) else out_advantages[t + 1, n]
            out_advantages[t, n] = (rewards[t, n] + discount * future - values[t, n]) + decay * trace
        for n in range(first, end):
            out_returns[t, n] = out_advantages[t, n] + values[t, n]


@kernel(fastmath=_CONTRACT)
def nstep_columns(
    start: Index, stop: Index, rewards: Array32, values: Array32, terminated: ArrayU8, last_values: Array32,
    truncated: ArrayU8, truncated_values: Array32, n_steps: Count, gamma: Real64, out_returns: Array32,
) -> None:  # fmt: skip
    """N-step returns of some columns, arguments as in `nstep_returns`."""
    first, end = np.uint64(start), np.uint64(stop)
    discount = np.float32(gamma)
    horizon = rewards.shape[0]
    for t in range(horizon):
        length = min(n_steps, horizon - t)
        if t + length < horizon:
            for n in range(first, end):
                out_returns[t, n] = values[t + length, n]
        else:
            for n in range(first, end):
                out_returns[t, n] = last_values[n]
        for back in range(length):
            k = t + length - 1 - back
            for n in range(first, end):
                future = _future(out_returns[t, n], terminated[k, n], truncated[k, n], truncated_values[k, n])
                out_returns[t, n] = rewards[k, n] + discount * future


@kernel(fastmath=_CONTRACT)
def vtrace_columns(
    start: Index, stop: Index, log_ratios: Array32, rewards: Array32, values: Array32, terminated: ArrayU8,
    last_values: Array32, truncated: ArrayU8, truncated_values: Array32, gamma: Real64, lambda_: Real64,
    rho_bar: Real64, c_bar: Real64, out_targets: Array32, out_advantages: Array32,
) -> None:  # fmt: skip
    """V-trace of some columns, arguments as in `vtrace`."""
    first, end = np.uint64(start), np.uint64(stop)
    discount = np.float32(gamma)
    decay = np.float32(gamma * lambda_)
    rho_clip, c_clip = np.float32(rho_bar), np.float32(c_bar)
    last = rewards.shape[0] - 1
    for n in range(first, end):
        # Comparisons this way round let NaN through.
        ratio = exp(log_ratios[last, n])
        rho = rho_clip if ratio > rho_clip else ratio
        future = _future(last_values[n], terminated[last, n], truncated[last, n], truncated_values[last, n])
        advantage = rho * (rewards[last, n] + discount * future - values[last, n])
        out_advantages[last, n] = advantage
        out_targets[last, n] = values[last, n] + advantage
    for step in range(last):
        t = last - 1 - step
        # The ratio is needed by both results: it waits in the place of the advantage.
        for n in range(first, end):
            out_advantages[t, n] = exp(log_ratios[t, n])
        for n in range(first, end):
            ratio = out_advantages[t, n]
            rho = rho_clip if ratio > rho_clip else ratio
            c = c_clip if ratio > c_clip else ratio
            future = _future(values[t + 1, n], terminated[t, n], truncated[t, n], truncated_values[t, n])
            trace = (
                _ZERO if (terminated[t, n] != 0) | (truncated[t, n] != 0) else out_targets[t + 1, n] - values[t + 1, n]
            )
            delta = rho * (rewards[t, n] + discount * future - values[t, n])
            out_targets[t, n] = values[t, n] + (delta + decay * c * trace)
        for n in range(first, end):
            ratio = out_advantages[t, n]
            rho = rho_clip if ratio > rho_clip else ratio
            future = _future(out_targets[t + 1, n], terminated[t, n], truncated[t, n], truncated_values[t, n])
            out_advantages[t, n] = rho * (rewards[t, n] + discount * future - values[t, n])


# --- Advantages of answers relative to other answers to the same prompt ---
def group_advantages(
    rewards: F32 | F64, *, normalize_std: bool = True, epsilon: float = 1e-6, out: F32 | F64 | None = None,
    check_finite: bool = False,
) -> F32 | F64:  # fmt: skip
    """Rewards relative to their own group (GRPO; Shao et al., 2024, arXiv:2402.03300).

    Args:
        rewards: (G, K) float32 or float64: G prompts, K sampled answers each.
        normalize_std: divide by the group's (population) standard deviation; False only subtracts the mean
            (Dr. GRPO; Liu et al., 2025, arXiv:2503.20783).
        epsilon: added to the standard deviation, above 0; a group of equal rewards gets zeros.
        out: (G, K) of the dtype of `rewards` to write to; may be `rewards` itself.
        check_finite: raise if `rewards` holds NaN or infinity (costs a pass).

    Returns:
        advantages (G, K) of the dtype of `rewards`.
    """
    shape = matrix_shape("rewards", rewards, "(G, K)")
    dtype = F64_DTYPE if rewards.dtype is F64_DTYPE else F32_DTYPE
    check_array("rewards", rewards, shape, dtype)
    require(isinstance(normalize_std, bool | np.bool_), "normalize_std", normalize_std, "True or False")
    epsilon = check_number("epsilon", epsilon)
    require(epsilon > 0.0, "epsilon", epsilon, "above 0")
    if check_finite:
        check_all_finite(rewards=rewards)
    if out is None:
        out = np.empty(shape, dtype)
    else:
        check_writable("out", out, shape, dtype)
        if out is not rewards:
            check_disjoint((out,), (rewards,))
    _group_rows(rewards, bool(normalize_std), epsilon, out)
    return out


# Sums over a group may be reordered, so that they use all lanes.
@kernel(fastmath={"contract", "reassoc"})
def _group_rows(rewards: Array32, normalize_std: Flag, epsilon: Real64, out: Array32) -> None:
    groups, size = rewards.shape
    for g in range(groups):
        total = rewards.dtype.type(0.0)
        for k in range(size):
            total += rewards[g, k]
        mean = total / rewards.dtype.type(size)
        scale = rewards.dtype.type(1.0)
        if normalize_std:
            squares = rewards.dtype.type(0.0)
            for k in range(size):
                squares += (rewards[g, k] - mean) * (rewards[g, k] - mean)
            deviation = np.sqrt(squares / rewards.dtype.type(size))
            scale = rewards.dtype.type(1.0) / (deviation + rewards.dtype.type(epsilon))
        for k in range(size):
            out[g, k] = (rewards[g, k] - mean) * scale
