"""What an iteration costs: by phase, by call, and by layer of software, for the rollout and for the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mileage.description import Layer
from mileage.measure import Phase
from mileage.profiling.probes import Trace
from mileage.profiling.traces import Span

ROLLOUT, UPDATE = "rollout", "update"
_PART_OF_PHASE = {
    Phase.ROLLOUT: ROLLOUT,
    Phase.INFERENCE: ROLLOUT,
    Phase.ENV_STEP: ROLLOUT,
    Phase.ENV_RESET: ROLLOUT,
    Phase.STORE: ROLLOUT,
    Phase.ADVANTAGE: ROLLOUT,
    Phase.LEARN: UPDATE,
    Phase.TRANSFER: UPDATE,
}


@dataclass(frozen=True)
class CallCount:
    """One kind of boundary crossing."""

    part: str
    """`rollout` or `update`."""
    phase: str
    label: str
    layer: str
    per_iteration: float
    seconds_each: float
    """Net of the probe."""

    @property
    def seconds(self) -> float:
        """Seconds per iteration."""
        return self.per_iteration * self.seconds_each


@dataclass(frozen=True)
class PhaseCost:
    """One phase of the replayed iterations, net of probes: seconds per iteration."""

    phase: str
    part: str
    entries: float
    seconds: float
    python: float
    waiting: float
    calls: tuple[CallCount, ...] = field(default_factory=tuple)


def part_of(phase: str) -> str:
    """Whether a phase belongs to the rollout or to the update."""
    try:
        return _PART_OF_PHASE.get(Phase(phase), ROLLOUT)
    except ValueError:
        return ROLLOUT


def phase_costs(trace: Trace) -> tuple[PhaseCost, ...]:
    """Split a trace by phase; what lies between the phases of an iteration is phase `other`, all of it Python."""
    watched = {name: sums.off_cpu for name, sums in _sums(trace.watched).items()}
    return tuple(_phase_cost(name, sums, trace, watched.get(name, 0.0)) for name, sums in _sums(trace.spans).items())


def _sums(spans: Sequence[Span]) -> dict[str, _Sums]:
    """Add up spans by phase, each without the phases within it."""
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    own: dict[str, _Sums] = {}
    stack: list[Span] = []
    for span in ordered:
        while stack and stack[-1].end <= span.start:
            stack.pop()
        if span.kind == "call":
            phase = next((each.name for each in reversed(stack) if each.kind == "phase"), str(Phase.OTHER))
            own.setdefault(phase, _Sums()).add_call(span)
            continue
        name = span.name if span.kind == "phase" else str(Phase.OTHER)
        sums = own.setdefault(name, _Sums())
        sums.add(span)
        if stack:
            parent = stack[-1].name if stack[-1].kind == "phase" else str(Phase.OTHER)
            own.setdefault(parent, _Sums()).nest(span)
        stack.append(span)
    return own


@dataclass
class _Sums:
    """What is added up for one phase, in ns."""

    wall: int = 0
    cpu: int = 0
    entries: int = 0
    nested: int = 0
    calls: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, span: Span) -> None:
        self.wall += span.end - span.start
        self.cpu += span.cpu if span.kind == "phase" else span.end - span.start
        self.entries += 1

    def nest(self, span: Span) -> None:
        self.wall -= span.end - span.start
        self.cpu -= span.cpu
        self.nested += 1

    @property
    def off_cpu(self) -> float:
        """Share of the phase in which its thread was off the CPU."""
        return max(0.0, 1.0 - self.cpu / self.wall) if self.wall > 0 else 0.0

    def add_call(self, span: Span) -> None:
        self.calls.setdefault((span.name, span.layer), []).append(span.end - span.start)


def _phase_cost(name: str, sums: _Sums, trace: Trace, off_cpu: float) -> PhaseCost:
    n, cost = trace.iterations, trace.cost
    calls = []
    inside = probing = 0.0
    for (label, layer), durations in sums.calls.items():
        each = max(0.0, sum(durations) / len(durations) / 1e9 - cost.inside)
        calls.append(CallCount(part_of(name), name, label, layer, len(durations) / n, each))
        inside += len(durations) / n * each
        probing += len(durations) / n * (cost.inside + cost.outside)
    # A nested phase's tools run partly within its parent, and partly within itself.
    tools = sums.nested / n * cost.phase + (0.0 if name == Phase.OTHER else sums.entries / n * cost.phase_inside)
    seconds = max(inside, sums.wall / n / 1e9 - probing - tools)
    waiting = 0.0 if name == Phase.OTHER else off_cpu * seconds
    return PhaseCost(name, part_of(name), sums.entries / n, seconds, max(0.0, seconds - inside), waiting, tuple(calls))


@dataclass(frozen=True)
class LayerTable:
    """Seconds per iteration by layer, for the rollout and for the update."""

    rollout: Mapping[str, float]
    update: Mapping[str, float]
    measured_rollout: float
    """The same in the profiled run, by its phase clock."""
    measured_update: float
    plain: float = 0.0
    """The same iterations without probes, in turn with those that had them."""

    @property
    def total(self) -> float:
        """Sum of all layers, seconds per iteration."""
        return sum(self.rollout.values()) + sum(self.update.values())

    @property
    def difference(self) -> float:
        """By how much the sum of the layers differs from iterations without probes, as a share of those."""
        return self.total / self.plain - 1.0 if self.plain else 0.0


def layer_table(
    costs: tuple[PhaseCost, ...],
    splits: Mapping[str, Mapping[str, float]],
    measured_rollout: float,
    measured_update: float,
    plain: float = 0.0,
) -> LayerTable:
    """Add up phases by layer.

    Args:
        costs: of all phases.
        splits: for a call's label, the shares of layers within it, adding up to 1 (a fused kernel is native code,
            BLAS and environments); and under `phase:NAME` the shares of torch and BLAS in what would be Python.
        measured_rollout, measured_update: seconds per iteration in the run.
        plain: seconds of an iteration without probes.
    """
    parts: dict[str, dict[str, float]] = {ROLLOUT: {}, UPDATE: {}}
    for cost in costs:
        layers: dict[str, float] = dict.fromkeys(Layer, 0.0)
        for call in cost.calls:
            for layer, share in splits.get(call.label, {call.layer: 1.0}).items():
                layers[layer] += share * call.seconds
        within = splits.get(f"phase:{cost.phase}", {})
        for layer, share in within.items():
            layers[layer] += share * cost.python
        layers[Layer.PYTHON] += (1.0 - sum(within.values())) * cost.python
        # Off the CPU: nobody knows in which layer, so it is taken from all alike.
        running = 1.0 - cost.waiting / cost.seconds if cost.seconds > 0.0 else 1.0
        layers = {layer: running * value for layer, value in layers.items()} | {Layer.WAITING: cost.waiting}
        into = parts[cost.part if cost.phase != Phase.OTHER else ROLLOUT]
        for layer, seconds in layers.items():
            into[layer] = into.get(layer, 0.0) + seconds
    return LayerTable(parts[ROLLOUT], parts[UPDATE], measured_rollout, measured_update, plain)


def all_calls(costs: tuple[PhaseCost, ...]) -> tuple[CallCount, ...]:
    """All kinds of crossings, rollout first."""
    found = [call for cost in costs for call in cost.calls]
    return tuple(sorted(found, key=lambda call: (call.part != ROLLOUT, -call.seconds)))
