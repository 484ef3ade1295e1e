"""Calibrated replays of native calls and of torch: rollouts in parts, updates in stages, products, threads.

All functions here are for a learner at rest (`Description.paused`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mileage.contracts import Learner
from mileage.description import Boundary, Call, Description, Layer, Parts, Stages, Task, Work
from mileage.kernels.machine import team as threads
from mileage.kernels.machine.frames import Frame
from mileage.kernels.machine.gauges import STREAM, nothing, product_frame, products
from mileage.measure.timing import every_call
from mileage.profiling.probes import probed
from mileage.profiling.roofline import best, medians
from mileage.profiling.traces import RawSpan, TraceClock
from mileage.types import Team


@dataclass(frozen=True)
class RolloutParts:
    """Seconds of one fused rollout, and of its parts replayed alone."""

    fused: float
    environments: float
    inference: float
    storage: float
    blas: float
    """The part of inference that is matrix products."""
    call: float = 0.0
    """Entering the kernel and meeting at its end; the other parts are without it."""

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.environments + self.inference + self.storage + self.call

    @property
    def difference(self) -> float:
        """By how much the sum of the parts differs from the fused whole, as a share of it."""
        return self.total / self.fused - 1.0 if self.fused else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Shares of layers in the fused kernel, adding up to 1."""
        if self.total <= 0.0:
            return {Layer.NATIVE: 1.0}
        blas = min(self.blas, self.inference) / self.total
        environments = self.environments / self.total
        return {Layer.ENVIRONMENT: environments, Layer.BLAS: blas, Layer.NATIVE: 1.0 - environments - blas}


@dataclass(frozen=True)
class UpdateStages:
    """Seconds of one update, and of its stages."""

    whole: float
    """The real kernel."""
    stages: Mapping[str, float]
    blas: float
    """All matrix products alone."""

    @property
    def difference(self) -> float:
        """By how much the sum of the stages differs from the real kernel, as a share of it."""
        return sum(self.stages.values()) / self.whole - 1.0 if self.whole else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Shares of layers in the update kernel, adding up to 1."""
        share = min(1.0, self.blas / self.whole) if self.whole else 0.0
        return {Layer.BLAS: share, Layer.NATIVE: 1.0 - share}


def products_of(work: Work, team: Team) -> Task:
    """A function that does the products of `work` and nothing else."""
    # Networks that are pieces of their own are alike: the products of the first stand for those of each.
    each, pieces = work.products[: len(work.products) // work.networks], work.pieces * work.networks
    frame = product_frame(each, pieces, max(1, round(work.repeats)), team.n_ranks)
    return lambda: team.run(products, frame.record, pieces)


def _empty_call(team: Team, pieces: int) -> Task:
    """A function that enters a kernel which does nothing, on as many threads as `pieces` of work would."""
    empty = np.zeros(1, np.float32)
    frame = Frame(STREAM, a=empty, b=empty, c=empty, size=0)
    return lambda: team.run(nothing, frame.record, pieces)


def rollout_parts(call: Call, parts: Parts, work: Work, team: Team, seconds: float) -> RolloutParts:
    """Time a fused rollout and its parts in alternation."""
    arms = {
        "fused": call.run,
        "environments": parts.environments,
        "inference": parts.inference,
        "storage": parts.storage,
        "products": products_of(work, team),
        "call": _empty_call(team, call.pieces),
    }
    found = medians(arms, seconds=seconds, prepare=parts.rewind)
    net = {name: max(0.0, seconds - found["call"]) for name, seconds in found.items()}
    return RolloutParts(
        found["fused"], net["environments"], net["inference"], net["storage"], net["products"], found["call"]
    )


def update_stages(call: Call, stages: Stages, work: Work, team: Team, seconds: float) -> UpdateStages:
    """Time an update and its stages in alternation."""
    turns = range(stages.period - 1, stages.period) if stages.last_is_rare else range(stages.period)

    def up_to(stage: int | None) -> Task:
        def several() -> None:
            for turn in turns:
                stages.run(stage, turn)

        return several

    arms: dict[str, Task] = {name: up_to(stage) for stage, name in enumerate(stages.names)}
    arms |= {"whole": up_to(None), "products": products_of(work, team), "call": _empty_call(team, call.pieces)}
    # Differences of the shortest times: those of medians drown in what else the machine does.
    found = best(arms, seconds=seconds)
    cumulative = [found[name] / len(turns) for name in stages.names]
    each = dict(zip(stages.names, np.diff([0.0, *cumulative]).tolist(), strict=True))
    whole = found["whole"] / len(turns)
    if stages.last_is_rare:
        rare = each[stages.names[-1]] * (1.0 - 1.0 / stages.period)
        each[stages.names[-1]] -= rare
        whole -= rare
    return UpdateStages(whole, each, max(0.0, found["products"] - found["call"]))


Scaling = Mapping[int, Mapping[str, Sequence[float]]]
"""Seconds of calls by number of threads and phase, round by round: all numbers took turns."""


def scaling(described: Description, counts: Sequence[int], seconds: float) -> dict[int, dict[str, list[float]]]:
    """Seconds of the calls that threads share out, for each number of threads, by phase."""
    on_team = described.on_team
    shared = {phase: call for phase, call in described.calls.items() if call.stages or call.parts}
    if on_team is None or not shared:
        return {}
    # The agent's own number of threads is the most it takes; other numbers are measured as they are.
    now = 0 if described.team is None else described.team.n_ranks
    teams = {count: threads.Team(count, adaptive=count == now) for count in counts}

    def arm(count: int, action: Task) -> Callable[[], None]:
        def run() -> None:
            with on_team(teams[count]):
                action()

        return run

    found: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    try:
        for phase, call in shared.items():
            arms = {str(count): arm(count, call.run) for count in counts}
            taken = every_call(arms, seconds=seconds, prepare=call.parts.rewind if call.parts else None, least_rounds=7)
            for count in counts:
                found[count][phase] = taken[str(count)]
    finally:
        for team in teams.values():
            team.close()
    return found


# --- Calibrated replays on the torch back end: time in torch's operations by phase, and stages of the update ---
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


def torch_update_stages(
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
