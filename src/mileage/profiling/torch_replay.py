"""Calibrated replays on the torch back end: time in torch's operations by phase, and stages of the update."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mileage.contracts import Learner
from mileage.description import Boundary
from mileage.profiling.probes import probed
from mileage.profiling.spans import RawSpan, TraceClock

_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_convolution", "convolution_backward"),
        *("mkldnn_convolution", "_slow_conv2d_forward", "_slow_conv2d_backward"),
    )
)
_PREFIX = "phase:"
# Steps of the environments that are worth watching; an iteration may be a whole rollout of them, or one.
_WATCHED_STEPS, _MOST_ITERATIONS = 64, 10


@dataclass(frozen=True)
class TorchPhase:
    """Torch's operations in one phase, per iteration, net of what watching them costs."""

    operations: float
    torch_seconds: float
    """In operations that are not matrix products."""
    product_seconds: float


class _WatchedClock:
    """A clock whose phases only torch's profiler hears of."""

    def __init__(self, watch: Callable[[str], AbstractContextManager[object]]) -> None:
        self._watch = watch

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Context manager that spends its body in phase `name`."""
        return self._watch(_PREFIX + str(name))


def torch_phases(learner: Learner) -> dict[str, TorchPhase]:
    """Watch some iterations with torch's own profiler; one where an iteration is a whole rollout."""
    from torch.profiler import ProfilerActivity, profile, record_function

    steps = max(1, learner.steps_per_iteration // learner.env.num_envs)
    iterations = max(1, min(_MOST_ITERATIONS, _WATCHED_STEPS // steps))
    extra = _watching_seconds()
    clock = _WatchedClock(record_function)
    learner.iterate(clock, 0.5)
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        for _ in range(iterations):
            learner.iterate(clock, 0.5)
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


def update_stages(
    learner: Learner, methods: Sequence[Boundary], iterations: int = 5
) -> tuple[float, Mapping[str, float]]:
    """Seconds of learning per iteration, and of its stages: an inner method's time is taken from the outer's."""
    spans: list[RawSpan] = []
    clock = TraceClock([])
    learner.iterate(clock, 0.5)
    with probed(methods, spans):
        for _ in range(iterations):
            learner.iterate(clock, 0.5)
    own: dict[str, float] = {}
    stack: list[tuple[str, int]] = []
    whole = 0.0
    for name, _, start, end, *_ in sorted(spans, key=lambda span: (span[2], -span[3])):
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
