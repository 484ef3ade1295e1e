"""Replays iterations of a trained agent with probes on every call that leaves Python.

Probes would cost a fast run more than a few per cent, so they are not there while the profiled run is timed: afterwards
the same agent goes on for some iterations with them. Their own cost is measured and taken off.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import statistics
import time
from _thread import get_ident as _ident
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter_ns as _now
from time import thread_time_ns as _cpu
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from mileage.kernels.machine.blas import single_threaded_blas
from mileage.meter import PhaseClock
from mileage.training.agent import Agent

ENVIRONMENT, NATIVE, TORCH = "environment", "native", "torch"
_BLOCK_SECONDS = 0.004
# Below this share of an iteration, what probes cost in a loop by themselves is near enough.
_LEAST_PROBE_SHARE = 0.01
# A probe has been seen to cost four times as much between threads that wake each other; more is another's doing.
_MOST_IN_PLACE = 5.0
_MOST_SHOWN = 200


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


class _TracedPhase:
    """A phase of the run's own clock, kept as a span besides."""

    __slots__ = ("_clock", "_name", "_phase")

    def __init__(self, clock: TraceClock, name: str, phase: AbstractContextManager[Any]) -> None:
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


class TraceClock:
    """What an algorithm asks of a clock, keeping every phase as a span. A nested phase lies within its parent."""

    def __init__(
        self,
        spans: list[Any],
        phase: Callable[[str], AbstractContextManager[Any]] | None = None,
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
        self._handles: dict[str, Any] = {}

    def phase(self, name: str) -> Any:
        """Context manager that spends its body in phase `name`."""
        try:
            return self._handles[name]
        except KeyError:
            self._handles[name] = self._kind(self, str(name), self._phase(name))
            return self._handles[name]


@dataclass(frozen=True)
class Boundary:
    """A callable through which a run leaves Python: attribute `name` of `owner`."""

    owner: Any
    name: str
    label: str
    layer: str


def boundaries(agent: Agent) -> list[Boundary]:
    """Every call of a training iteration that leaves Python for native code or for the environment."""
    from mileage.algorithms import _rollout_learner, impala
    from mileage.kernels.arrays import random
    from mileage.kernels.learners import dqn, rollout

    engine: Any = agent.learner
    found = [Boundary(engine.env, "step", "env.step", ENVIRONMENT)]
    if hasattr(engine, "replay"):
        names = (
            "push_batch",
            "sample",
            *(("update_priorities",) if hasattr(engine.replay, "update_priorities") else ()),
        )
        found += [Boundary(engine.replay, name, f"replay.{name}", NATIVE) for name in names]
    elif agent.name == "impala":
        found.append(Boundary(impala, "vtrace", "vtrace", NATIVE))
    else:
        found.append(Boundary(_rollout_learner, "run_shards", "gae", NATIVE))
    if agent.backend == "torch":
        return [*found, Boundary(random, "uniform_rows", "uniform_rows", NATIVE)]
    found.append(Boundary(engine.team, "run", "", NATIVE))
    if agent.name in ("sac", "td3"):
        return [*found, Boundary(engine, "act_kernel", f"{agent.name}_act", NATIVE)]
    if agent.name == "dqn":
        return [*found, Boundary(dqn, "dqn_act", "dqn_act", NATIVE)]
    return [*found, Boundary(rollout, "act", "act", NATIVE), Boundary(rollout, "values", "values", NATIVE)]


def _probe(original: Callable[..., Any], boundary: Boundary, spans: list[Any]) -> Callable[..., Any]:
    label, layer, keep = boundary.label, boundary.layer, spans.append

    def probe(*args: Any, **kwargs: Any) -> Any:
        start = _now()
        result = original(*args, **kwargs)
        # A team runs any kernel: the call is called after it. A plain tuple costs a fifth of a `Span`.
        keep((label or args[0].__name__, "call", start, _now(), 0, layer))
        return result

    return probe


@contextlib.contextmanager
def probed(found: list[Boundary], spans: list[Any]) -> Iterator[None]:
    """Put probes on all boundaries; takes them off again."""
    with contextlib.ExitStack() as undo:
        for boundary in found:
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

    def of(self, spans: Iterable[Any]) -> float:
        """Seconds that all tools took to make `spans`."""
        kinds = collections.Counter(span[1] for span in spans)
        return kinds["call"] * (self.inside + self.outside) + kinds["phase"] * (self.phase + self.phase_inside)

    def times(self, factor: float) -> ProbeCost:
        """All of them `factor` times as much."""
        return ProbeCost(factor * self.inside, factor * self.outside, factor * self.phase, factor * self.phase_inside)


def probe_cost(calls: int = 5_000) -> ProbeCost:
    """Measure the probes on a function that does nothing, called over and over."""

    def nothing() -> None:
        return None

    best = ProbeCost(float("inf"), float("inf"), float("inf"), float("inf"))
    for _ in range(3):
        spans: list[Any] = []
        probe = _probe(nothing, Boundary(None, "", "nothing", NATIVE), spans)
        clock = PhaseClock()
        phases = clock.phase("learn"), TraceClock(spans, clock.phase).phase("learn")
        plain, probing, untraced, traced = (_loop_seconds(action, calls) for action in (nothing, probe, *phases))
        inside = sum(span[3] - span[2] for span in spans if span[1] == "call") / calls / 1e9
        inside = max(0.0, inside - plain)
        outside = max(0.0, probing - plain - inside)
        within = sum(span[3] - span[2] for span in spans if span[1] == "phase") / calls / 1e9
        best = ProbeCost(
            min(best.inside, inside),
            min(best.outside, outside),
            min(best.phase, max(0.0, traced - untraced - within)),
            min(best.phase_inside, within),
        )
    return best


def _loop_seconds(action: Any, calls: int) -> float:
    if callable(action):
        start = time.perf_counter()
        for _ in range(calls):
            action()
        return (time.perf_counter() - start) / calls
    start = time.perf_counter()
    for _ in range(calls):
        with action:
            pass
    return (time.perf_counter() - start) / calls


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


class _Packed:
    """Spans of one block in little memory.

    A trace that kept them as they come would touch new memory in every block, and what the system takes to provide it
    would look like time of the iterations.
    """

    def __init__(self, spans: list[Any]) -> None:
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


@dataclass
class _Blocks:
    """Blocks of iterations with the same number of probes on every call."""

    probes: int
    watch_cpu: bool = False
    seconds: list[float] = field(default_factory=list)
    """Per iteration, of every block."""
    spans: list[_Packed] = field(default_factory=list)
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


def replay(agent: Agent, *, seconds: float, most: int = 20_000, least: int = 4) -> Trace:
    """Go on training for about `seconds` per kind of block, at least `least` blocks and at most `most` iterations each.

    There are blocks without probes, with one on every call and phase, and with two: what the second adds is what the
    first one costs, with the arguments of real calls and the caches as training leaves them. In a fourth kind, phases
    are watched for the time that they are off the CPU, which is dear to find out.
    """
    algorithm = agent.learner
    found, cost = boundaries(agent), probe_cost()
    kinds = [_Blocks(0), _Blocks(1), _Blocks(2), _Blocks(1, watch_cpu=True)]
    with single_threaded_blas(), _no_collection():
        try:
            size = _block_size(algorithm)
            end = time.perf_counter() + len(kinds) * seconds
            turn = 0
            while turn < least or (turn * size < most and time.perf_counter() < end):
                # Who comes first changes every round: what comes of the order must fall to all kinds alike.
                start = turn % len(kinds)
                for kind in (*kinds[start:], *kinds[:start]):
                    _run_block(algorithm, found, kind, size)
                turn += 1
        finally:
            # Some algorithms collect on threads of their own.
            algorithm.rest()
    plain, once, twice, watched = kinds
    spans, iterations = once.kept(), size * len(once.counted())
    factor = _in_place(plain.mean, once.mean, twice.mean, cost.of(spans) / iterations)
    return Trace(spans, iterations, cost.times(factor), plain.mean, watched.kept(), factor)


def _in_place(plain: float, once: float, twice: float, expected: float) -> float:
    """How many times as much as `expected` a set of probes costs within an iteration, all in seconds per iteration."""
    # The difference of two noisy means says nothing about what is hardly there; and a probe is never cheaper in place.
    if expected < _LEAST_PROBE_SHARE * plain:
        return 1.0
    return min(max(1.0, (twice - once) / expected), _MOST_IN_PLACE)


def _block_size(algorithm: Any) -> int:
    """Iterations that take some milliseconds, an even number: some algorithms do more in every second one."""
    clock = PhaseClock()
    algorithm.iterate(clock, 0.5)
    start = time.perf_counter()
    for _ in range(2):
        algorithm.iterate(clock, 0.5)
    return 2 * max(1, round(_BLOCK_SECONDS / (time.perf_counter() - start)))


def _run_block(algorithm: Any, found: list[Boundary], kind: _Blocks, size: int) -> None:
    """Let one block of iterations go by; the first one, with cold caches and sleeping threads, is not counted."""
    spans: list[Any] = []
    clock: Any = PhaseClock()
    with contextlib.ExitStack() as stack:
        for _ in range(kind.probes):
            stack.enter_context(probed(found, spans))
            clock = TraceClock(spans, clock.phase, watch_cpu=kind.watch_cpu, threads=algorithm.own_threads)
        algorithm.iterate(clock, 0.5)
        spans.clear()
        keep = spans.append
        began = _now()
        for _ in range(size):
            start = _now()
            algorithm.iterate(clock, 0.5)
            keep(("iteration", "iteration", start, _now(), 0, ""))
        ended = _now()
    kind.seconds.append((ended - began) / size / 1e9)
    kind.spans.append(_Packed(spans))


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
