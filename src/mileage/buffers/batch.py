"""A batch of sampled transitions in memory that is allocated once and filled again and again."""

from __future__ import annotations

import numpy as np

from mileage._types import F32, I64, Array, Bool
from mileage.buffers.layout import Layout
from mileage.kernels.storage.ring import BATCH, bind


class Batch:
    """`size` transitions; pass it to `sample(..., out=batch)` to have it filled.

    Attributes:
        obs, next_obs: (size, *obs_shape) in the buffer's dtype; `next_obs` is n steps later or where the episode ended.
        actions: (size, *action_shape) in the buffer's dtype.
        rewards: (size,) float32, the discounted sum over up to n steps.
        discounts: (size,) float32, what the value of `next_obs` is worth: gamma ** steps, 0 after a terminated one.
        terminated, truncated: (size,) bool, of the last of those steps.
        indices: (size,) int64, where in the ring; for `update_priorities`.
        weights: (size,) float32, importance weights; all 1 unless sampling is prioritized.
    """

    __slots__ = (
        "_record", "actions", "discounts", "indices", "layout", "next_obs", "obs", "rewards", "size", "terminated",
        "truncated", "weights",
    )  # fmt: skip

    def __init__(self, layout: Layout, size: int) -> None:
        self.layout, self.size = layout, size
        self.obs: Array = np.empty((size, *layout.obs_shape), layout.obs_dtype)
        self.next_obs: Array = np.empty((size, *layout.obs_shape), layout.obs_dtype)
        self.actions: Array = np.empty((size, *layout.action_shape), layout.action_dtype)
        self.rewards: F32 = np.empty(size, np.float32)
        self.discounts: F32 = np.empty(size, np.float32)
        self.terminated: Bool = np.empty(size, np.bool_)
        self.truncated: Bool = np.empty(size, np.bool_)
        self.indices: I64 = np.empty(size, np.int64)
        self.weights: F32 = np.ones(size, np.float32)
        self._record = np.empty(1, BATCH)
        bind(
            self._record, self.obs.reshape(-1), self.next_obs.reshape(-1), self.actions.reshape(-1), self.rewards,
            self.discounts, self.terminated, self.truncated, self.indices, self.weights,
        )  # fmt: skip

    def __len__(self) -> int:
        return self.size
