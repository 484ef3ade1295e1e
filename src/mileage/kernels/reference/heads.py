"""Action distributions of `mileage.kernels.learners.heads`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mileage._types import F64
from mileage.kernels.definitions import HALF_LOG_TWO_PI, LOG_STD_HIGH, LOG_STD_LOW, SQUASH_EPS


def categorical(logits: Any, actions: Any) -> tuple[F64, F64]:
    """Log-probabilities of `actions` (N,) and entropies (N,) under `logits` (N, K)."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    chosen: F64 = log_p[np.arange(len(log_p)), np.asarray(actions, np.int64)]
    entropy: F64 = -(np.exp(log_p) * log_p).sum(axis=1)
    return chosen, entropy


def gaussian(mean: Any, log_std: Any, actions: Any) -> tuple[F64, F64]:
    """Log-probabilities of `actions` (N, A) and entropies (N,) under independent normals of `mean` (N, A)."""
    log_std = np.asarray(log_std, np.float64)
    z = (np.asarray(actions, np.float64) - mean) / np.exp(log_std)
    log_prob: F64 = (-0.5 * z * z - log_std - HALF_LOG_TWO_PI).sum(axis=1)
    entropy = (log_std + 0.5 + HALF_LOG_TWO_PI).sum()
    return log_prob, np.full(len(z), entropy)


def parts(head: Any, branches: Sequence[int], log_std: Any, masks: Any, actions: Any) -> tuple[F64, F64]:
    """Log-probabilities of `actions` (N, C + G), choices before numbers, and entropies (N,).

    `head` (N, M + G) holds the logits of every choice, then means; where `masks` (N, M) are 0 there is no choice.
    """
    head, actions = np.asarray(head, np.float64), np.asarray(actions)
    log_prob, entropy = gaussian(head[:, sum(branches) :], log_std, actions[:, len(branches) :])
    stops = np.cumsum(branches)
    for part, (start, stop) in enumerate(zip(stops - branches, stops, strict=True)):
        for row, mask in enumerate(np.asarray(masks)[:, start:stop] != 0):
            chosen = np.count_nonzero(mask[: int(actions[row, part])])
            found = categorical(head[row : row + 1, start:stop][:, mask], [chosen])
            log_prob[row] += found[0][0]
            entropy[row] += found[1][0]
    return log_prob, entropy


def squashed(head: F64, noise: Any) -> tuple[F64, F64]:
    """Actions (N, A) in (-1, 1) and their log-densities (N,), from means and log deviations beside each other."""
    mean, raw = np.split(head, 2, axis=1)
    log_std = np.clip(raw, LOG_STD_LOW, LOG_STD_HIGH)
    noise = np.asarray(noise, np.float64)
    actions: F64 = np.tanh(mean + noise * np.exp(log_std))
    normal = -0.5 * noise**2 - log_std - HALF_LOG_TWO_PI
    return actions, (normal - np.log(1.0 - actions**2 + SQUASH_EPS)).sum(axis=1)
