"""Divergence between two policies over token sequences, from log-probabilities.

Arrays are (B, L), C-contiguous, float32 or float64: B sequences of L tokens, or B distributions over L outcomes.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from mileage.kernels.machine.checks import (
    F32_DTYPE,
    F64_DTYPE,
    check_all_finite,
    check_array,
    check_choice,
    check_disjoint,
    check_mask,
    check_writable,
    matrix_shape,
)
from mileage.kernels.machine.exp import LOW_32, LOW_64, exp, exp_excess
from mileage.kernels.machine.frames import Array32, ArrayU8, Count, Flag, Index, Real32, Real64
from mileage.kernels.machine.jit import kernel
from mileage.kernels.machine.team import run_shards
from mileage.types import F32, F64, U8, Bool

# Sums run in the dtype of the input over this many tokens, and in float64 over those.
_BLOCK = 512


Estimator = Literal["exact", "k1", "k2", "k3"]


def token_kl(
    log_probs: F32 | F64, reference_log_probs: F32 | F64, *, estimator: Estimator = "k3",
    mask: Bool | U8 | F32 | None = None, reduction: Literal["sum", "mean"] = "sum", out: F32 | F64 | None = None,
    check_finite: bool = False,
) -> F32 | F64:  # fmt: skip
    """Kullback-Leibler divergence of a policy from a reference, one number per row.

    With p the policy and q the reference:

    - "exact": the sum of p·(log p − log q). It is the divergence if a row lists every outcome of one distribution
      (the vocabulary at one position). An outcome of probability 0 (log p = −inf) adds 0.
    - "k3": the sum of q/p − 1 − log(q/p), an unbiased estimate that is never negative, for rows of sampled tokens
      (Schulman, 2020, "Approximating KL divergence"). It keeps its accuracy where p and q are almost equal.
    - "k1": the sum of log p − log q, unbiased as well, of either sign and of high variance.
    - "k2": the sum of ½ (log p − log q)², never negative, biased, of low variance.

    Args:
        log_probs: (B, L) float32 or float64, log p.
        reference_log_probs: (B, L), same dtype, log q.
        estimator: "exact", "k1", "k2" or "k3".
        mask: (B, L) bool, uint8 or float32; tokens where it is zero are left out, whatever they hold. None takes all.
        reduction: "sum" over the tokens of a row, or their "mean" (of the tokens taken; 0 if there are none).
        out: (B,) of the dtype of `log_probs` to write to, overlapping no input.
        check_finite: raise if an input holds NaN or infinity anywhere (costs a pass over each).

    Returns:
        divergence (B,) of the dtype of `log_probs`.
    """
    shape = matrix_shape("log_probs", log_probs, "(B, L)")
    dtype = F64_DTYPE if log_probs.dtype is F64_DTYPE else F32_DTYPE
    check_array("log_probs", log_probs, shape, dtype)
    check_array("reference_log_probs", reference_log_probs, shape, dtype)
    if mask is not None:
        check_mask("mask", mask, shape)
    check_choice("estimator", estimator, _ROWS)
    check_choice("reduction", reduction, ("sum", "mean"))
    if check_finite:
        check_all_finite(log_probs=log_probs, reference_log_probs=reference_log_probs)
    if out is None:
        out = np.empty(shape[0], dtype)
    else:
        check_writable("out", out, shape[:1], dtype)
        inputs = (log_probs, reference_log_probs)
        check_disjoint((out,), inputs if mask is None else (*inputs, mask))
    arguments = (log_probs, reference_log_probs, mask, reduction == "mean", out)
    run_shards(_ROWS[estimator], shape[0], shape[1], *arguments)
    return out


# Sums may be reordered within a block, so that they use all lanes.
_SUM = {"contract", "reassoc"}


@kernel(fastmath=_SUM)
def _exact_block(log_probs: Array32, reference: Array32, mask: ArrayU8, row: Index, first: Index, end: Index) -> Real32:
    low = LOW_32 if log_probs.itemsize == 4 else LOW_64
    zero = log_probs.dtype.type(0.0)
    total = zero
    for k in range(first, end):
        log_p = log_probs[row, k]
        term = exp(log_p) * (log_p - reference[row, k])
        # Below `low`, p is 0 and the term 0 · inf. This way round NaN stays.
        term = zero if log_p < low else term
        if mask is None:
            total += term
        else:
            total += term if mask[row, k] != 0 else zero
    return total


@kernel(fastmath=_SUM)
def _k3_block(log_probs: Array32, reference: Array32, mask: ArrayU8, row: Index, first: Index, end: Index) -> Real32:
    zero = log_probs.dtype.type(0.0)
    total = zero
    for k in range(first, end):
        term = exp_excess(reference[row, k] - log_probs[row, k])
        if mask is None:
            total += term
        else:
            total += term if mask[row, k] != 0 else zero
    return total


def _log_ratio_block(squared: bool) -> Any:
    """The kernel that adds up log-ratios of a block, or halves of their squares; in float64, as they may cancel."""

    def block(log_probs: Array32, reference: Array32, mask: ArrayU8, row: Index, first: Index, end: Index) -> Real64:
        total = 0.0
        for k in range(first, end):
            term = np.float64(log_probs[row, k]) - np.float64(reference[row, k])
            term = 0.5 * term * term if squared else term
            if mask is None:
                total += term
            else:
                total += term if mask[row, k] != 0 else 0.0
        return total

    block.__name__ = block.__qualname__ = "k2_block" if squared else "k1_block"
    return kernel(block, fastmath=_SUM)


@kernel
def _taken(mask: ArrayU8, row: Index, length: Count) -> Count:
    """Number of tokens taken from a row."""
    if mask is None:
        return length
    count = 0
    for k in range(length):
        count += 1 if mask[row, k] != 0 else 0
    return count


@kernel
def _finish(total: Real32, log_probs: Array32, mask: ArrayU8, row: Index, mean: Flag, out: Array32) -> None:
    if mean:
        total /= max(_taken(mask, row, log_probs.shape[1]), 1)
    out[row] = total


def _rows(name: str, block: Any) -> Any:
    """The kernel that adds up the terms of rows [start, stop), arguments as in `token_kl`, block by block."""

    def rows(
        start: Index, stop: Index, log_probs: Array32, reference: Array32, mask: ArrayU8, mean: Flag, out: Array32
    ) -> None:
        length = np.uint64(log_probs.shape[1])
        for row in range(np.uint64(start), np.uint64(stop)):
            total = 0.0
            for first in range(np.uint64(0), length, np.uint64(_BLOCK)):
                total += block(log_probs, reference, mask, row, first, min(first + np.uint64(_BLOCK), length))
            _finish(total, log_probs, mask, row, mean, out)

    rows.__name__ = rows.__qualname__ = name
    return kernel(rows)


exact_rows, k3_rows = _rows("exact_rows", _exact_block), _rows("k3_rows", _k3_block)
_ROWS: dict[str, Any] = {
    "exact": exact_rows,
    "k1": _rows("k1_rows", _log_ratio_block(squared=False)),
    "k2": _rows("k2_rows", _log_ratio_block(squared=True)),
    "k3": k3_rows,
}
