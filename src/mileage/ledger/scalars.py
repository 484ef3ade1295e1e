"""Figures that a program reports of itself: lines on its standard output, and the files that trackers write.

They are kept as claimed: nobody has examined them.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import os
import re
import sqlite3
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

_LINE = re.compile(rb"^METRIC\s+(.+)$")
_PAIR = re.compile(r"([^\s=]+)=([^\s=]+)")
_LONGEST_LINE = 65536
_MOST_AT_ONCE = 1 << 26
_BLOCK = 32768  # of W&B's log
STEP_NAMES = ("step", "global_step", "_step", "timestep", "timesteps", "env_steps", "total_timesteps",
              "time/total_timesteps", "num_env_steps")  # fmt: skip
"""What the column of steps is called, best first."""
_MOST_STEPS = 2**62


class Scalar(NamedTuple):
    """One figure at one step; the step is None where the source has none."""

    name: str
    value: float
    step: int | None
    at: float = 0.0
    """When it came, in seconds since the epoch; 0 where the source does not know."""


class ReaderGuard:
    """Keeps what reads figures from ending the program that it watches: a failure is said once, and nothing more."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Read the figures of `what` in the body."""
        try:
            yield
        except Exception as error:
            if what not in self.failed:
                self.failed.add(what)
                with suppress(OSError):
                    print(f"mileage: figures of {what} are left out: {type(error).__name__}: {error}", file=sys.stderr)


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
                self._found += row_scalars(pairs, time.time())

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        found, self._found = self._found, []
        yield from found


def row_scalars(row: dict[str, object], at: float = 0.0) -> list[Scalar]:
    """The numbers of a row by name, at its step."""
    numbers = {str(name): number for name, value in row.items() if (number := number_of(value)) is not None}
    key = next((name for name in STEP_NAMES if 0 <= numbers.get(name, -1) < _MOST_STEPS), None)
    step = None if key is None else int(numbers[key])
    return [Scalar(name, value, step, at) for name, value in numbers.items() if name != key]


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
        self.changed = 0.0
        """When what was read last was written, in seconds since the epoch."""

    def more(self) -> bytes:
        """What came since, as far as it was not used: a reader moves `at` on."""
        try:
            with self.path.open("rb") as file:
                self.changed = os.fstat(file.fileno()).st_mtime
                if file.seek(0, io.SEEK_END) < self.at:
                    self.at = 0
                file.seek(self.at)
                return file.read(_MOST_AT_ONCE)
        except OSError:
            return b""

    def lines(self) -> list[str]:
        """Whole lines since the last time."""
        whole, newline, rest = self.more().rpartition(b"\n")
        if len(rest) == _MOST_AT_ONCE:
            raise ValueError(f"a line is longer than {_MOST_AT_ONCE:,} bytes")
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
                    yield from row_scalars(row, self.changed)


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
                    yield from row_scalars(dict(zip(self._names, row, strict=False)), self.changed)


class EventFileSource(_Growing):
    """TensorBoard's event file; its records are parted here, and read by TensorBoard's own classes."""

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        for at, step, name, value in self.timed():
            yield Scalar(name, value, step if 0 <= step < _MOST_STEPS else None, at)

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
        if begin == 0 and len(data) == _MOST_AT_ONCE:
            raise ValueError(f"a record is longer than {_MOST_AT_ONCE:,} bytes")


class Trackio:
    """trackio's database of one project: rows of JSON with their steps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = 0

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as database:
            query = "SELECT id, step, metrics, timestamp FROM metrics WHERE id > ? ORDER BY id"
            for number, step, text, when in database.execute(query, (self._last,)).fetchall():
                self._last = number
                with suppress(ValueError, RecursionError):
                    row, at = json.loads(text), datetime.datetime.fromisoformat(str(when)).timestamp()
                    if isinstance(row, dict):
                        yield from row_scalars(row | {"step": step}, at)


class WandbFile(_Growing):
    """The log of a W&B run, offline or not: records in LevelDB's log format, each a protocol buffer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._record = b""

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call."""
        for row in self.rows():
            at = number_of(row.get("_timestamp")) or self.changed
            yield from (each for each in row_scalars(row, at) if not each.name.startswith("_"))

    def rows(self) -> Iterator[dict[str, object]]:
        """The rows of the run's history that came since the last call, W&B's own columns included."""
        for record in self._records():
            for history in _fields(record, 2):
                row: dict[str, object] = {}
                for item in _fields(history, 1):
                    for text in _fields(item, 16):
                        with suppress(ValueError, RecursionError):
                            row[b"/".join(_fields(item, 1, 2)).decode()] = json.loads(text)
                if row:
                    yield row

    def _records(self) -> Iterator[bytes]:
        """A head of 7 bytes (checksum, length, kind) before every piece; none crosses the end of a block."""
        data, begin = self.more(), 0
        if self.at == 0:
            if len(data) < 7:
                return
            if data[:6] != b":W&B\xe1\xbe":
                raise ValueError("it does not begin as a log of W&B does")
            begin, self._record = 7, b""
        while True:
            left = _BLOCK - (self.at + begin) % _BLOCK
            if left < 7:
                begin += left
            if begin + 7 > len(data):
                break
            size, kind = struct.unpack_from("<HB", data, begin + 4)
            if begin + 7 + size > len(data):
                break
            self._record += data[begin + 7 : begin + 7 + size]
            begin += 7 + size
            if kind in (1, 4):  # a whole record, or the last piece of one
                yield self._record
                self._record = b""
        self.at += min(begin, len(data))


def _fields(message: bytes, *wanted: int) -> Iterator[bytes]:
    """The fields with the `wanted` numbers of a protocol buffer that are bytes, texts or messages."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    with suppress(IndexError):
        while at < len(message):
            field, kind = divmod(number(), 8)
            size = number() if kind in (0, 2) else 8 if kind == 1 else 4
            if kind == 2 and field in wanted:
                yield message[at : at + size]
            at += 0 if kind == 0 else size


def source_kind(path: Path) -> Callable[[Path], Source] | None:
    """Who reads a file, by its name; None if nobody does, or if the library for it is not installed."""
    if ".tfevents." in path.name:
        return EventFileSource if find_spec("tensorboard") else None
    if path.suffix == ".wandb":
        return WandbFile
    if path.name == "metrics.jsonl":
        return JsonLines
    if path.suffix == ".csv":
        return CsvRows
    return Trackio if path.suffix == ".db" and _is_trackio(path) else None


def _is_trackio(path: Path) -> bool:
    """Whether a database has trackio's table, without opening it: somebody else's is not touched."""
    for each in (path, path.with_name(path.name + "-wal")):
        with suppress(OSError), each.open("rb") as file:
            head = file.read(_LONGEST_LINE)
            if b" metrics" in head and b"run_name" in head:
                return True
    return False


class LogFiles:
    """The trackers' files below some directories that the program has written since `since`."""

    LIMIT = 200
    """Files that are followed at most."""
    _SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", ".mypy_cache"})

    def __init__(self, directories: list[Path], since: float, guard: ReaderGuard) -> None:
        self._directories, self._guard = directories, guard
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
            about = path.stat()
            if about.st_mtime >= self._since and stat.S_ISREG(about.st_mode):
                self._sources[path] = kind(path)

    def new(self) -> Iterator[Scalar]:
        """Figures that came since the last call; a file whose reader failed is left out from then on."""
        for path, source in self._sources.items():
            if str(path) not in self._guard.failed:
                found: list[Scalar] = []
                with self._guard(str(path)):
                    found.extend(source.new())
                yield from found
