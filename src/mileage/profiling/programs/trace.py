"""What a watched program's processes wrote of themselves, read back: stacks, calls, spans."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mileage.profiling.programs.mileage_inside.lanes import KIND_BITS, KINDS
from mileage.profiling.programs.mileage_inside.sampler import FIELDS, PHASE_SHIFT
from mileage.records import PlainData
from mileage.types import I64

_MOST_CALLS = 4_000_000
_CALL_FIELDS = 3
_LONGEST_FACT = 20_000


@dataclass(frozen=True)
class StackFrame:
    """A function at a line of a file."""

    path: str
    function: str
    line: int
    first_line: int = 0
    """Of the function."""


@dataclass(frozen=True)
class Setting:
    """A setting of the program as it ran."""

    source: str
    """What held it: `args`, the class of a model, a dictionary."""
    name: str
    value: bool | int | float | str
    options: tuple[str, ...] = ()
    """Options of the program's command line that set it, where a parser named them."""


@dataclass(frozen=True)
class Stepper:
    """An optimizer that has stepped."""

    name: str
    weights: int
    device: str
    threads: int
    flat: bool
    """Whether no weight has more than two dimensions: each is used once per sample."""


@dataclass
class Calls:
    """Timed calls of one process: all are counted, and an even selection of them is kept where there are too many."""

    count: I64 = field(default_factory=lambda: np.zeros(len(KINDS), np.int64))
    """By kind, (k,) int64."""
    own_ns: I64 = field(default_factory=lambda: np.zeros(len(KINDS), np.int64))
    """Without timed calls within them, (k,) int64."""
    longest_ns: I64 = field(default_factory=lambda: np.zeros(len(KINDS), np.int64))
    """(k,) int64."""
    kept: I64 = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    """Start, end, own time (ns) and kind of each, (n, 4) int64."""
    _every: int = 1

    def add(self, data: bytes) -> None:
        """More calls, as they were written."""
        raw = _numbers(data, _CALL_FIELDS)
        kind = raw[:, 0] & ((1 << KIND_BITS) - 1)
        raw, kind = raw[kind < len(KINDS)], kind[kind < len(KINDS)]
        np.add.at(self.count, kind, 1)
        np.add.at(self.own_ns, kind, raw[:, 2])
        np.maximum.at(self.longest_ns, kind, raw[:, 2])
        new = np.column_stack([raw[:, 0] >> KIND_BITS, raw[:, 1], raw[:, 2], kind])
        self.kept = np.concatenate([self.kept, new[:: self._every]])
        while len(self.kept) > _MOST_CALLS:
            self.kept, self._every = self.kept[::2], self._every * 2

    def own(self, kind: str) -> I64:
        """Nanoseconds of the calls of a kind that were kept, in the order of their ends."""
        found: I64 = self.kept[self.kept[:, 3] == KINDS.index(kind), 2]
        return found


@dataclass
class Process:
    """One process of the program that has run Python."""

    pid: int
    parent: int = 0
    words: tuple[str, ...] = ()
    """Its command."""
    python: str = ""
    library: str = ""
    """Where the standard library is."""
    directory: str = ""
    frames: list[StackFrame] = field(default_factory=lambda: [StackFrame("", "", 0)])
    """Of every stack the innermost, by its number; 0 is no stack."""
    above: list[int] = field(default_factory=lambda: [0])
    """The stack without its innermost frame."""
    samples: I64 = field(default_factory=lambda: np.zeros((0, FIELDS), np.int64))
    """As `mileage_inside.sampler.FIELDS` has them; thread 0 is the main one, (n, 7) int64."""
    calls: Calls = field(default_factory=Calls)
    settings: list[Setting] = field(default_factory=list)
    optimizers: list[Stepper] = field(default_factory=list)
    denormals: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each optimizer's state, as it was last looked at: how many numbers are denormal, and of how many."""
    phases: list[str] = field(default_factory=list)
    """Names of the phases of a clock of mileage's own, numbered from 1."""
    watching_seconds: float = 0.0
    """CPU time of the sampler, where the process lived to tell."""
    lost: str = ""
    """Why sampling ended, if it did."""

    @property
    def main(self) -> I64:
        """Samples of the main thread, (n, 7) int64."""
        found: I64 = self.samples[self.samples[:, 5] == 0]
        return found

    @property
    def kinds(self) -> I64:
        """Kind of the open call of every sample of the main thread, (n,) int64."""
        return self.main[:, 4] & ((1 << PHASE_SHIFT) - 1)

    def stack(self, number: int) -> list[StackFrame]:
        """Frames of a stack, outermost first."""
        found = []
        while number:
            found.append(self.frames[number])
            number = self.above[number]
        return found[::-1]


class Reader:
    """Reads a directory that processes write to, also while they write."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._calls: dict[int, Calls] = {}

    def tick(self) -> None:
        """Take in the files of calls that are full, and let go of them."""
        for pid, paths in self._segments().items():
            for path in paths[:-1]:
                self._calls.setdefault(pid, Calls()).add(path.read_bytes())
                path.unlink()

    def processes(self) -> list[Process]:
        """Everything that was written, by process in the order of their beginnings."""
        segments = self._segments()
        for pid, paths in segments.items():
            for path in paths:
                self._calls.setdefault(pid, Calls()).add(path.read_bytes())
        found = []
        for path in sorted(self._place.glob("*.facts"), key=lambda each: int(each.stem)):
            process = Process(int(path.stem))
            _read_facts(process, path)
            with contextlib.suppress(FileNotFoundError):
                process.samples = _numbers(path.with_suffix(".samples").read_bytes(), FIELDS)
            process.samples = process.samples[process.samples[:, 3] < len(process.frames)]
            process.calls = self._calls.get(process.pid, process.calls)
            found.append(process)
        return sorted(found, key=lambda each: int(each.samples[0, 0]) if len(each.samples) else 1 << 62)

    def _segments(self) -> dict[int, list[Path]]:
        found: dict[int, list[Path]] = {}
        for path in self._place.glob("*.calls.*"):
            found.setdefault(int(path.name.split(".")[0]), []).append(path)
        return {pid: sorted(paths, key=lambda each: int(each.suffix[1:])) for pid, paths in found.items()}


def _numbers(data: bytes, width: int) -> I64:
    """Rows of int64; a last one that is not whole was cut by the end of its process."""
    whole = len(data) // (8 * width) * width
    return np.frombuffer(data, np.int64, whole).reshape(-1, width)


def _facts(path: Path) -> Iterator[tuple[object, ...]]:
    with path.open(encoding="ascii", errors="replace") as file:
        for line in file:
            # A line that a killed process left half written is no fact.
            with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                if len(line) <= _LONGEST_FACT and isinstance(fact := ast.literal_eval(line), tuple) and fact:
                    yield fact


def _read_facts(process: Process, path: Path) -> None:
    codes: dict[int, tuple[str, str, int]] = {}
    for fact in _facts(path):
        match fact:
            case ("process", int(), int(parent), list(words), str(python), str(library), str(directory)):
                process.parent, process.words = parent, tuple(str(word) for word in words)
                process.python, process.library, process.directory = python, library, directory
            case ("code", int(number), str(file), str(name), int(first)):
                codes[number] = (file, name, first)
            case ("stack", int(number), int(above), int(code), int(line)) if code in codes and above < number:
                name, function, first = codes[code]
                while len(process.frames) <= number:  # numbers of frames that are not there
                    process.frames.append(StackFrame("", "", 0))
                    process.above.append(0)
                process.frames[number], process.above[number] = StackFrame(name, function, line, first), above
            case ("setting", str(source), str(name), bool() | int() | float() | str() as value, list(options)):
                process.settings.append(Setting(source, name, value, tuple(str(each) for each in options)))
            case ("optimizer", int(), str(name), int(weights), str(device), int(threads), bool(flat)):
                process.optimizers.append(Stepper(name, weights, device, threads, flat))
            case ("denormals", int(optimizer), int(found), int(total)):
                process.denormals[optimizer] = found, total
            case ("phases", list(names)):
                process.phases += [str(name) for name in names]
            case ("watching", int(nanoseconds)):
                process.watching_seconds = nanoseconds / 1e9
            case ("lost", str(why)):
                process.lost = why
            case _:
                pass


# --- How long calls of each kind took ---
@dataclass(frozen=True)
class CallTimes(PlainData):
    """Calls of one kind, without other timed calls within them."""

    kind: str
    count: int
    seconds: float
    p50_ms: float
    p99_ms: float
    longest_ms: float


def call_times(calls: Calls) -> tuple[CallTimes, ...]:
    """Of every kind that was called, the longest in sum first."""
    found = []
    for number, kind in enumerate(KINDS):
        if kind and len(own := calls.own(kind)):
            p50, p99 = np.quantile(own, [0.5, 0.99]) / 1e6
            longest, total = calls.longest_ns[number] / 1e6, calls.own_ns[number] / 1e9
            count = int(calls.count[number])
            found.append(CallTimes(kind, count, float(total), float(p50), float(p99), float(longest)))
    return tuple(sorted(found, key=lambda each: -each.seconds))
