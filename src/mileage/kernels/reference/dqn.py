"""The targets and the loss of `mileage.kernels.learners.dqn`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mileage._types import F64
from mileage.kernels.reference.mlp import mlp
from mileage.kernels.reference.twin_critic import Transitions


def q_values(params: Any, sizes: Sequence[int], obs: Any, activation: str, dueling: bool) -> F64:
    """Action values (N, K); a dueling head holds the state's value first (Wang et al., 2016, equation 9)."""
    head = mlp(params, sizes, obs, activation)[-1]
    if not dueling:
        return head
    advantages = head[:, 1:]
    return np.asarray(head[:, :1] + advantages - advantages.mean(axis=1, keepdims=True))


def targets(batch: Transitions, online_next: F64, target_next: F64, double: bool, masks: Any = None) -> F64:
    """Bellman targets (N,): the target network's value of the action that it, or the online network, prefers.

    Where `masks` (N, K) are 0, there is no such action after a transition.
    """
    judge = online_next if double else target_next
    choices = (judge if masks is None else np.where(np.asarray(masks) != 0, judge, -np.inf)).argmax(axis=1)
    return batch.bootstrapped(target_next[np.arange(len(choices)), choices])


def huber(errors: F64, limit: float) -> F64:
    """Half the square up to `limit`, linear beyond it."""
    size = np.abs(errors)
    return np.where(size <= limit, 0.5 * errors**2, limit * (size - 0.5 * limit))
