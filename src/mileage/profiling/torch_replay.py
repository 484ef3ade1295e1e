"""Calibrated replays on the torch back end: time in torch's operations by phase, and stages of the update."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter_ns as _now
from typing import Any

from mileage.algorithms._off_policy import OffPolicy
from mileage.profiling.tracing import TraceClock
from mileage.training.agent import Agent

_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_convolution", "convolution_backward"),
        *("mkldnn_convolution", "_slow_conv2d_forward", "_slow_conv2d_backward"),
    )
)
_PREFIX = "phase:"


@dataclass(frozen=True)
class TorchPhase:
    """Torch's operations in one phase, per iteration, net of what watching them costs."""

    operations: float
    torch_seconds: float
    """In operations that are not matrix products."""
    product_seconds: float


class _WatchedClock:
    """A clock whose phases only torch's profiler hears of."""

    def __init__(self, watch: Callable[[str], Any]) -> None:
        self._watch = watch

    def phase(self, name: str) -> Any:
        """Context manager that spends its body in phase `name`."""
        return self._watch(str(name))


def torch_phases(agent: Agent) -> dict[str, TorchPhase]:
    """Watch some iterations with torch's own profiler; one where an iteration is a whole rollout."""
    from torch.profiler import ProfilerActivity, profile, record_function

    algorithm = agent.learner
    iterations = 10 if isinstance(algorithm, OffPolicy) else 1
    extra = _watching_seconds()
    clock: Any = _WatchedClock(lambda name: record_function(_PREFIX + name))
    algorithm.iterate(clock, 0.5)
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        for _ in range(iterations):
            algorithm.iterate(clock, 0.5)
    sums: dict[str, list[float]] = {}
    for event in watched.events():
        if event.name.startswith(_PREFIX):
            continue
        into = sums.setdefault(_phase_of(event), [0.0, 0.0, 0.0])
        seconds = max(0.0, event.self_cpu_time_total / 1e6 - extra)
        into[0] += 1
        into[2 if event.name in _PRODUCTS else 1] += seconds
    return {name: TorchPhase(*(value / iterations for value in values)) for name, values in sums.items()}


def _phase_of(event: Any) -> str:
    while event is not None:
        if event.name.startswith(_PREFIX):
            return str(event.name.removeprefix(_PREFIX))
        event = event.cpu_parent
    # Threads of the learner's own have no parent on the thread that opened the phase.
    return "learn"


def _watching_seconds(operations: int = 300) -> float:
    """What torch's profiler adds to the time that it reports for an operation."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    a = torch.zeros(1)
    start = time.perf_counter()
    for _ in range(operations):
        a.add_(1.0)
    plain = (time.perf_counter() - start) / operations
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        for _ in range(operations):
            a.add_(1.0)
    events = [event for event in watched.events() if event.name == "aten::add_"]
    reported: float = sum(event.self_cpu_time_total for event in events) / 1e6 / max(1, len(events))
    return max(0.0, reported - plain)


_ON_POLICY = (("_minibatches", "shuffle"), ("_run", "forward"), ("_loss", "loss"), ("_learn", "bookkeeping"))
_ADAM = (("gradients", "backward"), ("descend", "clip and optimizer"))


def _stages(agent: Agent, engine: Any) -> list[tuple[Any, str, str]]:
    """Methods of an engine and the stage that the time in them belongs to; inner ones are taken from outer ones."""
    if agent.name in ("ppo", "a2c"):
        return [
            *((engine, name, stage) for name, stage in _ON_POLICY if name != "_minibatches"),
            *((engine.adam, name, stage) for name, stage in _ADAM),
        ]
    found: list[tuple[Any, str, str]] = [
        (engine, "learn", "gather and bookkeeping"),
        (engine, "_update", "target, critic and actor forward"),
        (engine, "_follow", "polyak"),
        (engine.replay, "sample", "sample"),
    ]
    if agent.name == "sac":
        found += [(engine, "_learn_temperature", "temperature"), (engine, "_draw_noise", "noise")]
    names = {"_critic_adam": "critic", "_actor_adam": "actor", "_adam": "network"}
    for attribute, name in names.items():
        adam = getattr(engine, attribute, None)
        if adam is not None:
            found += [(adam, "gradients", f"{name} backward"), (adam, "descend", f"{name} optimizer")]
    return found


def update_stages(agent: Agent, iterations: int = 5) -> tuple[float, Mapping[str, float]]:
    """Seconds of learning per iteration, and of its stages."""
    engine = algorithm = agent.learner
    spans: list[tuple[str, int, int]] = []
    clock: Any = TraceClock([])
    algorithm.iterate(clock, 0.5)
    with _timed(_stages(agent, engine), spans):
        for _ in range(iterations):
            algorithm.iterate(clock, 0.5)
    own: dict[str, float] = {}
    stack: list[tuple[str, int]] = []
    whole = 0.0
    for name, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
        while stack and stack[-1][1] <= start:
            stack.pop()
        seconds = (end - start) / 1e9 / iterations
        own[name] = own.get(name, 0.0) + seconds
        if stack:
            own[stack[-1][0]] -= seconds
        else:
            whole += seconds
        stack.append((name, end))
    return whole, {name: max(0.0, seconds) for name, seconds in own.items()}


@contextlib.contextmanager
def _timed(methods: list[tuple[Any, str, str]], spans: list[tuple[str, int, int]]) -> Iterator[None]:
    def wrap(original: Any, stage: str) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = _now()
            result = original(*args, **kwargs)
            spans.append((stage, start, _now()))
            return result

        return timed

    with contextlib.ExitStack() as undo:
        for owner, name, stage in methods:
            setattr(owner, name, wrap(getattr(owner, name), stage))
            undo.callback(delattr, owner, name)
        yield
