"""Between what an environment shows and takes and the rows that learners work on.

A codec belongs to an environment's description (`EnvSpec.codec`). Whoever meets an observation or an action in the
environment's own form, the bridge, `predict`, `distribution`, goes through it, so that there is one way to flatten.

    observation row   (O,) float32, or (B,) bytes that pack the arrays `leaves`
    action row        (A,) float32: the index of every choice, counted from 0, then the numbers of boxes; a single
                      discrete action is an integer instead
    mask              (M,) uint8, one for every way to choose, in the order of the choices
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mileage.errors import EnvError, UsageError
from mileage.records import Record
from mileage.types import U8, Action, ActionMask, Array, Observation, ObsLeaf


class Codec:
    """Of environments whose observations and actions are rows already, or dicts of arrays by the names of `leaves`."""

    def __init__(self, obs_size: int, branches: Sequence[int] = (), leaves: Sequence[ObsLeaf] | None = None) -> None:
        """`branches` says how many ways there are to choose each discrete part of an action."""
        self.obs_size, self.branches, self.leaves = obs_size, tuple(branches), leaves

    def rows(self, observation: Observation) -> tuple[Array, bool]:
        """One observation or a batch as rows (N, O) float32 or (N, B) uint8, and whether it was a single one."""
        if self.leaves is None:
            return self._flat_rows(observation)
        if self.leaves[0].name and not isinstance(observation, Mapping):
            raise UsageError(f"observation must be a dict with {[each.name for each in self.leaves]}")
        found = {leaf.name: self._leaf_value(leaf, observation) for leaf in self.leaves}
        return self._packed([(leaf, found[leaf.name], leaf.shape) for leaf in self.leaves])

    def shown(self, rows: Array) -> Observation:
        """Rows (N, O) as a batch in the environment's own form: what `rows` was made of, its numbers as float32."""
        if self.leaves is None:
            return rows
        found = {leaf.name: view_of(leaf, np.ascontiguousarray(rows)) for leaf in self.leaves}
        return found if self.leaves[0].name else found[""]

    def taken_rows(self, actions: Action) -> Array:
        """A batch of actions in the environment's own form as a policy's: (N,) integers, or numbers (N, A)."""
        return np.asarray(actions)

    def actions(self, rows: Array, single: bool) -> Action:
        """Actions of a policy as the environment takes them: one of them, or a batch."""
        return rows[0] if single else rows

    def masks(self, given: ActionMask, n: int) -> U8:
        """Masks for `n` observations, (N, M) uint8, from one for all of them or one for each."""
        return self.checked_masks(given, n)

    def checked_masks(self, given: ActionMask, n: int) -> U8:
        """Flat masks for `n` observations; UsageError if they do not fit or leave nothing possible."""
        size = sum(self.branches)
        if not size:
            raise UsageError("action_masks are for environments with discrete actions")
        array = np.asarray(given)
        if array.dtype.kind not in "biuf" or array.shape not in ((size,), (n, size)):
            raise UsageError(
                f"action_masks must be of shape ({size},) or ({n}, {size}), true for what is possible, "
                f"not {array.dtype} of shape {array.shape}"
            )
        masks: U8 = np.ascontiguousarray(np.broadcast_to(array != 0, (n, size)), np.uint8)
        if leave_nothing(masks, self.branches):
            raise UsageError("action_masks must leave at least one choice possible")
        return masks

    def described(self) -> Record:
        """What a checkpoint says of it, as JSON has it."""
        return {"observation": self.obs_size, "choices": list(self.branches)}

    def _flat_rows(self, observation: Observation) -> tuple[Array, bool]:
        try:
            obs = np.asarray(observation, np.float32)
        except (TypeError, ValueError):
            raise UsageError(f"observation must be {self.obs_size} numbers, not {type(observation).__name__}") from None
        single, shape = obs.ndim <= 1, obs.shape
        obs = obs.reshape(1, -1) if single else obs
        if obs.ndim != 2 or obs.shape[1] != self.obs_size:
            raise UsageError(f"observation must have {self.obs_size} entries, not shape {shape}")
        return obs, single

    def _leaf_value(self, leaf: ObsLeaf, observation: Observation) -> Array:
        if leaf.name and leaf.name not in observation:
            raise UsageError(f"observation must be a dict with {[each.name for each in self.leaves or ()]}")
        return np.asarray(observation[leaf.name] if leaf.name else observation)

    def _packed(self, parts: Sequence[tuple[ObsLeaf, Array, tuple[int, ...]]]) -> tuple[U8, bool]:
        """Rows of leaves and their values, single ones of the shape that stands beside them or batches."""
        batches, singles = {}, set()
        for leaf, value, shape in parts:
            singles.add(is_single(value, shape, leaf.name))
            batches[leaf.name] = value[None] if value.shape == shape else value
        sizes = {len(each) for each in batches.values()}
        if len(singles) > 1 or len(sizes) > 1:
            raise UsageError("observation must be of one length in all its parts")
        out: U8 = np.zeros((sizes.pop(), self.obs_size), np.uint8)
        pack([leaf for leaf, _, _ in parts], batches, out)
        return out, singles == {True}


def leave_nothing(masks: U8, branches: Sequence[int]) -> bool:
    """Whether some mask (N, M) leaves a part of an action without a choice."""
    return not np.logical_or.reduceat(masks, np.cumsum([0, *branches[:-1]]), axis=1).all()


def no_way_out(env_id: str) -> EnvError:
    """What is wrong with an environment whose mask leaves nothing."""
    return EnvError(f"environment {env_id!r} has a mask that leaves no action possible: at least one must be")


def is_single(value: Array, shape: tuple[int, ...], name: str) -> bool:
    """Whether `value` is one array of `shape`; False for a batch of them, UsageError for anything else."""
    if value.shape == shape:
        return True
    if value.ndim == len(shape) + 1 and value.shape[1:] == shape:
        return False
    label = f"observation {name!r}" if name else "observation"
    raise UsageError(f"{label} must have shape {shape}, not {value.shape}")


def pack(leaves: Sequence[ObsLeaf], obs: Array | Mapping[str, Array], out: U8) -> None:
    """Write observations, (N, *shape) or a dict of such, as rows into `out` (N, B) uint8.

    Discrete parts, (N,) integers, become one-hot.
    """
    for leaf in leaves:
        values = np.asarray(obs[leaf.name] if isinstance(obs, Mapping) else obs)
        view = view_of(leaf, out)
        if values.ndim == 1 and view.ndim == 2 and values.dtype.kind in "iu":
            view[:] = values[:, None] == np.arange(view.shape[1])
        else:
            view[:] = values


def view_of(leaf: ObsLeaf, rows: U8) -> Array:
    """The array (N, *shape) inside packed rows (N, B) uint8; not a copy."""
    part = rows[:, leaf.start : leaf.stop].view(leaf.dtype)
    strides = [np.dtype(leaf.dtype).itemsize]
    for size in reversed(leaf.shape[1:]):
        strides.insert(0, strides[0] * size)
    shape = (len(rows), *leaf.shape)
    return np.lib.stride_tricks.as_strided(part, shape, (part.strides[0], *strides[: len(leaf.shape)]))
