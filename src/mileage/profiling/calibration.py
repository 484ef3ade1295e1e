"""After the profiled run: everything that is measured by replaying its parts on the same agent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from mileage._cores import usable_cores
from mileage._types import Team
from mileage.contracts import Learner
from mileage.description import Buffer, Description, Layer, Work
from mileage.kernels.machine import precompile
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.meter import Phase
from mileage.profiling import replays
from mileage.profiling.costs import ROLLOUT, UPDATE, LayerTable, PhaseCost, layer_table, phase_costs
from mileage.profiling.end_to_end import EndToEnd
from mileage.profiling.limits import Limits, best, measure_limits
from mileage.profiling.primitives import primitives as operations_alone
from mileage.profiling.replays import RolloutParts, UpdateStages
from mileage.profiling.tracing import Trace, replay
from mileage.profiling.what_if import WhatIf, what_ifs
from mileage.training.agent import Agent

_TRACE_SECONDS = 1.5
_PART_SECONDS = 0.12
# Stages are differences of shortest times, which take longer to find.
_STAGE_SECONDS = 0.25
_SCALING_SECONDS = 0.12


@dataclass(frozen=True)
class Roofline:
    """How far one phase is from what the machine can do."""

    phase: str
    flops: float
    """Of one entry."""
    bytes_touched: float
    seconds: float
    """Of one entry, in the profiled run."""
    limit_gflops: float
    """The roof: matrix products, or memory at this phase's intensity."""
    memory_bound: bool
    """Whether the roof is memory's."""

    @property
    def gflops(self) -> float:
        """What the phase reaches."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def of_limit(self) -> float:
        """Share of the roof that the phase reaches."""
        return self.gflops / self.limit_gflops if self.limit_gflops else 0.0


@dataclass(frozen=True)
class Calibration:
    """What replaying found."""

    limits: Limits
    costs: tuple[PhaseCost, ...]
    layers: LayerTable
    roofline: tuple[Roofline, ...]
    rollout_parts: RolloutParts | None
    update_stages: UpdateStages | None
    scaling: Mapping[int, Mapping[str, float]]
    """Best seconds per phase by number of threads; empty where there is no team of threads."""
    what_ifs: tuple[WhatIf, ...]
    buffers: tuple[Buffer, ...]
    torch_operations: Mapping[str, float]
    """Operations that torch dispatches per iteration, by phase."""
    primitives: Mapping[str, float]
    """Seconds of single operations; see `primitives`."""
    warm_load_seconds: float | None
    """Loading the kernels from disk, had they been compiled before."""
    trace: Trace
    seconds: float
    """What calibration took, after the run and not part of it."""

    def roof(self, phase: str) -> Roofline | None:
        """The roofline of one phase."""
        return next((each for each in self.roofline if each.phase == phase), None)


@dataclass(frozen=True)
class _Inside:
    """What replaying found inside single calls and phases."""

    rollout_parts: RolloutParts | None = None
    update_stages: UpdateStages | None = None
    splits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Shares of layers, as `layer_table` takes them."""
    scaling: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    torch_operations: Mapping[str, float] = field(default_factory=dict)


def calibrate(agent: Agent, described: Description, run: EndToEnd, effort: float = 1.0) -> Calibration:
    """Replay the parts of `run` on the agent that it left behind; `effort` scales how long is measured."""
    began = time.perf_counter()
    limits = measure_limits(agent.threads)
    trace = replay(agent.learner, described, seconds=effort * _TRACE_SECONDS)
    costs = phase_costs(trace)
    with single_threaded_blas():
        inside = _native(described, costs, _thread_counts(agent), effort)
        if described.methods:
            inside = _torch(agent.learner, described, costs)
    return Calibration(
        limits, costs, layer_table(costs, inside.splits, *_measured(run, costs), trace.plain_seconds),
        rooflines(described.work, run, limits), inside.rollout_parts, inside.update_stages, inside.scaling,
        tuple(what_ifs(agent, described, inside.scaling, effort)), described.buffers, inside.torch_operations,
        primitives=operations_alone(agent, described, effort), warm_load_seconds=_reading_seconds(run.compiled),
        trace=trace, seconds=time.perf_counter() - began,
    )  # fmt: skip


def _thread_counts(agent: Agent) -> tuple[int, ...]:
    return tuple(sorted({1, usable_cores(), agent.threads}))


def _native(
    described: Description, costs: tuple[PhaseCost, ...], thread_counts: tuple[int, ...], effort: float
) -> _Inside:
    """The native calls in parts, in stages, on other numbers of threads, and shared out between BLAS and the rest."""
    parts, stages, team = None, None, described.team
    splits: dict[str, Mapping[str, float]] = {}
    if team is None:
        return _Inside()
    with described.at_rest():
        for phase, call in described.calls.items():
            work = described.work[phase]
            if call.parts is not None:
                parts = replays.rollout_parts(call, call.parts, work, team, effort * _PART_SECONDS)
                splits[call.label] = parts.shares
            elif call.stages is not None:
                stages = replays.update_stages(call, call.stages, work, team, effort * _STAGE_SECONDS)
                splits[call.label] = stages.shares
            else:
                calls = (each for cost in costs for each in cost.calls)
                seconds = next((each.seconds_each for each in calls if each.label == call.label), 0.0)
                splits |= {call.label: _share_of_products(work, team, seconds)} if seconds > 0.0 else {}
        scaling = replays.scaling(described, thread_counts, _SCALING_SECONDS)
    return _Inside(parts, stages, splits, scaling)


def _share_of_products(work: Work, team: Team, seconds: float) -> dict[str, float]:
    """Layers of a call that takes `seconds`."""
    alone = best({"": replays.products_of(work, team)}, seconds=0.02)[""]
    share = min(1.0, max(0.0, alone - measure_limits(1).crossing_seconds) / seconds)
    return {Layer.BLAS: share, Layer.NATIVE: 1.0 - share}


def _torch(learner: Learner, described: Description, costs: tuple[PhaseCost, ...]) -> _Inside:
    """Stages of the update, operations per phase, and torch's share of what would otherwise be Python."""
    from mileage.profiling import torch_replay

    phases = torch_replay.torch_phases(learner)
    whole, stages = torch_replay.update_stages(learner, described.methods)
    learn = phases.get("learn")
    splits: dict[str, Mapping[str, float]] = {}
    for cost in costs:
        found = phases.get(cost.phase)
        if found is None or cost.python <= 0.0:
            continue
        inside = found.torch_seconds + found.product_seconds
        fit = min(1.0, cost.python / inside) if inside else 0.0
        splits[f"phase:{cost.phase}"] = {
            Layer.TORCH: fit * found.torch_seconds / cost.python,
            Layer.BLAS: fit * found.product_seconds / cost.python,
        }
    return _Inside(
        update_stages=UpdateStages(whole, stages, learn.product_seconds if learn else 0.0),
        splits=splits,
        torch_operations={name: phase.operations for name, phase in phases.items()},
    )


def _measured(run: EndToEnd, costs: tuple[PhaseCost, ...]) -> tuple[float, float]:
    """Seconds of one iteration's rollout and update in the run, by its own clock; `other` as in the replay."""
    sums = {ROLLOUT: 0.0, UPDATE: 0.0}
    for cost in costs:
        between = cost.phase == Phase.OTHER
        sums[cost.part] += cost.seconds if between else run.steady_seconds(cost.phase) * cost.entries
    return sums[ROLLOUT], sums[UPDATE]


def rooflines(work: Mapping[str, Work], run: EndToEnd, limits: Limits) -> tuple[Roofline, ...]:
    """Set every phase's work against the machine's limits."""
    found = []
    for phase, each in work.items():
        seconds = run.steady_seconds(phase)
        if seconds > 0.0:
            roof = limits.roof(each.intensity if each.working_set > limits.cache_bytes else float("inf"))
            bound = roof < limits.gemm_gflops
            found.append(Roofline(phase, each.flops, each.bytes_touched, seconds, roof, bound))
    return tuple(found)


def _reading_seconds(names: tuple[str, ...]) -> float | None:
    """What it takes to read kernels from disk that were just compiled; None if there are none."""
    start = time.perf_counter()
    precompile.read(names)
    return time.perf_counter() - start if names else None
