"""After the profiled run: everything that is measured by replaying its parts on the same agent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from mileage._cores import usable_cores
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.profiling.end_to_end import EndToEnd
from mileage.profiling.layers import BLAS, TORCH, LayerTable, PhaseCost, layer_table, phase_costs
from mileage.profiling.limits import Limits, best, measure_limits
from mileage.profiling.memory import BufferSize, buffer_sizes
from mileage.profiling.native_replay import SIDE_BY_SIDE, NativeReplay, RolloutParts, UpdateStages
from mileage.profiling.primitives import primitives as operations_alone
from mileage.profiling.tracing import NATIVE, Trace, replay
from mileage.profiling.what_if import WhatIf, what_ifs
from mileage.profiling.work import Work, works
from mileage.training.agent import Agent

REPLAYED = ("ppo", "a2c", "impala", "sac", "td3", "dqn")
"""Algorithms whose parts can be replayed; of others, only phases are known."""
_TRACE_SECONDS = 1.5
_PART_SECONDS = 0.12
# Stages are differences of shortest times, which take longer to find.
_STAGE_SECONDS = 0.25
_SCALING_SECONDS = 0.12
_COLLECTING = ("rollout", "inference", "env_step", "advantage", "sync")


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
    buffers: tuple[BufferSize, ...]
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


def calibrate(agent: Agent, run: EndToEnd, effort: float = 1.0) -> Calibration:
    """Replay the parts of `run` on the agent that it left behind; `effort` scales how long is measured."""
    began = time.perf_counter()
    limits = measure_limits(agent.threads)
    trace = replay(agent, seconds=effort * _TRACE_SECONDS)
    costs = phase_costs(trace)
    splits: dict[str, Mapping[str, float]] = {}
    parts, stages = None, None
    operations: dict[str, float] = {}
    scaling: Mapping[int, Mapping[str, float]] = {}
    native = None
    with single_threaded_blas():
        if agent.backend == "native":
            native = NativeReplay(agent)
            parts = native.rollout_parts(effort * _PART_SECONDS) if native.fused else None
            stages = native.update_stages(effort * _STAGE_SECONDS)
            if agent.name not in SIDE_BY_SIDE:
                scaling = native.scaling(_thread_counts(agent), _SCALING_SECONDS)
            splits = _native_splits(agent, native, parts, stages, costs)
            native.close()
        else:
            stages, operations, splits = _torch_replays(agent, costs)
    changes = () if agent.name in SIDE_BY_SIDE else tuple(what_ifs(agent, native, scaling, effort))
    table = layer_table(costs, splits, *_measured(run, costs), trace.plain_seconds)
    return Calibration(
        limits=limits,
        costs=costs,
        layers=table,
        roofline=rooflines(works(agent), run, limits),
        rollout_parts=parts,
        update_stages=stages,
        scaling=scaling,
        what_ifs=changes,
        buffers=() if agent.name in SIDE_BY_SIDE else buffer_sizes(agent),
        torch_operations=operations,
        primitives={} if agent.name in SIDE_BY_SIDE else operations_alone(agent, effort),
        warm_load_seconds=warm_load_seconds(run.compiled),
        trace=trace,
        seconds=time.perf_counter() - began,
    )


def _thread_counts(agent: Agent) -> tuple[int, ...]:
    return tuple(sorted({1, usable_cores(), agent.threads}))


def _native_splits(
    agent: Agent,
    native: NativeReplay,
    parts: RolloutParts | None,
    stages: UpdateStages,
    costs: tuple[PhaseCost, ...],
) -> dict[str, Mapping[str, float]]:
    """Shares of layers within the kernels of the native back end, by the names of their calls."""
    update = "update" if native.on_policy else f"{agent.name}_update"
    splits: dict[str, Mapping[str, float]] = {update: stages.shares}
    if parts is not None:
        return splits | {"rollout": parts.shares}
    if agent.name in SIDE_BY_SIDE:
        return splits
    act = "act" if native.on_policy else f"{agent.name}_act"
    seconds = next((call.seconds_each for cost in costs for call in cost.calls if call.label == act), 0.0)
    if seconds > 0.0:
        products = best({"": native.products(native.work["inference"])}, seconds=0.02)[""]
        share = min(1.0, max(0.0, products - measure_limits(1).crossing_seconds) / seconds)
        splits[act] = {BLAS: share, NATIVE: 1.0 - share}
    return splits


def _torch_replays(
    agent: Agent, costs: tuple[PhaseCost, ...]
) -> tuple[UpdateStages, dict[str, float], dict[str, Mapping[str, float]]]:
    """Stages of the update, operations per phase, and torch's share of what would otherwise be Python."""
    from mileage.profiling import torch_replay

    phases = torch_replay.torch_phases(agent)
    whole, stages = torch_replay.update_stages(agent)
    learn = phases.get("learn")
    splits: dict[str, Mapping[str, float]] = {}
    for cost in costs:
        found = phases.get(cost.phase)
        if found is None or cost.python <= 0.0:
            continue
        inside = found.torch_seconds + found.product_seconds
        fit = min(1.0, cost.python / inside) if inside else 0.0
        splits[f"phase:{cost.phase}"] = {
            TORCH: fit * found.torch_seconds / cost.python,
            BLAS: fit * found.product_seconds / cost.python,
        }
    operations = {name: phase.operations for name, phase in phases.items()}
    return UpdateStages(whole, stages, learn.product_seconds if learn else 0.0), operations, splits


def _measured(run: EndToEnd, costs: tuple[PhaseCost, ...]) -> tuple[float, float]:
    """Seconds of one iteration's rollout and update in the run, by its own clock; `other` as in the replay."""
    entries = {cost.phase: cost.entries for cost in costs}
    between = sum(cost.seconds for cost in costs if cost.phase == "other")
    collecting = sum(run.steady_seconds(phase) * entries.get(phase, 0.0) for phase in (*_COLLECTING, "transfer"))
    return collecting + between, run.steady_seconds("learn") * entries.get("learn", 0.0)


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


def warm_load_seconds(names: tuple[str, ...]) -> float | None:
    """Time loading kernels that were just compiled from disk; None if there are none."""
    if not names:
        return None
    from mileage.kernels.machine import precompile

    start = time.perf_counter()
    precompile.read(names)
    return time.perf_counter() - start
