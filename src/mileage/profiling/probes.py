"""Probes on the calls through which an iteration leaves Python, replays with them, and what those may cost.

Probes would cost a fast run more than a few per cent, so they are not there while the profiled run is timed: afterwards
the same learner goes on for some iterations with them. Their own cost is measured and taken off.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter_ns as _now
from typing import Any, TypeVar

from mileage.contracts import Clock, Learner
from mileage.description import Boundary, Description, Layer
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.measure import PhaseClock
from mileage.profiling.traces import PackedSpans, RawSpan, Span, TraceClock


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


# --- Replays iterations of a trained learner with probes on every call that leaves Python ---
_BLOCK_SECONDS = 0.004
# Below this share of an iteration, what probes cost in a loop by themselves is near enough.
_LEAST_PROBE_SHARE = 0.01
# A probe has been seen to cost four times as much between threads that wake each other; more is another's doing.
_MOST_IN_PLACE = 5.0
_MOST_SHOWN = 200
# How many times over its seconds a replay may go to get its least number of blocks.
_GRACE = 2.0


def turn_iterations() -> int:
    """Iterations that the shortest replay takes: a few to learn their length, then a block of every kind."""
    return 3 + 4 * (1 + 2)


@dataclass(frozen=True)
class Trace:
    """Iterations that were replayed in blocks, with and without probes in turn; of each kind, blocks around the lower
    quartile count.

    A busy machine interrupts some blocks, and threads that wake each other do so sooner or later: the lower quartile of
    many blocks is the same from one trace to the next where their mean is not.
    """

    spans: tuple[Span, ...]
    """Of the iterations with probes."""
    iterations: int
    cost: ProbeCost
    plain_seconds: float = 0.0
    """Mean of the iterations without probes."""
    watched: tuple[Span, ...] = ()
    """Of other iterations, whose phases have their CPU time."""
    in_place: float = 1.0
    """How many times as much probes cost within an iteration as in a loop that does nothing else; `cost` has it."""

    @property
    def shown(self) -> tuple[Span, ...]:
        """The first of the spans, whole iterations: enough to look at."""
        ends = [number for number, span in enumerate(self.spans, start=1) if span.kind == "iteration"]
        return self.spans[: ends[:_MOST_SHOWN][-1]] if ends else ()


@dataclass
class Blocks:
    """Blocks of iterations with the same number of probes on every call."""

    probes: int
    watch_cpu: bool = False
    seconds: list[float] = field(default_factory=list)
    """Per iteration, of every block."""
    spans: list[PackedSpans] = field(default_factory=list)
    """Of every block, in the order of their ends."""

    def counted(self) -> list[int]:
        """Numbers of the blocks around the lower quartile, from a tenth to four tenths, in order of time."""
        ordered = sorted(range(len(self.seconds)), key=self.seconds.__getitem__)
        return sorted(ordered[len(ordered) // 10 : -(-4 * len(ordered) // 10)])

    def kept(self) -> tuple[Span, ...]:
        """Spans of the blocks that count."""
        return tuple(span for number in self.counted() for span in self.spans[number].spans())

    @property
    def mean(self) -> float:
        """Mean seconds of an iteration in the blocks that count."""
        return statistics.fmean(self.seconds[number] for number in self.counted())


def replay(learner: Learner, described: Description, *, seconds: float, most: int = 20_000, least: int = 4) -> Trace:
    """Go on training for about `seconds` per kind of block, `least` blocks or more and at most `most` iterations each.

    There are blocks without probes, with one on every call and phase, and with two: what the second adds is what the
    first one costs, with the arguments of real calls and the caches as training leaves them. In a fourth kind, phases
    are watched for the time that they are off the CPU, which takes long to find out.
    """
    cost = probe_cost()
    kinds = [Blocks(0), Blocks(1), Blocks(2), Blocks(1, watch_cpu=True)]
    with single_threaded_blas(), _no_collection():
        try:
            size = _block_size(learner)
            end = time.perf_counter() + len(kinds) * seconds
            turn = 0
            while (
                turn < 1
                or (turn < least and time.perf_counter() < end + _GRACE * seconds)
                or (turn * size < most and time.perf_counter() < end)
            ):
                # Who comes first changes every round: what comes of the order must fall to all kinds alike.
                start = turn % len(kinds)
                for kind in (*kinds[start:], *kinds[:start]):
                    _run_block(learner, described, kind, size)
                turn += 1
        finally:
            learner.stop()
    plain, once, twice, watched = kinds
    spans, iterations = once.kept(), size * len(once.counted())
    factor = cost_in_place(plain.mean, once.mean, twice.mean, cost.of(spans) / iterations)
    return Trace(spans, iterations, cost.times(factor), plain.mean, watched.kept(), factor)


def cost_in_place(plain: float, once: float, twice: float, expected: float) -> float:
    """How many times as much as `expected` a set of probes costs within an iteration, all in seconds per iteration."""
    # The difference of two noisy means says nothing about what is hardly there; and a probe is never cheaper in place.
    if expected < _LEAST_PROBE_SHARE * plain:
        return 1.0
    return min(max(1.0, (twice - once) / expected), _MOST_IN_PLACE)


def _block_size(learner: Learner) -> int:
    """Iterations that take some milliseconds, an even number: some learners do more in every second one."""
    clock = PhaseClock()
    learner.iterate(clock, 0.5)
    start = time.perf_counter()
    for _ in range(2):
        learner.iterate(clock, 0.5)
    return 2 * max(1, round(_BLOCK_SECONDS / (time.perf_counter() - start)))


def _run_block(learner: Learner, described: Description, kind: Blocks, size: int) -> None:
    """Let one block of iterations go by; the first one, with cold caches and sleeping threads, is not counted."""
    spans: list[RawSpan] = []
    clock: Clock = PhaseClock()
    with contextlib.ExitStack() as stack:
        for _ in range(kind.probes):
            stack.enter_context(probed(described.boundaries, spans))
            clock = TraceClock(spans, clock.phase, watch_cpu=kind.watch_cpu, threads=learner.own_threads)
        learner.iterate(clock, 0.5)
        spans.clear()
        keep = spans.append
        began = _now()
        for _ in range(size):
            start = _now()
            learner.iterate(clock, 0.5)
            keep(("iteration", "iteration", start, _now(), 0, ""))
        ended = _now()
    kind.seconds.append((ended - began) / size / 1e9)
    kind.spans.append(PackedSpans(spans))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from running because of the spans that a trace keeps."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


# --- What replaying may cost: a budget, what it was spent on, and an end at any time that keeps what is known ---
LEAST_SECONDS = 2.0
"""Replays may take as long as the run, and at least this."""
_MOST_GROWN = 3.0
"""How far a budget that nobody has set grows for what every profile needs."""
# What all replays take at full length.
_FULL_SECONDS = 12.0

Found = TypeVar("Found")


class Allowance:
    """A budget that stages of a replay are taken from, one after the other.

    A stage that does not fit into what is left is left out, and its name kept. Ctrl-C ends the stage that is under way
    and leaves out those that follow; one that fails is left out, and the others are not.
    """

    def __init__(self, seconds: float, say: Callable[[str], None] | None = None, effort: float = 1.0) -> None:
        """Allow `seconds`; `say` is told what goes on."""
        self.seconds = self.most_seconds = seconds
        self._began = time.perf_counter()
        self._say = say or (lambda text: None)
        self.effort = min(effort, effort * seconds / _FULL_SECONDS)
        """What lengths of measurements are multiplied with, so that all of them fit."""
        self.skipped: list[str] = []
        """Stages that were left out."""
        self.interrupted = False

    @classmethod
    def of_run(cls, wall_seconds: float, say: Callable[[str], None] | None = None, effort: float = 1.0) -> Allowance:
        """No longer than the run took, and two seconds at least."""
        found = cls(max(LEAST_SECONDS, wall_seconds), say, effort)
        found.most_seconds *= _MOST_GROWN
        return found

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.seconds - self.spent)

    def stage(
        self, name: str, needed: float, measure: Callable[[], Found], default: Found, *, always: bool = False
    ) -> Found:
        """What `measure` finds; `default` where less than `needed` seconds are left for it, or as for `attempt`.

        What `always` is to be measured lets the budget grow, if nobody has set it.
        """
        fits, after = needed <= self.left, self.spent + needed
        if always and not fits and after <= self.most_seconds:
            fits, self.seconds = True, after
        if self.interrupted or not fits:
            self.skipped.append(name)
            return default
        self._say(f"replaying: {name} ({self.spent:.0f} of at most {self.seconds:.0f} s)")
        return self.attempt(name, measure, default)

    def attempt(self, name: str, measure: Callable[[], Found], default: Found) -> Found:
        """What `measure` finds; `default` if somebody interrupts or it fails, which must not cost what is known."""
        try:
            return measure()
        except KeyboardInterrupt:
            self.interrupted = True
            self.skipped.append(name)
            return default
        except Exception as error:
            self._say(f"{name} failed: {type(error).__name__}: {error}")
            self.skipped.append(f"{name} (failed: {type(error).__name__})")
            return default
