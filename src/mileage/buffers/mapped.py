"""Replay larger than memory: a ring in files that the system pages in and out, and that outlives the process."""

from __future__ import annotations

import fcntl
import functools
import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack, cast

import numpy as np

from mileage.buffers import layout as files
from mileage.buffers.layout import Layout, LayoutOptions, Shape, Storage
from mileage.buffers.replay import ReplayBuffer
from mileage.errors import CheckpointError, UsageError
from mileage.kernels import ring
from mileage.types import Array

_HEADER = "replay.json"
_P = ParamSpec("_P")
_R = TypeVar("_R")


class FileStorage:
    """Arrays in the files of a directory, mapped into memory.

    Reading mapped memory behind the end of its file kills the process, and so does writing to a page the disk has no
    room for. So all blocks are reserved beforehand, and `check` compares the files with what was mapped.
    """

    def __init__(self, directory: Path, *, new: bool) -> None:
        """Use the files of `directory`; those of a `new` replay are made, those of another must be there."""
        self.directory, self._new = directory, new
        self._files: dict[str, tuple[int, int]] = {}

    def allocate(self, name: str, size: int, dtype: type[np.generic]) -> Array:
        """Map the file `name`, zeros if it is new; a file of another size is refused, unless it is one that grows."""
        path = self._path(name)
        wanted = size * np.dtype(dtype).itemsize
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._files[name] = (descriptor, 0)
        held = os.fstat(descriptor).st_size
        fits = held >= wanted if name == "finals" else held == wanted
        if not fits and (held or not self._new):
            raise files.damaged(path)
        return self._map(name, max(held, wanted), dtype)

    def grow(self, name: str, array: Array, size: int) -> Array:
        """Lengthen the file and map it anew; what it held stays."""
        return self._map(name, size * array.itemsize, array.dtype.type)

    def check(self) -> None:
        """Raise if a file has become shorter than what is mapped, or is no longer watched for it."""
        if not self._files:
            raise UsageError(f"replay {self.directory} is closed: open it again with MappedReplay.open")
        for name, (descriptor, size) in self._files.items():
            if os.fstat(descriptor).st_size < size:
                raise CheckpointError(
                    f"replay file {self._path(name)} was cut short by another program: delete {self.directory} and "
                    "collect again"
                )

    def close(self) -> None:
        """Let go of the files; arrays that are still in use stay mapped."""
        for descriptor, _ in self._files.values():
            os.close(descriptor)
        self._files = {}

    def sync(self) -> None:
        """Have everything on disk when this returns, so that it also survives a loss of power."""
        for descriptor, _ in self._files.values():
            os.fsync(descriptor)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.bin"

    def _map(self, name: str, size: int, dtype: type[np.generic]) -> Array:
        descriptor, _ = self._files[name]
        if size == 0:
            return np.empty(0, dtype)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            raise CheckpointError(
                f"no room for {size / 1e9:.1f} GB at {self.directory} ({error.strerror}): free space or lower capacity"
            ) from error
        self._files[name] = (descriptor, size)
        return np.frombuffer(mmap.mmap(descriptor, size), dtype)


def _checked(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """A method of `ReplayBuffer` for buffers in files, which are looked at first."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        cast(MappedReplay, args[0])._mapped.check()
        return method(*args, **kwargs)

    return call


class MappedReplay(ReplayBuffer):
    """A `ReplayBuffer` in a directory of its own; `MappedReplay.open` goes on where an earlier process stopped.

    What was pushed survives the end of the process, killed or not; a transition that was being written is dropped. Call
    `flush` where it has to survive a loss of power as well. One process at a time may use a directory.
    """

    kind = "mapped"

    def __init__(
        self, path: str | Path, capacity: int, obs_shape: Shape, action_shape: Shape = (), *, seed: int = 0,
        **options: Unpack[LayoutOptions],
    ) -> None:  # fmt: skip
        """Make a new replay in the directory `path`; the rest as for `ReplayBuffer`."""
        layout = Layout.of(capacity, obs_shape, action_shape, **options)
        directory = Path(path)
        if (directory / _HEADER).exists():
            raise UsageError(f"{directory} holds a replay already: open it with MappedReplay.open, or delete it")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{directory} cannot be made ({error.strerror}): give the path of a directory") from error
        header = {"format": files.FORMAT, "kind": self.kind, "layout": files.layout_to_json(layout)}
        self._attach(directory, json.dumps(header), layout, seed)

    @classmethod
    def open(cls, path: str | Path) -> MappedReplay:
        """Open a replay that another process made."""
        directory = Path(path)
        try:
            header = json.loads((directory / _HEADER).read_text())
            layout = files.layout_from_json(header["layout"])
        except FileNotFoundError as error:
            raise CheckpointError(f"{directory} holds no replay: make one with MappedReplay(path, ...)") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise files.damaged(directory / _HEADER) from error
        buffer = cls.__new__(cls)
        buffer._attach(directory, None, layout, seed=0)
        return buffer

    def _attach(self, directory: Path, header: str | None, layout: Layout, seed: int) -> None:
        self._lock = os.open(directory / _HEADER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise CheckpointError(f"{directory} is in use by another buffer: close that one first") from error
        self._mapped = FileStorage(directory, new=header is not None)
        try:
            self._build(layout, self._mapped, seed)
            # Written last: a directory without it was never finished.
            if header is not None:
                os.write(self._lock, header.encode())
        except BaseException:
            self.close()
            raise

    def _build(self, layout: Layout, storage: Storage, seed: int) -> None:
        super()._build(layout, storage, seed)
        written, begun = self._count[ring.WRITTEN], self._count[ring.BEGUN]
        if not 0 <= written <= begun <= written + 1:
            raise files.damaged(self._mapped.directory)

    # As for `ReplayBuffer`.
    __len__, at, clear = _checked(ReplayBuffer.__len__), _checked(ReplayBuffer.at), _checked(ReplayBuffer.clear)
    push_batch, sample = _checked(ReplayBuffer.push_batch), _checked(ReplayBuffer.sample)
    saved_arrays, restore = _checked(ReplayBuffer.saved_arrays), _checked(ReplayBuffer.restore)

    def save(self, path: str | Path) -> None:
        """A mapped replay is its own file; copy the directory after `flush`."""
        raise UsageError("a mapped replay is saved as it is: call flush and copy its directory")

    @classmethod
    def load(cls, path: str | Path) -> MappedReplay:
        """As `open`."""
        return cls.open(path)

    def __reduce__(self) -> tuple[Any, ...]:
        raise UsageError("a replay in files is not copied, as one process at a time may use it: see MappedReplay.open")

    def flush(self) -> None:
        """Have all transitions on disk when this returns."""
        self._mapped.check()
        self._mapped.sync()

    def close(self) -> None:
        """Let go of the directory; the buffer cannot be used afterwards."""
        if self._lock >= 0:
            self._mapped.close()
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> MappedReplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
