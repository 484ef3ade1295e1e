"""Rollout storage for on-policy loops: fixed steps of fixed environments, advantages, shuffled minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mileage.buffers.layout import Layout, Shape
from mileage.errors import UsageError, require
from mileage.kernels.arrays import gae
from mileage.types import F32, Array, Bool


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Some transitions of a rollout, in memory that the next minibatch overwrites.

    obs (b, *obs_shape) and actions (b, *action_shape) in their dtypes; the others (b,) float32.
    """

    obs: Array
    actions: Array
    log_probs: F32
    values: F32
    advantages: F32
    returns: F32


class RolloutBuffer:
    """Preallocated arrays (n_steps, n_envs, ...), time-major; row t is the step that starts at `obs[t]`.

    >>> rollout = RolloutBuffer(2, 1, obs_shape=3)
    >>> one, flag = np.ones(1, np.float32), np.zeros(1, bool)
    >>> for _ in range(2):
    ...     rollout.add(np.ones((1, 3), np.float32), one, one, flag, flag, values=one, log_probs=one)
    >>> rollout.finish(last_values=one, gamma=1.0, lambda_=1.0)
    >>> rollout.returns[:, 0]
    array([3., 2.], dtype=float32)
    """

    def __init__(
        self, n_steps: int, n_envs: int, obs_shape: Shape, action_shape: Shape = (), *,
        obs_dtype: DTypeLike = np.float32, action_dtype: DTypeLike = np.float32, seed: int = 0,
    ) -> None:  # fmt: skip
        """Allocate for `n_steps` of `n_envs` environments; `seed` is of the shuffling."""
        layout = Layout.of(
            n_steps * n_envs, obs_shape, action_shape, obs_dtype=obs_dtype, action_dtype=action_dtype, n_envs=n_envs
        )
        self.n_steps, self.n_envs = n_steps, n_envs
        shape = (n_steps, n_envs)
        self.obs: Array = np.zeros((*shape, *layout.obs_shape), layout.obs_dtype)
        self.actions: Array = np.zeros((*shape, *layout.action_shape), layout.action_dtype)
        self.rewards, self.values, self.log_probs = (np.zeros(shape, np.float32) for _ in range(3))
        self.truncated_values, self.advantages, self.returns = (np.zeros(shape, np.float32) for _ in range(3))
        self.terminated: Bool = np.zeros(shape, np.bool_)
        self.truncated: Bool = np.zeros(shape, np.bool_)
        self._rng = np.random.default_rng(seed)
        self._step = 0
        self._finished = False
        self._order = np.arange(n_steps * n_envs)

    @property
    def full(self) -> bool:
        """Whether all steps have been added."""
        return self._step == self.n_steps

    def reset(self) -> None:
        """Begin a new rollout in the same memory."""
        self._step, self._finished = 0, False

    def add(
        self, obs: ArrayLike, actions: ArrayLike, rewards: ArrayLike, terminated: ArrayLike, truncated: ArrayLike, *,
        values: ArrayLike, log_probs: ArrayLike, truncated_values: ArrayLike | None = None,
    ) -> None:  # fmt: skip
        """Copy one step of all environments in.

        Args:
            obs: (n_envs, *obs_shape), what the actions were chosen from.
            actions: (n_envs, *action_shape).
            rewards, values, log_probs: (n_envs,) floats.
            terminated, truncated: (n_envs,) bool, what the step returned.
            truncated_values: (n_envs,) floats, the critic at the final observation of truncated steps; required if
                there are any.
        """
        if self.full:
            raise UsageError(f"the rollout has all its {self.n_steps} steps: call finish, then reset")
        t = self._step
        if truncated_values is None:
            if np.any(truncated):
                raise UsageError(
                    "truncated_values is required where a step is truncated: pass the critic's values there"
                )
            self.truncated_values[t] = 0.0
        else:
            _copy("truncated_values", self.truncated_values[t], truncated_values)
        _copy("obs", self.obs[t], obs)
        _copy("actions", self.actions[t], actions)
        _copy("rewards", self.rewards[t], rewards)
        _copy("terminated", self.terminated[t], terminated)
        _copy("truncated", self.truncated[t], truncated)
        _copy("values", self.values[t], values)
        _copy("log_probs", self.log_probs[t], log_probs)
        self._step += 1

    def finish(self, last_values: F32, *, gamma: float = 0.99, lambda_: float = 0.95) -> None:
        """Compute advantages and returns; `last_values` (n_envs,) float32 is the critic after the last step."""
        if not self.full:
            raise UsageError(f"the rollout has {self._step} of {self.n_steps} steps: add the rest before finish")
        gae(
            self.rewards, self.values, self.terminated, last_values, truncated=self.truncated,
            truncated_values=self.truncated_values, gamma=gamma, lambda_=lambda_, out=(self.advantages, self.returns),
        )  # fmt: skip
        self._finished = True

    def minibatches(self, size: int) -> Iterator[Minibatch]:
        """All transitions once, shuffled, in minibatches of `size`; the last may be smaller."""
        if not self._finished:
            raise UsageError("minibatches need advantages: call finish first")
        require(size >= 1, "minibatch size", size, "at least 1")
        self._rng.shuffle(self._order)
        flat = [
            array.reshape(-1, *array.shape[2:])
            for array in (self.obs, self.actions, self.log_probs, self.values, self.advantages, self.returns)
        ]
        memory = [np.empty((min(size, len(self._order)), *array.shape[1:]), array.dtype) for array in flat]
        for start in range(0, len(self._order), size):
            chosen = self._order[start : start + size]
            for source, out in zip(flat, memory, strict=True):
                # With mode "clip" the result is written straight into `out`; the indices are within range.
                np.take(source, chosen, axis=0, out=out[: len(chosen)], mode="clip")
            yield Minibatch(*(out[: len(chosen)] for out in memory))


def _copy(name: str, out: Array, array: ArrayLike) -> None:
    """Copy without broadcasting and without losing precision unasked."""
    given = np.asarray(array)
    if given.shape != out.shape:
        raise UsageError(f"{name} must have shape {out.shape}, not {given.shape}")
    if given.dtype != out.dtype and not np.can_cast(given.dtype, out.dtype, "same_kind"):
        raise UsageError(f"{name} must have dtype {out.dtype}, not {given.dtype}: convert it with .astype")
    out[...] = given
