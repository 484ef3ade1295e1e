"""Divergences of token distributions, of `mileage.kernels.arrays.tokens`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage._types import F64


def token_kl(
    log_probs: Any, reference_log_probs: Any, *, estimator: str = "k3", mask: Any = None, reduction: str = "sum"
) -> F64:
    """Divergence of each row, (B,) float64."""
    log_p, log_q = np.asarray(log_probs, np.float64), np.asarray(reference_log_probs, np.float64)
    taken = np.ones(log_p.shape, bool) if mask is None else np.asarray(mask) != 0
    with np.errstate(invalid="ignore", over="ignore"):
        if estimator == "exact":
            terms = np.where(log_p == -np.inf, 0.0, np.exp(log_p) * (log_p - log_q))
        else:
            terms = np.expm1(log_q - log_p) - (log_q - log_p)
    total: F64 = np.where(taken, terms, 0.0).sum(axis=1)
    if reduction == "mean":
        total = total / np.maximum(taken.sum(axis=1), 1)
    return total
