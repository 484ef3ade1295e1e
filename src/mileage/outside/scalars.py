"""Figures that a program reports of itself: lines on its standard output, and the files that trackers write.

They are kept as claimed: nobody has examined them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

_LINE = re.compile(rb"^METRIC\s+(.+)$")
_PAIR = re.compile(r"([^\s=]+)=([^\s=]+)")
_LONGEST_LINE = 65536
STEP_NAMES = ("step", "global_step", "_step", "timestep", "timesteps", "env_steps", "total_timesteps",
              "time/total_timesteps", "num_env_steps")  # fmt: skip
"""What the column of steps is called, best first."""


class Scalar(NamedTuple):
    """One figure at one step; the step is None where the source has none."""

    name: str
    value: float
    step: int | None


class Source(Protocol):
    """Something that figures are read from as it grows."""

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""


class OutputLines:
    """`METRIC name=value … [step=N]` on standard output, in pieces as they come."""

    def __init__(self) -> None:
        self._rest = b""
        self._found: list[Scalar] = []

    def feed(self, text: bytes) -> None:
        """More output."""
        *lines, self._rest = (self._rest + text).split(b"\n")
        self._rest = self._rest[-_LONGEST_LINE:]
        for line in lines:
            if match := _LINE.match(line[:_LONGEST_LINE].strip()):
                pairs = dict(_PAIR.findall(match[1].decode("utf-8", "replace")))
                self._found += row_scalars(pairs)

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        found, self._found = self._found, []
        yield from found


def row_scalars(row: dict[str, object]) -> list[Scalar]:
    """The numbers of a row by name, at its step."""
    numbers = {str(name): number for name, value in row.items() if (number := number_of(value)) is not None}
    key = next((name for name in STEP_NAMES if name in numbers), None)
    step = None if key is None else int(numbers[key])
    return [Scalar(name, value, step) for name, value in numbers.items() if name != key]


def number_of(value: object) -> float | None:
    """`value` as a finite number; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class _Growing:
    """A file that is read on from where the last reading ended; one that shrank is read anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0

    def more(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                if file.seek(0, io.SEEK_END) < self.at:
                    self.at = 0
                file.seek(self.at)
                return file.read()
        except OSError:
            return b""

    def lines(self) -> list[str]:
        """Whole lines since the last time."""
        whole, newline, _ = self.more().rpartition(b"\n")
        self.at += len(whole) + len(newline)
        return whole.decode("utf-8", "replace").splitlines() if newline else []


class JsonLines(_Growing):
    """A row of JSON in each line."""

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        for line in self.lines():
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield from row_scalars(row)


class CsvRows(_Growing):
    """Rows under a line of names; lines before it that begin with # are comments."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._names: list[str] | None = None

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        if self.at == 0:
            self._names = None
        with suppress(csv.Error):
            for row in csv.reader(self.lines()):
                if self._names is None:
                    self._names = None if not row or row[0].startswith("#") else row
                else:
                    yield from row_scalars(dict(zip(self._names, row, strict=False)))


class EventFile(_Growing):
    """TensorBoard's event file; its records are parted here, and read by TensorBoard's own classes."""

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        for _, step, name, value in self.timed():
            yield Scalar(name, value, step)

    def timed(self) -> Iterator[tuple[float, int, str, float]]:
        """The same with the time they were written: seconds since the epoch, step, name, value."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_ndarray

        for record in self._records():
            event = Event.FromString(record)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    number: float = value.simple_value
                elif value.HasField("tensor") and not value.tensor.tensor_shape.dim:
                    try:
                        number = float(make_ndarray(value.tensor).item())
                    except (TypeError, ValueError):
                        continue  # text
                else:
                    continue
                if math.isfinite(number):
                    yield event.wall_time, event.step, value.tag, number

    def _records(self) -> Iterator[bytes]:
        """Length, its checksum, the record, its checksum; a record that is not whole yet waits."""
        data, begin = self.more(), 0
        while begin + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, begin)
            if begin + 16 + size > len(data):
                break
            yield data[begin + 12 : begin + 12 + size]
            begin += 16 + size
            self.at += 16 + size


class Trackio:
    """trackio's database of one project: rows of JSON with their steps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = 0

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as database:
            query = "SELECT id, step, metrics FROM metrics WHERE id > ? ORDER BY id"
            for number, step, text in database.execute(query, (self._last,)).fetchall():
                self._last = number
                with suppress(ValueError, RecursionError):
                    row = json.loads(text)
                    if isinstance(row, dict):
                        yield from row_scalars(row | {"step": step})


class WandbFile:
    """The log of a W&B run, offline or not, read by W&B's own classes; it is read from its beginning when it grew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = self._seen = 0

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        for row in wandb_rows(self):
            yield from (each for each in row_scalars(row) if not each.name.startswith("_"))

    def records(self) -> Iterator[Any]:
        """W&B's own records that came since the last call."""
        from wandb.proto.wandb_internal_pb2 import Record
        from wandb.sdk.internal.datastore import DataStore

        if (size := self.path.stat().st_size) == self._size:
            return
        self._size, store, number = size, DataStore(), 0
        store.open_for_scan(str(self.path))
        # The last record may be half written: W&B's reader then fails in a way of its own.
        with suppress(AssertionError, EOFError, struct.error, ValueError), closing(store):
            while (text := store.scan_data()) is not None:
                number += 1
                if number > self._seen:
                    self._seen = number
                    yield Record.FromString(text)


def wandb_rows(file: WandbFile) -> Iterator[dict[str, object]]:
    """The rows of a W&B run's history that came since the last call, W&B's own columns included."""
    for record in file.records():
        row: dict[str, object] = {}
        for item in record.history.item:
            with suppress(ValueError, RecursionError):
                row[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        if row:
            yield row


def source_kind(path: Path) -> Callable[[Path], Source] | None:
    """Who reads a file, by its name; None if nobody does, or if the library for it is not installed."""
    if ".tfevents." in path.name:
        return EventFile if find_spec("tensorboard") else None
    if path.suffix == ".wandb":
        return WandbFile if find_spec("wandb") else None
    if path.name == "metrics.jsonl":
        return JsonLines
    if path.suffix == ".csv":
        return CsvRows
    return Trackio if path.suffix == ".db" and "trackio" in path.parts else None


class Files:
    """The trackers' files below some directories that the program has written since `since`."""

    LIMIT = 200
    """Files that are followed at most."""
    _SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", ".mypy_cache"})

    def __init__(self, directories: list[Path], since: float) -> None:
        self._directories = directories
        self._since = since
        self._sources: dict[Path, Source] = {}

    def look(self) -> None:
        """Find files that are new."""
        for directory in self._directories:
            for parent, names, files in os.walk(directory):
                names[:] = [name for name in names if name not in self._SKIPPED]
                for name in files:
                    self._follow(Path(parent, name))

    def _follow(self, path: Path) -> None:
        if path in self._sources or len(self._sources) >= self.LIMIT or (kind := source_kind(path)) is None:
            return
        with suppress(OSError):
            if path.stat().st_mtime >= self._since:
                self._sources[path] = kind(path)

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        for source in self._sources.values():
            yield from source.new()
