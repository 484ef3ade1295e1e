"""Advantages within groups, of `mileage.kernels.arrays.groups`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage._types import F64


def group_advantages(rewards: Any, *, normalize_std: bool = True, epsilon: float = 1e-6) -> F64:
    """Rewards minus the mean of their group, over its standard deviation plus epsilon, (G, K) float64."""
    rewards = np.asarray(rewards, np.float64)
    centred: F64 = rewards - rewards.mean(axis=1, keepdims=True)
    if not normalize_std:
        return centred
    advantages: F64 = centred / (rewards.std(axis=1, keepdims=True) + epsilon)
    return advantages
