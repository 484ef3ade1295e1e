"""The exclusive phase clock: at any instant exactly one phase is open, and all phases add up to the wall-clock.

Time is counted in integer nanoseconds and every nanosecond is given to one phase, so that the sum is exact and
serves as the check that a reader on another thread has seen a consistent state.
"""

from __future__ import annotations

import os
import threading
from _thread import get_ident as _ident
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns as _now
from types import TracebackType

from mileage.errors import UsageError
from mileage.metrics import Phase
from mileage.system import process_start_ns

_OTHER = 0
_READ_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Where the time went, up to one instant.

    `phases_ns` includes `other` and adds up to `wall_ns` exactly. `beside_ns` holds the busy time of other threads and
    processes by name; it happened at the same time as the wall-clock and is never added to it.
    """

    wall_ns: int
    phases_ns: Mapping[str, int]
    entries: Mapping[str, int]
    beside_ns: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def wall_seconds(self) -> float:
        """Wall-clock in seconds."""
        return self.wall_ns / 1e9

    @property
    def phases(self) -> dict[str, float]:
        """Seconds per phase, `other` last."""
        seconds = {name: ns / 1e9 for name, ns in self.phases_ns.items() if name != Phase.OTHER}
        return seconds | {str(Phase.OTHER): self.phases_ns.get(Phase.OTHER, 0) / 1e9}

    @property
    def beside(self) -> dict[str, dict[str, float]]:
        """Busy seconds per phase of every other thread and process."""
        return {
            lane: {name: ns / 1e9 for name, ns in phases.items() if name != Phase.OTHER}
            for lane, phases in self.beside_ns.items()
        }


class _Lane:
    """The exclusive time of one thread. Only that thread writes; any thread may read."""

    __slots__ = ("counts", "last", "name", "owner", "stack", "start", "totals")

    def __init__(self, name: str, owner: int, start: int) -> None:
        self.name = name
        self.owner = owner
        self.start = start
        self.last = start
        self.stack = [_OTHER]
        self.totals = [0]
        self.counts = [0]

    def grow(self, size: int) -> None:
        missing = size - len(self.totals)
        self.counts.extend([0] * missing)
        self.totals.extend([0] * missing)

    def enter(self, index: int) -> None:
        now = _now()
        stack = self.stack
        if index >= len(self.totals):
            self.grow(index + 1)
        self.totals[stack[-1]] += now - self.last
        self.last = now
        stack.append(index)

    def leave(self, index: int) -> None:
        now = _now()
        stack = self.stack
        self.totals[stack[-1]] += now - self.last
        self.last = now
        self.counts[index] += 1
        if stack[-1] == index:
            stack.pop()
        else:
            self.unwind(index)

    def unwind(self, index: int) -> None:
        """Close phases left open inside `index`: an interrupt between two instructions can skip an exit."""
        if index not in self.stack:
            raise UsageError("a phase was closed that is not open on this thread: open and close it in the same thread")
        while self.stack.pop() != index:
            pass

    def move(self, index: int, ns: int) -> None:
        """Give the last `ns` of the open phase to `index`, no more than the open phase has."""
        now = _now()
        if index >= len(self.totals):
            self.grow(index + 1)
        top = self.stack[-1]
        self.totals[top] += now - self.last
        self.last = now
        ns = min(ns, self.totals[top])
        self.totals[top] -= ns
        self.totals[index] += ns
        self.counts[index] += 1

    def read(self) -> tuple[int, list[int], list[int]]:
        """Wall-clock ns, totals in ns and entry counts up to now, consistent whatever the owner does meanwhile."""
        for _ in range(_READ_ATTEMPTS):
            last, totals, counts, top = self.last, self.totals.copy(), self.counts.copy(), self.stack[-1]
            # The owner may have been caught between two of its assignments: then the sum does not match.
            if self.last == last and sum(totals) == last - self.start:
                break
        # A signal handler can interrupt the owner itself, and waiting would not help: the sum stays exact all the same.
        now = _now()
        totals[min(top, len(totals) - 1)] += now - self.start - sum(totals)
        return now - self.start, totals, counts


class _OpenPhase:
    """Context manager for one phase of one clock; made once per name and reused, also recursively."""

    __slots__ = ("_clock", "_index", "_lane")

    def __init__(self, clock: PhaseClock, lane: _Lane, index: int) -> None:
        self._clock = clock
        self._lane = lane
        self._index = index

    # The two bodies repeat `_Lane.enter` and `_Lane.leave`: a call more would cost a third of the budget.
    def __enter__(self) -> None:
        lane = self._lane
        if _ident() != lane.owner:
            self._clock._lane_here().enter(self._index)
            return
        now = _now()
        stack = lane.stack
        lane.totals[stack[-1]] += now - lane.last
        lane.last = now
        stack.append(self._index)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        lane = self._lane
        index = self._index
        if _ident() != lane.owner or lane.stack[-1] != index:
            self._clock._lane_here().leave(index)
            return
        now = _now()
        lane.totals[index] += now - lane.last
        lane.last = now
        lane.counts[index] += 1
        lane.stack.pop()


class PhaseClock:
    """Divides a run's wall-clock into exclusive phases.

    A nested phase suspends its parent; what no phase claims is `other`. The thread that makes the clock owns the
    wall-clock; phases opened on another thread are kept beside it under that thread's name. Another process makes a
    clock of its own and hands its `times()` back to `add_beside`.

    >>> clock = PhaseClock()
    >>> with clock.phase("learn"):
    ...     with clock.phase("transfer"):
    ...         pass
    >>> times = clock.times()
    >>> sum(times.phases_ns.values()) == times.wall_ns
    True
    """

    def __init__(self, *, start_ns: int | None = None) -> None:
        """Start now, or at `start_ns` on the scale of `time.perf_counter_ns`; what passed since then is `init`."""
        now = _now()
        start = now if start_ns is None else min(start_ns, now)
        self._names: list[str] = [str(Phase.OTHER)]
        self._handles: dict[str, _OpenPhase] = {}
        self._guard = threading.Lock()
        self._main = _Lane("main", _ident(), start)
        self._lanes: dict[int, _Lane] = {}
        self._closed_lanes: list[_Lane] = []
        self._beside: dict[str, dict[str, int]] = {}
        self._final: PhaseTimes | None = None
        for phase in Phase:
            if phase is not Phase.OTHER:
                self.phase(phase)
        if start < now:
            self._main.totals[self._index(Phase.INIT)] = now - start
            self._main.last = now

    @classmethod
    def for_run(cls) -> PhaseClock:
        """The clock of a run: the first one of a process counts from the start of the process, later ones from now."""
        global _process_start_claimed
        with _claim:
            first = _process_start_claimed != os.getpid()
            _process_start_claimed = os.getpid()
        return cls(start_ns=process_start_ns() if first else None)

    def phase(self, name: str) -> _OpenPhase:
        """Context manager that spends its body in phase `name`; keep the returned object in a hot loop."""
        try:
            return self._handles[name]
        except KeyError:
            pass
        if not name or not isinstance(name, str):
            raise UsageError(f"phase name {name!r} cannot be used: give a non-empty string such as 'learn'")
        if name == Phase.OTHER:
            raise UsageError("phase 'other' cannot be opened: it is what no phase claims")
        with self._guard:
            if name not in self._handles:
                index = len(self._names)
                self._main.grow(index + 1)
                self._names.append(str(name))
                self._handles[str(name)] = _OpenPhase(self, self._main, index)
            return self._handles[name]

    def attribute(self, name: str, seconds: float) -> None:
        """Move the last `seconds` of the phase open on this thread to phase `name`.

        For durations that are only known afterwards (a compiler that reports when it is done). Never moves more than
        the open phase has, so that phases stay exclusive.
        """
        self.phase(name)
        self._lane_here().move(self._index(name), max(0, round(seconds * 1e9)))

    def shift(self, source: str, name: str, seconds: float, entries: int = 1) -> None:
        """Move `seconds` that phase `source` has taken on the owning thread to phase `name`, entered so many times.

        For what goes on within a phase and times itself. Never moves more than there is.
        """
        self.phase(source), self.phase(name)
        lane, of, to = self._main, self._index(source), self._index(name)
        ns = min(max(0, round(seconds * 1e9)), lane.totals[of])
        if ns:
            lane.totals[of] -= ns
            lane.totals[to] += ns
            lane.counts[to] += entries

    def add_beside(self, name: str, times: PhaseTimes | Mapping[str, float]) -> None:
        """Record busy time of another process under `name`: its clock's times, or seconds per phase. Repeats add up."""
        if isinstance(times, PhaseTimes):
            addition: Mapping[str, int] = times.phases_ns
        else:
            addition = {phase: round(seconds * 1e9) for phase, seconds in times.items()}
        with self._guard:
            into = self._beside.setdefault(name, {})
            for phase, ns in addition.items():
                if phase != Phase.OTHER:
                    into[phase] = into.get(phase, 0) + ns

    def times(self) -> PhaseTimes:
        """Everything measured up to now; may be called from any thread, at any time."""
        if self._final is not None:
            return self._final
        wall, totals, counts = self._main.read()
        names = self._names
        with self._guard:
            beside = {name: dict(phases) for name, phases in self._beside.items()}
            lanes = [*self._closed_lanes, *self._lanes.values()]
        for lane in lanes:
            _, lane_totals, _ = lane.read()
            into = beside.setdefault(lane.name, {})
            for name, ns in zip(names[1:], lane_totals[1:], strict=False):
                if ns:
                    into[name] = into.get(name, 0) + ns
        phases = {name: ns for name, ns in zip(names[1:], totals[1:], strict=False) if ns}
        phases[str(Phase.OTHER)] = totals[_OTHER]
        return PhaseTimes(
            wall_ns=wall,
            phases_ns=phases,
            entries={name: n for name, n in zip(names, counts, strict=False) if n},
            beside_ns=beside,
        )

    def split(self, name: str) -> tuple[int, int]:
        """Wall-clock and the time of phase `name` up to now, in ns: the cheap part of `times` for the owning thread."""
        lane = self._main
        if self._final is not None or _ident() != lane.owner:
            times = self.times()
            return times.wall_ns, times.phases_ns.get(name, 0)
        index = self.phase(name)._index
        now = _now()
        open_now = now - lane.last if lane.stack[-1] == index else 0
        return now - lane.start, lane.totals[index] + open_now

    @property
    def current(self) -> str:
        """The phase open at this instant on the thread that owns the wall-clock; may be read from any thread."""
        return self._names[self._main.stack[-1]]

    def stop(self) -> PhaseTimes:
        """Stop the clock and return the final times; phases opened afterwards no longer count."""
        self._final = self.times()
        return self._final

    def _index(self, name: str) -> int:
        return self._handles[name]._index

    def _lane_here(self) -> _Lane:
        """The lane of the calling thread."""
        ident = _ident()
        if ident == self._main.owner:
            return self._main
        lane = self._lanes.get(ident)
        name = threading.current_thread().name
        # The system gives a finished thread's number to a new one.
        if lane is None or lane.name != name:
            with self._guard:
                if lane is not None:
                    self._closed_lanes.append(lane)
                lane = self._lanes[ident] = _Lane(name, ident, _now())
        return lane


_claim = threading.Lock()
_process_start_claimed = -1
