"""What a transition looks like in memory, where that memory comes from, and how buffers are saved to files.

Format history
    1  arrays by name; metadata `mileage_buffer` = JSON with format, kind and layout
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import DTypeLike

from mileage.errors import CheckpointError, UsageError, require
from mileage.records import named
from mileage.types import Array

Shape = int | tuple[int, ...]
"""Of one observation or action; an integer is a vector."""
_OBS_DTYPES = ("float32", "uint8")
_ACTION_DTYPES = ("float32", "int64", "int32", "uint8")
_ALIGNMENT = 8


class NextObs(StrEnum):
    """Where the observation after a transition is kept."""

    STORED = "stored"
    """Beside the transition: transitions may come from anywhere, in any order."""
    DERIVED = "derived"
    """In the next transition of the same environment, with final observations apart: half the memory, half the copying.
    Pushes must follow each other in time, and a transition can be sampled once the next one has been pushed."""


class LayoutOptions(TypedDict, total=False):
    """What buffers take beside capacity and shapes."""

    obs_dtype: DTypeLike
    """float32 (default) or uint8."""
    action_dtype: DTypeLike
    """float32 (default), int64, int32 or uint8."""
    n_envs: int
    """Environments whose transitions are pushed together; default 1."""
    next_obs: str
    """"stored" (default) for transitions in any order; "derived" halves memory where pushes follow each other."""
    n_step: int
    """Steps a sampled transition spans; default 1."""
    gamma: float
    """Discount per step; default 0.99."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A ring of `rows` × `n_envs` records; see `mileage.kernels.ring` for the order of their fields."""

    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str
    n_envs: int
    rows: int
    next_obs: NextObs
    n_step: int
    gamma: float

    @classmethod
    def of(cls, capacity: int, obs_shape: Shape, action_shape: Shape = (), **options: Unpack[LayoutOptions]) -> Layout:
        """Check what a user gave and make the layout that holds at most `capacity` transitions."""
        n_envs, n_step = options.get("n_envs", 1), options.get("n_step", 1)
        gamma, next_obs = options.get("gamma", 0.99), options.get("next_obs", NextObs.STORED)
        for name, number in (("capacity", capacity), ("n_envs", n_envs), ("n_step", n_step)):
            require(isinstance(number, int | np.integer), name, number, "a whole number")
        require(isinstance(gamma, float | int | np.floating), "gamma", gamma, "a number")
        require(n_envs >= 1, "n_envs", n_envs, "at least 1")
        require(capacity >= n_envs, "capacity", capacity, f"at least n_envs, {n_envs}")
        require(n_step >= 1, "n_step", n_step, "at least 1")
        require(0.0 <= gamma <= 1.0, "gamma", gamma, "between 0 and 1")
        require(next_obs in tuple(NextObs), "next_obs", next_obs, "'stored' or 'derived'")
        kind = NextObs(next_obs)
        transitions = capacity // n_envs
        return cls(
            obs_shape=_shape("obs_shape", obs_shape),
            obs_dtype=_dtype("obs_dtype", options.get("obs_dtype", np.float32), _OBS_DTYPES),
            action_shape=_shape("action_shape", action_shape),
            action_dtype=_dtype("action_dtype", options.get("action_dtype", np.float32), _ACTION_DTYPES),
            n_envs=n_envs,
            # The newest row of a ring that derives next observations is there to be derived from.
            rows=transitions + (kind is NextObs.DERIVED),
            next_obs=kind,
            n_step=n_step,
            gamma=gamma,
        )

    @property
    def stored(self) -> bool:
        """Whether next observations are stored beside their transition."""
        return self.next_obs is NextObs.STORED

    @property
    def capacity(self) -> int:
        """Most transitions that can be sampled from."""
        return (self.rows if self.stored else self.rows - 1) * self.n_envs

    @property
    def obs_bytes(self) -> int:
        """Bytes of one observation."""
        return math.prod(self.obs_shape) * np.dtype(self.obs_dtype).itemsize

    @property
    def action_bytes(self) -> int:
        """Bytes of one action."""
        return math.prod(self.action_shape) * np.dtype(self.action_dtype).itemsize

    @property
    def next_at(self) -> int:
        """Offset of the stored next observation, 0 if there is none."""
        return _aligned(self.obs_bytes) if self.stored else 0

    @property
    def action_at(self) -> int:
        """Offset of the action."""
        return _aligned(self.next_at + self.obs_bytes)

    @property
    def reward_at(self) -> int:
        """Offset of the reward."""
        return -(-(self.action_at + self.action_bytes) // 4) * 4

    @property
    def state_at(self) -> int:
        """Offset of the state: flags, and where the final observation is."""
        return _aligned(self.reward_at + 4)

    @property
    def record(self) -> int:
        """Bytes of a record."""
        return self.state_at + 8

    def frame_fields(self) -> dict[str, float]:
        """The numbers that a ring's frame holds."""
        sizes = "n_envs rows record obs_bytes action_bytes n_step gamma"
        return named(self, f"{sizes} next_at action_at reward_at state_at")


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _shape(name: str, shape: Shape) -> tuple[int, ...]:
    axes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(not isinstance(size, int) or size < 1 for size in axes):
        raise UsageError(f"{name} must be positive sizes such as (84, 84, 4), not {shape!r}")
    return axes


def _dtype(name: str, dtype: DTypeLike, allowed: tuple[str, ...]) -> str:
    try:
        found = np.dtype(dtype).name
    except TypeError:
        found = repr(dtype)
    if found not in allowed:
        raise UsageError(f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {found}")
    return found


# --- Where a ring's memory comes from: the heap, or files that outlive the process ---
class Storage(Protocol):
    """Gives out zeroed arrays by name, and larger ones in their place."""

    def allocate(self, name: str, size: int, dtype: type[np.generic]) -> Array:
        """A C-contiguous array (size,) of zeros, or of what was stored under this name before."""
        ...

    def grow(self, name: str, array: Array, size: int) -> Array:
        """An array (size,) that begins with the content of `array`."""
        ...

    def check(self) -> None:
        """Raise if the memory can no longer be relied upon."""
        ...


class HeapStorage:
    """Ordinary memory; pages are taken from the system when first written to."""

    def allocate(self, name: str, size: int, dtype: type[np.generic]) -> Array:
        """A new array of zeros."""
        try:
            return np.zeros(size, dtype)
        except (MemoryError, ValueError) as error:
            needed = size * np.dtype(dtype).itemsize / 1e9
            raise UsageError(
                f"no memory for {needed:,.1f} GB of {name}: lower capacity, or use MappedReplay"
            ) from error

    def grow(self, name: str, array: Array, size: int) -> Array:
        """A new array with the old content."""
        larger = np.zeros(size, array.dtype)
        larger[: len(array)] = array
        return larger

    def check(self) -> None:
        """Memory does not vanish."""


# --- Saved buffers: one safetensors file whose header carries the layout as JSON. Nothing in one is ever executed ---
FORMAT = 1
_KEY = "mileage_buffer"


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """A layout as JSON-ready values."""
    return dataclasses.asdict(layout)


def layout_from_json(record: dict[str, Any]) -> Layout:
    """The inverse of `layout_to_json`, checked as if a user had given it."""
    stored = NextObs(record["next_obs"])
    rows = int(record["rows"]) - (stored is NextObs.DERIVED)
    return Layout.of(
        capacity=rows * int(record["n_envs"]), obs_shape=tuple(record["obs_shape"]),
        action_shape=tuple(record["action_shape"]), obs_dtype=str(record["obs_dtype"]),
        action_dtype=str(record["action_dtype"]), n_envs=int(record["n_envs"]), next_obs=stored,
        n_step=int(record["n_step"]), gamma=float(record["gamma"]),
    )  # fmt: skip


def save(path: Path, kind: str, layout: Layout, arrays: dict[str, Array]) -> None:
    """Write a buffer so that `path` is either the old file or the whole new one."""
    from safetensors.numpy import save_file

    header = {_KEY: json.dumps({"format": FORMAT, "kind": kind, "layout": layout_to_json(layout)})}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary, metadata=header)
        temporary.replace(path)
    except Exception as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CheckpointError(f"buffer {path} cannot be written: {error}") from error


def load(path: Path, kind: str) -> tuple[Layout, dict[str, Array]]:
    """Read a buffer's layout and arrays."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"buffer file {path} does not exist")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, ""))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if header["format"] > FORMAT:
            raise CheckpointError(
                f"buffer file {path} has format {header['format']}, this version reads up to {FORMAT}: upgrade mileage"
            )
        found, layout = header["kind"], layout_from_json(header["layout"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error
    if found != kind:
        raise CheckpointError(
            f"buffer file {path} holds a {found} buffer, not a {kind} one: load it with its own class"
        )
    return layout, arrays


def damaged(path: Path | None = None) -> CheckpointError:
    """The error for a file whose content contradicts itself."""
    name = f"buffer file {path}" if path else "the buffer's file"
    return CheckpointError(f"{name} is damaged or not a mileage buffer: delete it and collect again")
