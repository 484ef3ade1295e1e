"""Probes on the calls through which an iteration leaves Python, and what they cost."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter_ns as _now
from typing import Any

from mileage.description import Boundary, Layer
from mileage.meter import PhaseClock
from mileage.profiling.spans import RawSpan, TraceClock


def _probe(original: Callable[..., Any], boundary: Boundary, spans: list[RawSpan]) -> Callable[..., Any]:
    label, layer, keep = boundary.label, boundary.layer, spans.append

    def probe(*args: Any, **kwargs: Any) -> Any:
        start = _now()
        result = original(*args, **kwargs)
        keep((label or args[0].__name__, "call", start, _now(), 0, layer))
        return result

    return probe


@contextlib.contextmanager
def probed(boundaries: Sequence[Boundary], spans: list[RawSpan]) -> Iterator[None]:
    """Put probes on all boundaries; takes them off again."""
    with contextlib.ExitStack() as undo:
        for boundary in boundaries:
            owner, name = boundary.owner, boundary.name
            own = name in vars(owner)
            original = getattr(owner, name)
            setattr(owner, name, _probe(original, boundary, spans))
            undo.callback(setattr, owner, name, original) if own else undo.callback(delattr, owner, name)
        yield


@dataclass(frozen=True)
class ProbeCost:
    """Seconds that the tools of a trace add: within a call's own span, around it, and per phase."""

    inside: float
    outside: float
    phase: float
    """Around a phase, within its parent."""
    phase_inside: float = 0.0
    """Within a phase's own span: the clock that is read at both ends."""

    def of(self, spans: Iterable[Sequence[object]]) -> float:
        """Seconds that all tools took to make `spans`."""
        kinds = collections.Counter(span[1] for span in spans)
        return kinds["call"] * (self.inside + self.outside) + kinds["phase"] * (self.phase + self.phase_inside)

    def times(self, factor: float) -> ProbeCost:
        """All of them `factor` times as much."""
        return ProbeCost(factor * self.inside, factor * self.outside, factor * self.phase, factor * self.phase_inside)


def probe_cost(calls: int = 5_000) -> ProbeCost:
    """What probes take on a function that does nothing, called over and over."""

    def nothing() -> None:
        return None

    best = ProbeCost(float("inf"), float("inf"), float("inf"), float("inf"))
    for _ in range(3):
        spans: list[RawSpan] = []
        probe = _probe(nothing, Boundary(None, "", "nothing", Layer.NATIVE), spans)
        clock = PhaseClock()
        plain, probing = (_call_seconds(each, calls) for each in (nothing, probe))
        phases = clock.phase("learn"), TraceClock(spans, clock.phase).phase("learn")
        untraced, traced = (_phase_seconds(each, calls) for each in phases)
        inside = max(0.0, _mean_seconds(spans, "call") - plain)
        within = _mean_seconds(spans, "phase")
        best = ProbeCost(
            min(best.inside, inside),
            min(best.outside, max(0.0, probing - plain - inside)),
            min(best.phase, max(0.0, traced - untraced - within)),
            min(best.phase_inside, within),
        )
    return best


def _mean_seconds(spans: list[RawSpan], kind: str) -> float:
    found = [end - start for _, each, start, end, *_ in spans if each == kind]
    return sum(found) / len(found) / 1e9


def _call_seconds(action: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - start) / calls


def _phase_seconds(phase: AbstractContextManager[object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        with phase:
            pass
    return (time.perf_counter() - start) / calls
