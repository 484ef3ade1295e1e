"""What a trace is made of: spans of time, phases as spans, and stacks as one tree."""

from __future__ import annotations

from _thread import get_ident as _ident
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter_ns as _now
from time import thread_time_ns as _cpu
from types import TracebackType
from typing import NamedTuple

import numpy as np

from mileage.measure import PhaseClock
from mileage.profiling.programs.layers import Layered, shown_path
from mileage.profiling.programs.trace import StackFrame
from mileage.tables import plain

RawSpan = tuple[str, str, int, int, int, str]
"""The fields of a `Span`: making a plain tuple takes a fifth of the time."""


class Span(NamedTuple):
    """Something that happened between two instants, in ns of `time.perf_counter_ns`."""

    name: str
    kind: str
    """`iteration`, `phase` or `call`."""
    start: int
    end: int
    cpu: int = 0
    """CPU time of the thread in between; phases only, and only where it was watched."""
    layer: str = ""
    """Where a call goes."""


class PackedSpans:
    """Spans in little memory.

    A trace that kept them as they come would touch new memory in every block, and what the system takes to provide it
    would look like time of the iterations.
    """

    def __init__(self, spans: list[RawSpan]) -> None:
        kinds: dict[tuple[str, str, str], int] = {}
        numbers = [
            (kinds.setdefault((name, kind, layer), len(kinds)), start, end, cpu)
            for name, kind, start, end, cpu, layer in spans
        ]
        self._kinds, self._numbers = list(kinds), np.array(numbers, np.int64).reshape(-1, 4)

    def spans(self) -> Iterator[Span]:
        """As they were."""
        for number, start, end, cpu in self._numbers.tolist():
            name, kind, layer = self._kinds[number]
            yield Span(name, kind, start, end, cpu, layer)


class TraceClock:
    """What a learner asks of a clock, keeping every phase as a span. A nested phase lies within its parent."""

    def __init__(
        self,
        spans: list[RawSpan],
        phase: Callable[[str], AbstractContextManager[object]] | None = None,
        *,
        watch_cpu: bool = False,
        threads: bool = False,
    ) -> None:
        """Keep phases in `spans`, with their CPU time if asked to; `phase` gives what each is entered with besides.

        With `threads`, other threads use this clock too.
        """
        self.spans = spans
        self.open: list[int] = []
        self.open_cpu: list[int] = []
        self._kind = _WatchedPhase if watch_cpu else _LearnersPhase if threads else _TracedPhase
        self.owner = _ident()
        self._phase = phase or PhaseClock().phase
        self._handles: dict[str, _TracedPhase] = {}

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Context manager that spends its body in phase `name`."""
        try:
            return self._handles[name]
        except KeyError:
            self._handles[name] = self._kind(self, str(name), self._phase(name))
            return self._handles[name]


class _TracedPhase:
    """A phase of the run's own clock, kept as a span besides."""

    __slots__ = ("_clock", "_name", "_phase")

    def __init__(self, clock: TraceClock, name: str, phase: AbstractContextManager[object]) -> None:
        self._clock, self._name, self._phase = clock, name, phase

    def __enter__(self) -> None:
        self._phase.__enter__()
        self._clock.open.append(_now())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        end = _now()
        clock = self._clock
        clock.spans.append((self._name, "phase", clock.open.pop(), end, 0, ""))
        self._phase.__exit__(kind, error, tb)


class _LearnersPhase(_TracedPhase):
    """The same, kept only on the learner's thread: those of other threads are no part of its iterations."""

    __slots__ = ()

    def __enter__(self) -> None:
        if _ident() == self._clock.owner:
            super().__enter__()
        else:
            self._phase.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if _ident() == self._clock.owner:
            super().__exit__(kind, error, tb)
        else:
            self._phase.__exit__(kind, error, tb)


class _WatchedPhase(_LearnersPhase):
    """The same with the CPU time of the thread, which takes the system some twenty times as long to tell.

    It is asked outside the span, so that its answer never makes a phase look as if it waited.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        if _ident() == self._clock.owner:
            self._clock.open_cpu.append(_cpu())
        super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        if _ident() == self._clock.owner:
            cpu = _cpu() - self._clock.open_cpu.pop()
            self._clock.spans.append((*self._clock.spans.pop()[:4], cpu, ""))


# --- Stacks as one tree of the program's own functions, in which each run of a library's frames is one box ---
_IMPORTLIB = "<frozen importlib"
_NARROWEST = 0.002
_DEEPEST = 40


@dataclass
class Box:
    """A function, or a library's part of a stack, with all that it calls."""

    name: str
    where: str = ""
    own: bool = False
    seconds: float = 0.0
    inner: dict[tuple[str, str], Box] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """A box of an icicle; left and width are shares of the whole."""

    box: Box
    depth: int
    left: float
    width: float


def tree(run: Layered) -> Box:
    """The main thread's stacks, the program at the root."""
    root = Box("the program")
    sums = np.bincount(run.process.main[:, 3], run.seconds, len(run.process.frames))
    for stack in np.flatnonzero(sums).tolist():
        seconds = float(sums[stack])
        root.seconds += seconds
        at = root
        for key, name, where, own in _boxes(run, stack):
            at = at.inner.setdefault(key, Box(name, where, own))
            at.seconds += seconds
    return root


def _boxes(run: Layered, stack: int) -> Iterator[tuple[tuple[str, str], str, str, bool]]:
    """What a stack is drawn as, outermost first."""
    numbers = []
    while stack:
        numbers.append(stack)
        stack = run.process.above[stack]
    in_library = False
    for number in reversed(numbers):
        frame = run.process.frames[number]
        if frame.path.startswith(_IMPORTLIB):
            yield ("", "importing"), "importing", "", False
            return
        if run.is_own[number]:
            in_library = False
            where = f"{shown_path(frame.path, run.process.directory)}:{frame.first_line}"
            yield (frame.path, frame.function), plain(frame.function, 120), where, True
        elif not in_library:
            in_library = True
            name = plain(f"{package(frame, run.process.library)} {frame.function}", 120)
            yield (frame.path, frame.function), name, shown_path(frame.path, run.process.directory), False


def package(frame: StackFrame, library: str) -> str:
    """The package that a library's frame belongs to."""
    path = frame.path.rpartition("-packages/")[2] if "-packages/" in frame.path else frame.path.removeprefix(library)
    return path.strip("/").partition("/")[0].removesuffix(".py") or "python"


def icicle(root: Box) -> list[Placed]:
    """Boxes from the root down, callers above what they call; those too narrow to be seen are left out."""
    found: list[Placed] = []
    waiting = [(root, 0, 0.0)]
    whole = root.seconds or 1.0
    while waiting:
        box, depth, left = waiting.pop()
        found.append(Placed(box, depth, left, box.seconds / whole))
        for each in sorted(box.inner.values(), key=lambda one: -one.seconds):
            if each.seconds >= _NARROWEST * whole and depth < _DEEPEST:
                waiting.append((each, depth + 1, left))
            left += each.seconds / whole
    return found
