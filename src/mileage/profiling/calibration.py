"""After the profiled run: everything that is measured by replaying its parts on the same agent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from mileage.contracts import Learner
from mileage.description import Buffer, Description, Layer, Work
from mileage.kernels.machine import precompile
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.measure import Phase
from mileage.measure.machine import Load, between, counters
from mileage.profiling import replays
from mileage.profiling.costs import ROLLOUT, UPDATE, LayerTable, PhaseCost, layer_table, phase_costs
from mileage.profiling.lines import HotLine, hot_lines
from mileage.profiling.primitives import primitives as operations_alone
from mileage.profiling.probes import Allowance, ProbeCost, Trace, replay, turn_iterations
from mileage.profiling.replays import RolloutParts, Scaling, UpdateStages
from mileage.profiling.roofline import MachineLimits, best, measure_limits
from mileage.profiling.run import THE_ENV, EndToEnd
from mileage.profiling.what_if import WhatIf, what_ifs
from mileage.system import usable_cores
from mileage.training.agent import Agent
from mileage.types import Team

_TRACE_SECONDS = 1.5
_PART_SECONDS = 0.12
# Stages are differences of shortest times, which take longer to find.
_STAGE_SECONDS = 0.25
_SCALING_SECONDS = 0.12
# Rounds that a comparison takes whatever they cost, and about how many parts a call has that are timed with it.
_LEAST_ROUNDS, _PARTS = 7, 8
# Where there was no time to replay anything.
NONE = Trace((), 1, ProbeCost(0.0, 0.0, 0.0))
NO_LIMITS = MachineLimits(1, 0.0, 0.0, 0.0, 0.0, 0.0)


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

    limits: MachineLimits
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
    budget_seconds: float = 0.0
    """What it was allowed to take."""
    skipped: tuple[str, ...] = ()
    """What there was no time for, or what an interrupt cut off."""
    interrupted: bool = False
    load: Load | None = None
    """Who else used the machine meanwhile."""
    lines: tuple[HotLine, ...] = ()
    """Lines of loops in a user's network, the one that takes longest first."""

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
    scaling: Scaling = field(default_factory=dict)
    torch_operations: Mapping[str, float] = field(default_factory=dict)


def calibrate(agent: Agent, described: Description, run: EndToEnd, allowance: Allowance) -> Calibration:
    """Replay the parts of `run` on the agent that it left behind, as far as `allowance` goes."""
    before, learner = counters(), agent.learner
    iteration = _iteration_seconds(agent, run)
    each = {phase: _entry_seconds(run, phase) for phase in run.phases}
    limits = allowance.stage("limits of the machine", 0.0, lambda: measure_limits(agent.threads), NO_LIMITS)
    lines: tuple[HotLine, ...] = ()
    if described.methods:
        lines = allowance.stage(
            "lines of the network", iteration, lambda: hot_lines(learner, allowance.left / 6), lines, always=True
        )
    trace = allowance.stage(
        "layers", turn_iterations() * iteration, lambda: _trace(learner, described, allowance), NONE, always=True
    )
    costs = phase_costs(trace)
    with single_threaded_blas():
        inside = allowance.stage(
            "threads, parts and stages", sum(each.get(phase, 0.0) for phase in described.calls),
            lambda: _native(described, costs, _thread_counts(agent), allowance, each), _Inside(),
        )  # fmt: skip
        if described.methods:
            inside = allowance.stage(
                "operations of torch", 18 * iteration, lambda: _torch(learner, described, costs), inside
            )
    found = what_ifs(agent, described, inside.scaling, allowance, each)
    nothing: dict[str, float] = {}
    alone = allowance.stage(
        "single operations", 0.3, lambda: operations_alone(agent, described, max(0.2, allowance.effort)), nothing
    )
    return Calibration(
        limits, costs, layer_table(costs, inside.splits, *_measured(run, costs), trace.plain_seconds),
        rooflines(described.work, run, limits), inside.rollout_parts, inside.update_stages, _best_of(inside.scaling),
        tuple(found), described.buffers, inside.torch_operations, primitives=alone,
        warm_load_seconds=_reading_seconds(run.compiled), trace=trace, seconds=allowance.spent,
        budget_seconds=allowance.seconds, skipped=tuple(allowance.skipped), interrupted=allowance.interrupted,
        load=between(before, counters()), lines=lines,
    )  # fmt: skip


def _iteration_seconds(agent: Agent, run: EndToEnd) -> float:
    """What an iteration took in the run, evaluations, checkpoints and callbacks not counted."""
    beside = (Phase.INIT, Phase.COMPILE, Phase.EVAL, Phase.CHECKPOINT, Phase.LOG)
    training = run.wall_seconds - sum(run.phases.get(phase, 0.0) for phase in beside)
    return max(0.0, training) / max(1, run.env_steps // max(1, agent.learner.steps_per_iteration))


def _entry_seconds(run: EndToEnd, phase: str) -> float:
    """Seconds per entry; starting episodes anew is part of a step when it is replayed."""
    if phase != Phase.ENV_STEP:
        return run.steady_seconds(phase)
    both = run.phases.get(Phase.ENV_STEP, 0.0) + run.phases.get(Phase.ENV_RESET, 0.0)
    return both / max(1, run.entries.get(phase, 0))


def _trace(learner: Learner, described: Description, allowance: Allowance) -> Trace:
    """Iterations with and without probes for a third of what is left."""
    kinds = 4
    seconds = min(allowance.effort * _TRACE_SECONDS, allowance.left / 3 / kinds)
    return replay(learner, described, seconds=seconds)


def _best_of(rounds: Scaling) -> dict[int, dict[str, float]]:
    """Shortest times by number of threads and phase."""
    return {count: {phase: min(taken) for phase, taken in phases.items()} for count, phases in rounds.items()}


def _thread_counts(agent: Agent) -> tuple[int, ...]:
    return tuple(sorted({1, usable_cores(), agent.threads}))


def _native(
    described: Description, costs: tuple[PhaseCost, ...], thread_counts: tuple[int, ...], allowance: Allowance,
    each: Mapping[str, float],
) -> _Inside:  # fmt: skip
    """The native calls in parts, in stages, on other numbers of threads, and shared out between BLAS and the rest."""
    parts, stages, team, effort = None, None, described.team, max(0.2, allowance.effort)
    splits: dict[str, Mapping[str, float]] = {}
    if team is None:
        return _Inside()
    scaling: Scaling = {}
    with described.paused():
        shared = sum(each.get(phase, 0.0) for phase in described.calls)
        # What to do about a bottleneck comes before where exactly it is.
        if (_LEAST_ROUNDS + 1) * len(thread_counts) * shared < allowance.left / 2:
            scaling = replays.scaling(described, thread_counts, effort * _SCALING_SECONDS)
        for phase, call in described.calls.items():
            work = described.work[phase]
            if _LEAST_ROUNDS * (_PARTS + 1) * each.get(phase, 0.0) > allowance.left / 2:
                allowance.skipped.append(f"parts of {phase}")
                continue
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
    return _Inside(parts, stages, splits, scaling)


def _share_of_products(work: Work, team: Team, seconds: float) -> dict[str, float]:
    """Layers of a call that takes `seconds`."""
    alone = best({"": replays.products_of(work, team)}, seconds=0.02)[""]
    share = min(1.0, max(0.0, alone - measure_limits(1).crossing_seconds) / seconds)
    return {Layer.BLAS: share, Layer.NATIVE: 1.0 - share}


def _torch(learner: Learner, described: Description, costs: tuple[PhaseCost, ...]) -> _Inside:
    """Stages of the update, operations per phase, and torch's share of what would otherwise be Python."""

    phases = replays.torch_phases(learner)
    whole, stages = replays.torch_update_stages(learner, described.methods)
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
        within = cost.phase == Phase.OTHER
        sums[cost.part] += cost.seconds if within else _entry_seconds(run, cost.phase) * cost.entries
    return sums[ROLLOUT], sums[UPDATE]


def rooflines(work: Mapping[str, Work], run: EndToEnd, limits: MachineLimits) -> tuple[Roofline, ...]:
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
    precompile.read(name for name in names if name != THE_ENV)
    return time.perf_counter() - start if names else None
