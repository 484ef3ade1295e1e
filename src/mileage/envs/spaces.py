"""Any Gymnasium spaces as rows: nested dicts and tuples of boxes, discrete, multi-discrete and multi-binary parts."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from mileage.codec import Codec, is_single, view_of
from mileage.errors import UsageError
from mileage.records import Record
from mileage.types import F32, I64, U8, Action, ActionMask, Array, Observation, ObsLeaf

Space = spaces.Space[Any]
Path = tuple[str | int, ...]
"""To a part of a space: keys of dicts, places in tuples."""
# Views of float32 start at multiples of their size; rows at multiples of a cache word.
_ALIGNMENT = 8


class Part(NamedTuple):
    """A space that is not made of others, and the way to it: keys of dicts, places in tuples."""

    path: Path
    space: Space

    @property
    def name(self) -> str:
        """The way to it in a word."""
        return "/".join(map(str, self.path))

    def of(self, whole: Observation | Action | ActionMask, what: str) -> Array:
        """Its value in an observation, an action or a mask (`what`) of the whole space."""
        for key in self.path:
            fits = isinstance(whole, Mapping) if isinstance(key, str) else isinstance(whole, Sequence)
            if not fits or (key not in whole if isinstance(key, str) else len(whole) <= key):
                raise UsageError(f"{what} must be of the space's form: there is no part {self.name!r}")
            whole = whole[key]
        try:
            return np.asarray(whole)
        except ValueError:
            raise UsageError(f"{what} {self.name!r} must be an array") from None


def parts_of(space: Space, path: Path = ()) -> Iterator[Part]:
    """The parts of a space, in Gymnasium's order."""
    if isinstance(space, spaces.Dict):
        for key, each in space.spaces.items():
            yield from parts_of(each, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for place, each in enumerate(space.spaces):
            yield from parts_of(each, (*path, place))
    else:
        yield Part(path, space)


class SpaceCodec(Codec):
    """Between the spaces of a Gymnasium environment and rows.

    Attributes:
        flat: whether rows are float32 vectors; else they pack the parts of an observation (`leaves`).
        n_actions: choices of an action that is one number; 0 otherwise.
        action_low, action_high: bounds of an action row, infinite for choices; empty if `n_actions`.
    """

    def __init__(self, env_id: str, observation: Space, action: Space, *, packed: bool = False) -> None:
        """UsageError if there are other spaces in them than rows can hold."""
        self.env_id, self.observation_space, self.action_space = env_id, observation, action
        self._shown, self._taken = list(parts_of(observation)), list(parts_of(action))
        for part in self._shown:
            if not isinstance(part.space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
                raise UsageError(
                    f"environment {env_id!r} has observations {part.space}: wrap it so that they are arrays"
                )
        for part in self._taken:
            if _choices(part.space) is None and not isinstance(part.space, spaces.Box):
                raise UsageError(
                    f"environment {env_id!r} has actions {part.space}: wrap it to take Discrete, MultiDiscrete, "
                    "MultiBinary, Box, or a Dict or Tuple of them"
                )
        self.n_actions = int(action.n) if isinstance(action, spaces.Discrete) else 0
        numbers = [each.space for each in self._taken if isinstance(each.space, spaces.Box)]
        branches = [size for each in self._taken for size in _choices(each.space) or ()]
        self.action_low = _bounds([each.low for each in numbers], -np.inf, 0 if self.n_actions else len(branches))
        self.action_high = _bounds([each.high for each in numbers], np.inf, 0 if self.n_actions else len(branches))
        leaves = _leaves(self._shown) if packed else None
        size = sum(spaces.flatdim(each.space) for each in self._shown)
        super().__init__(size if leaves is None else _aligned(leaves[-1].stop), branches, leaves)

    @property
    def numbers(self) -> int:
        """Entries of boxes in an action."""
        return len(self.action_low) - (0 if self.n_actions else len(self.branches))

    def rows(self, observation: Observation) -> tuple[Array, bool]:
        """One observation or a batch, as the environment shows it or flat already, as rows."""
        flat = np.asarray(observation) if isinstance(observation, np.ndarray | list) else None
        if self.leaves is None and flat is not None and self._is_flat(flat):
            return self._flat_rows(flat)
        space = self.observation_space
        if isinstance(space, spaces.Dict) and not (
            isinstance(observation, Mapping) and space.keys() <= observation.keys()
        ):
            raise UsageError(f"observation must be a dict with {list(space.keys())}")
        values = [part.of(observation, "observation") for part in self._shown]
        parts = zip(self._shown, values, strict=True)
        single = {is_single(each, _shape_of(part.space, each), part.name) for part, each in parts}
        sizes = {1 if single == {True} else len(each) for each in values}
        if len(single) > 1 or len(sizes) > 1:
            raise UsageError("observation must be of one length in all its parts")
        batches = [each[None] for each in values] if single == {True} else values
        out = np.zeros((sizes.pop(), self.obs_size), np.float32 if self.leaves is None else np.uint8)
        self.write_rows(batches, out)
        return out, single == {True}

    def write_rows(self, batches: Sequence[Array], out: Array) -> None:
        """Write a batch of every part, (N, *shape), as rows into `out`."""
        if self.leaves is None:
            start = 0
            for part, values in zip(self._shown, batches, strict=True):
                encoded = _encoded(part.space, values)
                out[:, start : start + encoded.shape[1]] = encoded
                start += encoded.shape[1]
            return
        for leaf, part, values in zip(self.leaves, self._shown, batches, strict=True):
            view = view_of(leaf, out)
            view[:] = _encoded(part.space, values).reshape(view.shape)

    def take(self, observation: Observation, out: Array) -> None:
        """Write a batch of observations, as a vector environment has them, as rows into `out`."""
        self.write_rows([part.of(observation, "observation") for part in self._shown], out)

    def flatten(self, observation: Observation) -> F32:
        """One observation as a float32 vector (O,)."""
        out: F32 = np.zeros((1, self.obs_size), np.float32)
        self.write_rows([part.of(observation, "observation")[None] for part in self._shown], out)
        return out.reshape(-1)

    @functools.cached_property
    def flat_space(self) -> spaces.Box:
        """The space of `flatten`."""
        found = spaces.flatten_space(self.observation_space)
        assert isinstance(found, spaces.Box)
        return spaces.Box(found.low.astype(np.float32), found.high.astype(np.float32), dtype=np.float32)

    def shown(self, rows: Array) -> Observation:
        """Rows as a batch in the environment's own form, choices as numbers again."""
        if self.leaves is not None:
            raise UsageError(f"environment {self.env_id!r} shows packed rows, which cannot be unpacked for others")
        if rows.ndim > 2:  # images, which stay as they are
            return rows
        columns: dict[Path, Observation] = {}
        start = 0
        for path, space in self._shown:
            size = spaces.flatdim(space)
            columns[path] = _shown(space, rows[:, start : start + size])
            start += size
        return _nested(self.observation_space, columns)

    def taken_rows(self, actions: Action) -> Array:
        """A batch of actions in the environment's own form as rows; an action of several spaces cannot be one."""
        space = self.action_space
        if isinstance(space, spaces.Dict | spaces.Tuple):
            raise UsageError(f"environment {self.env_id!r} has actions {space}: others cannot choose those")
        array = np.asarray(actions)
        if isinstance(space, spaces.Discrete):
            return array - int(space.start)
        if isinstance(space, spaces.MultiDiscrete):
            return array - space.start
        return array.reshape(len(array), -1)

    def actions(self, rows: Array, single: bool, *, apart: bool = False) -> Action:
        """Actions of a policy as the environment takes them: one of them, or a batch.

        With `apart`, a batch whose items Gymnasium's vector environments take apart into what a box holds, arrays all.
        """
        if self.n_actions:
            found: Action = np.asarray(rows, np.int64) + self.action_space.start  # type: ignore[attr-defined]
            return found[0] if single else found
        choice, number = 0, len(self.branches)
        columns: dict[Path, Action] = {}
        for path, space in self._taken:
            size = math.prod(space.shape or ())
            first = number if isinstance(space, spaces.Box) else choice
            values: Action = _decoded(space, rows[:, first : first + size])
            if isinstance(space, spaces.Box) and not space.shape:  # an item of an array would be a bare number
                values = [np.asarray(each) for each in values] if single or apart else values
            columns[path] = values[0] if single else values
            choice, number = (choice, number + size) if isinstance(space, spaces.Box) else (choice + size, number)
        return _nested(self.action_space, columns)

    def masks(self, given: ActionMask, n: int) -> U8:
        """Flat masks, or one of the action space's form: an array for every discrete part."""
        if not isinstance(given, Mapping | tuple):
            return self.checked_masks(given, n)
        parts = []
        for part in self._taken:
            if sizes := _choices(part.space):
                each = part.of(given, "action_masks") if part.path else _joined(given)
                if each.shape[-1:] != (sum(sizes),):
                    label = f" {part.name!r}" if part.path else ""
                    raise UsageError(f"action_masks{label} must have {sum(sizes)} entries, not shape {each.shape}")
                parts.append(each)
        return self.checked_masks(np.concatenate(parts, axis=-1), n)

    def described(self) -> Record:
        """What a checkpoint says of it: both spaces."""
        return {"observation": repr(self.observation_space), "action": repr(self.action_space)}

    def _is_flat(self, value: Array) -> bool:
        """Whether an array is rows already, and not what the environment shows."""
        shape = self.observation_space.shape
        if isinstance(self.observation_space, spaces.Discrete):
            return value.dtype.kind == "f" and value.shape[-1:] == (self.obs_size,)
        if shape is not None and (value.shape == shape or value.shape[1:] == shape):
            return False
        return value.dtype.kind in "biuf" and value.ndim in (1, 2) and value.shape[-1] == self.obs_size


def _choices(space: Space) -> tuple[int, ...] | None:
    """How many ways there are to choose each entry of a discrete space; None if it is not discrete."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(each) for each in space.nvec.ravel())
    return (2,) * math.prod(space.shape) if isinstance(space, spaces.MultiBinary) else None


def _shape_of(space: Space, values: Array) -> tuple[int, ...]:
    """Shape of one of the `values` of a part: the space's own, or that of choices which are one-hot already."""
    choices = sum(_choices(space) or ())
    is_encoded = isinstance(space, spaces.Discrete) and values.dtype.kind == "f" and values.shape[-1:] == (choices,)
    return (choices,) if is_encoded else space.shape or ()


def _encoded(space: Space, values: Array) -> Array:
    """A batch (N, *shape) of one part as numbers (N, k); choices are one-hot."""
    n = len(values)
    encoded = _shape_of(space, values[:1]) != (space.shape or ())
    if encoded or not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return values.reshape(n, -1)
    start = space.start.ravel() if isinstance(space, spaces.MultiDiscrete) else np.array([space.start])
    sizes = _choices(space) or ()
    if values.dtype.kind not in "biuf":
        raise UsageError(f"observation must be whole numbers as of {space}, not {values.dtype}")
    numbers = values.reshape(n, -1) - start
    outside = (numbers < 0) | (numbers >= np.array(sizes)) | (numbers != np.floor(numbers))
    if outside.any():
        raise UsageError(f"observation must be one of {space}, not {values.reshape(n, -1)[outside][0]}")
    index = numbers.astype(np.int64)
    return np.concatenate([index[:, [k]] == np.arange(size) for k, size in enumerate(sizes)], axis=1)


def _shown(space: Space, columns: Array) -> Array:
    """Columns (N, k) of observation rows as a batch of one part, (N, *shape) of its type; boxes are float32."""
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        kind = np.float32 if space.dtype.kind == "f" else space.dtype
        return columns.reshape(len(columns), *(space.shape or ())).astype(kind)
    starts = np.cumsum([0, *(_choices(space) or ())])
    index = [columns[:, first:stop].argmax(axis=1) for first, stop in itertools.pairwise(starts)]
    if isinstance(space, spaces.Discrete):
        return np.asarray(index[0] + space.start)
    return np.asarray(np.stack(index, axis=1).reshape(len(columns), *(space.shape or ())) + space.start)  # type: ignore[attr-defined]


def _decoded(space: Space, columns: Array) -> Array:
    """Columns (N, k) of action rows as a batch of one part, (N, *shape) of its type."""
    if isinstance(space, spaces.Box):
        if np.issubdtype(space.dtype, np.integer):
            columns = np.rint(columns)
    else:
        found: I64 = columns.astype(np.int64)
        if not isinstance(space, spaces.MultiBinary):
            found = found + (space.start.ravel() if isinstance(space, spaces.MultiDiscrete) else space.start)  # type: ignore[attr-defined]
        columns = found
    return columns.reshape(len(columns), *(space.shape or ())).astype(space.dtype)


def _nested(space: Space, values: Mapping[Path, Action], path: Path = ()) -> Action:
    """The values of parts put together in the form of the space."""
    if isinstance(space, spaces.Dict):
        return {key: _nested(each, values, (*path, key)) for key, each in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(each, values, (*path, place)) for place, each in enumerate(space.spaces))
    return values[path]


def _joined(given: ActionMask) -> Array:
    """The masks of a multi-discrete action, one for every choice, beside each other."""
    return np.concatenate([np.asarray(each) for each in given], axis=-1)


def _bounds(boxes: Sequence[Array], infinite: float, choices: int) -> F32:
    return np.concatenate([np.full(choices, infinite), *(each.ravel() for each in boxes)]).astype(np.float32)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _leaves(parts: Sequence[Part]) -> tuple[ObsLeaf, ...]:
    """Where the parts of an observation lie in a packed row."""
    leaves, start = [], 0
    for part in parts:
        space = part.space
        if isinstance(space, spaces.Box):
            shape, dtype = space.shape or (1,), "uint8" if space.dtype == np.uint8 else "float32"
        else:
            shape, dtype = (spaces.flatdim(space),), "float32"
        stop = start + math.prod(shape) * np.dtype(dtype).itemsize
        leaves.append(ObsLeaf(part.name, shape, dtype, start, stop))
        start = _aligned(stop)
    return tuple(leaves)
