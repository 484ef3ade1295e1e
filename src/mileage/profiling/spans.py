"""What a trace is made of: spans of time, and a clock that keeps the phases of an iteration as spans."""

from __future__ import annotations

from _thread import get_ident as _ident
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import perf_counter_ns as _now
from time import thread_time_ns as _cpu
from types import TracebackType
from typing import NamedTuple

import numpy as np

from mileage.meter import PhaseClock

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
