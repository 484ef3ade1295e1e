"""Advantages of answers relative to other answers to the same prompt."""

from __future__ import annotations

import numpy as np

from mileage._errors import require
from mileage._types import F32, F64
from mileage.kernels.machine.boundary import (
    F32_DTYPE,
    F64_DTYPE,
    check_all_finite,
    check_array,
    check_disjoint,
    check_writable,
    matrix_shape,
)
from mileage.kernels.machine.jit import kernel
from mileage.kernels.machine.kinds import Array32, Flag, Real64


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
    require(epsilon > 0.0, "epsilon", epsilon, "above 0")
    if check_finite:
        check_all_finite(rewards=rewards)
    if out is None:
        out = np.empty(shape, dtype)
    else:
        check_writable("out", out, shape, dtype)
        if out is not rewards:
            check_disjoint((out,), (rewards,))
    _group_rows(rewards, normalize_std, epsilon, out)
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
