"""Prioritized replay (Schaul et al., 2016): transitions are drawn in proportion to their priority."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from mileage.buffers import layout as files
from mileage.buffers.layout import Layout, LayoutOptions, Shape, Storage
from mileage.buffers.replay import LARGE, Batch, ReplayBuffer
from mileage.errors import UsageError, require
from mileage.kernels import ring, sumtree
from mileage.kernels.machine.checks import check_field
from mileage.kernels.sumtree import SumTree
from mileage.types import F64, I64, Array

EPSILON = 1e-6
_PRIORITY_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_MISFIT = -3.0


class PrioritizedReplay(ReplayBuffer):
    """Draws a transition with probability priority ** alpha over the sum, and weighs it by how unlikely others were.

    A new transition has the highest priority seen, so that each is drawn soon. Weights are (p / p_min) ** -beta: at
    most 1, without another pass. `beta` rises linearly from its first to its final value over `beta_samples` calls of
    `sample`, and stays there.
    """

    kind = "prioritized"

    def __init__(
        self, capacity: int, obs_shape: Shape, action_shape: Shape = (), *, seed: int = 0, alpha: float = 0.6,
        beta: tuple[float, float] = (0.4, 1.0), beta_samples: int = 100_000, **options: Unpack[LayoutOptions],
    ) -> None:  # fmt: skip
        """Allocate; `alpha` and `beta` as above, the rest as for `ReplayBuffer`."""
        require(0.0 <= alpha <= 1.0, "alpha", alpha, "between 0 and 1")
        require(all(0.0 <= end <= 1.0 for end in beta), "beta", beta, "two numbers between 0 and 1")
        require(beta_samples >= 1, "beta_samples", beta_samples, "at least 1")
        super().__init__(capacity, obs_shape, action_shape, seed=seed, **options)
        self._schedule[:4] = (alpha, *beta, beta_samples)

    def _build(self, layout: Layout, storage: Storage, seed: int) -> None:
        # alpha, beta at first, beta at last, samples to get there, samples made, highest leaf
        self._schedule: F64 = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 1.0])
        self.tree = SumTree(layout.rows * layout.n_envs)
        super()._build(layout, storage, seed)

    @property
    def beta(self) -> float:
        """The exponent of the importance weights at the next call of `sample`."""
        _, first, last, samples, made, _ = self._schedule
        return float(first + (last - first) * min(1.0, made / samples))

    @property
    def max_priority(self) -> float:
        """The highest priority ** alpha so far; what a new transition gets."""
        return float(self._schedule[5])

    def push_batch(
        self, obs: Array, actions: Array, rewards: Array, terminated: Array, truncated: Array, next_obs: Array
    ) -> None:
        """As for `ReplayBuffer`; the new transitions get the highest priority there has been."""
        before = self._count[ring.BEGUN]
        super().push_batch(obs, actions, rewards, terminated, truncated, next_obs)
        ring.admit(self._record, self.tree.record, before, self._schedule[5])

    def sample(self, batch_size: int, out: Batch | None = None, *, batches: int = 1) -> Batch:
        """Sample in proportion to priorities; `weights` of the batch are its importance weights."""
        out = self._memory_for(batch_size, out, batches)
        small = out.size * self._obs_bytes < LARGE
        ring.sample_by_priority(self._record, self.tree.record, out._record, self.beta, small)
        if not small:
            self._gather(out)
        self._schedule[4] += 1.0
        return out

    def update_priorities(self, indices: I64, priorities: Array) -> None:
        """Set new priorities of sampled transitions.

        Args:
            indices: (n,) int64 from `Batch.indices`; a transition overwritten since is left alone.
            priorities: (n,) float32 or float64, such as TD errors; their absolute value counts.
        """
        schedule = self._schedule
        try:
            fits = indices.shape == priorities.shape and indices.ndim == 1 and indices.dtype == np.int64
            fits = fits and priorities.dtype in _PRIORITY_DTYPES
        except AttributeError:
            fits = False
        code = sumtree.update(self.tree.record, indices, priorities, schedule[0], EPSILON) if fits else _MISFIT
        if code < 0:
            self._explain_update(code, indices, priorities)
        if code > schedule[5]:
            schedule[5] = code

    def clear(self) -> None:
        """Forget all transitions and priorities."""
        super().clear()
        self.tree.leaves[:] = 0.0
        self.tree.rebuild()
        self._schedule[5] = 1.0

    def saved_arrays(self) -> dict[str, Array]:
        """As for `ReplayBuffer`, with the priorities and where their schedule stands."""
        return super().saved_arrays() | {"priorities": self.tree.leaves, "schedule": self._schedule}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `saved_arrays` returned."""
        super().restore(arrays)
        leaves, schedule = arrays["priorities"], arrays["schedule"]
        # Drawing relies on this: what can be sampled, and nothing else, has a priority.
        held = np.zeros(self.tree.size, np.bool_)
        first, count = self._oldest(), len(self) // self.layout.n_envs
        held.reshape(-1, self.layout.n_envs)[(first + np.arange(count)) % self.layout.rows] = True
        usable = np.isfinite(schedule).all() and (schedule >= 0.0).all() and (schedule[:3] <= 1.0).all()
        if not usable or schedule[3] < 1.0 or not np.isfinite(leaves).all() or not ((leaves > 0.0) == held).all():
            raise files.damaged()
        self.tree.leaves[:] = leaves
        self.tree.rebuild()
        self._schedule[:] = schedule

    def _explain_update(self, code: float, indices: I64, priorities: Array) -> None:
        if code == sumtree.BAD_INDEX:
            raise UsageError(f"indices must lie in [0, {self.tree.size}): take them from Batch.indices")
        if code == sumtree.BAD_PRIORITY:
            raise UsageError("priorities must be finite: find where the NaN or infinity comes from")
        n = np.size(indices)
        check_field("indices", indices, (n,), (np.dtype(np.int64),))
        check_field("priorities", priorities, (n,), _PRIORITY_DTYPES)
        raise UsageError("priorities cannot be updated: check the dtypes and shapes of indices and priorities")
