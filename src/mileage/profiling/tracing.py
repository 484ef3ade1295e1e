"""Replays iterations of a trained agent with probes on every call that leaves Python.

Probes would cost a fast run more than a few per cent, so they are not there while the profiled run is timed: afterwards
the same agent goes on for some iterations with them. Their own cost is measured and taken off.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter_ns as _now
from time import thread_time_ns as _cpu
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from mileage.kernels._blas import single_threaded_blas
from mileage.meter import PhaseClock
from mileage.training.agent import Agent

ENVIRONMENT, NATIVE, TORCH = "environment", "native", "torch"


class Span(NamedTuple):
    """Something that happened between two instants, in ns of `time.perf_counter_ns`."""

    name: str
    kind: str
    """`iteration`, `phase` or `call`."""
    start: int
    end: int
    cpu: int = 0
    """CPU time of the thread in between; phases only."""
    layer: str = ""
    """Where a call goes."""


class _TracedPhase:
    __slots__ = ("_clock", "_name")

    def __init__(self, clock: TraceClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._clock.open.append((_now(), _cpu()))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        cpu, end = _cpu(), _now()
        start, cpu_start = self._clock.open.pop()
        self._clock.spans.append((self._name, "phase", start, end, cpu - cpu_start, ""))


class TraceClock:
    """What an algorithm asks of a clock, keeping every phase as a span. A nested phase lies within its parent."""

    def __init__(self, spans: list[Any], around: Callable[[str], AbstractContextManager[Any]] | None = None) -> None:
        self.spans = spans
        self.open: list[tuple[int, int]] = []
        self._around = around
        self._handles: dict[str, Any] = {}

    def phase(self, name: str) -> Any:
        """Context manager that spends its body in phase `name`."""
        if self._around is not None:
            return self._around(str(name))
        if name not in self._handles:
            self._handles[name] = _TracedPhase(self, str(name))
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
    from mileage.algorithms import _on_policy
    from mileage.kernels import dqn, random, rollout, sac, td3

    engine = agent._built().engine
    found = [Boundary(engine.env, "step", "env.step", ENVIRONMENT)]
    if hasattr(engine, "replay"):
        names = (
            "push_batch",
            "sample",
            *(("update_priorities",) if hasattr(engine.replay, "update_priorities") else ()),
        )
        found += [Boundary(engine.replay, name, f"replay.{name}", NATIVE) for name in names]
    else:
        found.append(Boundary(_on_policy, "run_shards", "gae", NATIVE))
    if agent.backend == "torch":
        return [*found, Boundary(random, "uniform_rows", "uniform_rows", NATIVE)]
    found.append(Boundary(engine.team, "run", "", NATIVE))
    acts = {"sac": (sac, "sac_act"), "td3": (td3, "td3_act"), "dqn": (dqn, "dqn_act")}
    if agent.name in acts:
        module, name = acts[agent.name]
        return [*found, Boundary(module, name, name, NATIVE)]
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
    """Within a phase's own span: reading the thread's CPU clock twice."""


def probe_cost(calls: int = 5_000) -> ProbeCost:
    """Measure the probes on a function that does nothing."""

    def nothing() -> None:
        return None

    best = ProbeCost(float("inf"), float("inf"), float("inf"), float("inf"))
    for _ in range(3):
        spans: list[Any] = []
        probe = _probe(nothing, Boundary(None, "", "nothing", NATIVE), spans)
        phase = TraceClock(spans).phase("nothing")
        plain, probing, entering = (_loop_seconds(action, calls) for action in (nothing, probe, phase))
        inside = sum(span[3] - span[2] for span in spans if span[1] == "call") / calls / 1e9
        inside = max(0.0, inside - plain)
        outside = max(0.0, probing - plain - inside)
        within = sum(span[3] - span[2] for span in spans if span[1] == "phase") / calls / 1e9
        best = ProbeCost(
            min(best.inside, inside),
            min(best.outside, outside),
            min(best.phase, max(0.0, entering - within)),
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
    """Iterations that were replayed, with and without probes in turn; the slowest and the fastest quarter is left out.

    A busy machine interrupts some iterations for longer than they take: quarters at both ends keep such out of means.
    """

    spans: tuple[Span, ...]
    """Of the iterations with probes."""
    iterations: int
    cost: ProbeCost
    plain_seconds: float = 0.0
    """Mean of the iterations without probes."""


def replay(agent: Agent, *, seconds: float, most: int = 200, least: int = 4) -> Trace:
    """Go on training for about `seconds`, at least `least` and at most `most` iterations of each kind."""
    algorithm = agent._built()
    found, cost = boundaries(agent), probe_cost()
    plain_clock = PhaseClock()
    traced: list[tuple[int, list[Any]]] = []
    plain: list[int] = []
    with single_threaded_blas():
        algorithm.iterate(plain_clock, 0.5)
        end = time.perf_counter() + 2.0 * seconds
        while len(traced) < least or (len(traced) < most and time.perf_counter() < end):
            # The order flips every round: what an algorithm does in every second update must fall to both kinds.
            for with_probes in (True, False) if len(traced) % 2 else (False, True):
                if with_probes:
                    traced.append(_traced_iteration(algorithm, found))
                else:
                    start = _now()
                    algorithm.iterate(plain_clock, 0.5)
                    plain.append(_now() - start)
    kept = _middle(traced, lambda each: each[0])
    rest = _middle(plain, lambda each: each)
    # Those of one iteration stay together, and iterations in their order in time.
    spans = [span for _, each in sorted(kept, key=lambda pair: pair[1][-1][2]) for span in each]
    return Trace(tuple(Span._make(span) for span in spans), len(kept), cost, sum(rest) / len(rest) / 1e9)


def _traced_iteration(algorithm: Any, found: list[Boundary]) -> tuple[int, list[Any]]:
    """One iteration with probes: how long it took in ns, and its spans, its own last."""
    spans: list[Any] = []
    clock: Any = TraceClock(spans)
    with probed(found, spans):
        start = _now()
        algorithm.iterate(clock, 0.5)
        stop = _now()
    spans.append(("iteration", "iteration", start, stop, 0, ""))
    return stop - start, spans


_T = TypeVar("_T")


def _middle(items: list[_T], size: Callable[[_T], int]) -> list[_T]:
    """The middle half of the items by size; all of them if there are few."""
    ordered = sorted(items, key=size)
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter]
