"""Findings about what surrounds a run: who else uses the machine, memory that grows, phases that get slower."""

from __future__ import annotations

from mileage.bench.machine import BUSY_SHARE
from mileage.meter.load import Load
from mileage.profiling import trends
from mileage.profiling.end_to_end import EndToEnd
from mileage.profiling.findings import WORTH_TRYING, Bottleneck, Finding

# Share of all cores that a hypervisor may take.
STOLEN_SHARE = 0.02
# Memory that lasts longer than this at the rate it grows is no emergency.
_LONG = 24 * 3600.0


def is_shared(load: Load | None) -> bool:
    """Whether others used the machine enough to colour what was measured on it."""
    if load is None:
        return False
    foreign = load.foreign is not None and load.foreign > BUSY_SHARE * load.cores
    return foreign or (load.stolen is not None and load.stolen > STOLEN_SHARE)


def shared_machine(load: Load | None) -> Finding | None:
    """Others that use the machine while the run goes on."""
    if load is None or not is_shared(load):
        return None
    evidence = f"others kept {load.foreign or 0.0:.2g} of {load.cores} cores busy"
    facts = []
    if load.waited is not None:
        facts.append(f"run-queue delay {100 * load.waited:.0f} % of its threads' time")
    if load.stolen:
        facts.append(f"{100 * load.stolen:.0f} % stolen")
    if load.pressure is not None:
        facts.append(f"CPU pressure {100 * load.pressure:.0f} %")
    evidence += f" ({', '.join(facts)})" if facts else ""
    lost = min(1.0, (load.waited or 0.0) + (load.stolen or 0.0))
    suggestion = "again when they have ended, or on cores of its own (taskset)"
    return Finding(Bottleneck.SHARED_MACHINE, lost, evidence, lost, suggestion, at_most=True)


def memory_growth(run: EndToEnd, grown: trends.MemoryGrowth | None) -> Finding | None:
    """Memory that grows as long as the run goes on."""
    if grown is None:
        return None
    left = grown.seconds_left
    when = "" if left is None else f"; the {(grown.left_mib or 0.0) / 1024:.1f} GiB left last {_lasting(left)}"
    evidence = (
        f"memory grows by {grown.mib_per_second:.3g} MiB/s ({grown.from_mib:,.0f} → {grown.to_mib:,.0f} MiB in "
        f"{grown.seconds:.3g} s){when}" + (f"; {grown.where}" if grown.where else "")
    )
    suggestion = "let go of what is kept there" if grown.where else "look at what callbacks and environments keep"
    # The run ends when the memory does: all of it is at stake.
    at_stake = 1.0 if left is not None and left < _LONG else 0.0
    return Finding(Bottleneck.MEMORY_GROWTH, at_stake, evidence, 0.0, suggestion)


def _lasting(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def drifting(run: EndToEnd) -> Finding | None:
    """The phase whose entries take longer and longer."""
    found = next(iter(trends.drifts(run.moments)), None)
    if found is None or run.wall_seconds <= 0.0:
        return None
    gain = found.extra_seconds / run.wall_seconds
    if gain < WORTH_TRYING:
        return None
    evidence = (
        f"{found.phase} takes {found.ratio:.1f} times as long at the end as at the start "
        f"({1e3 * found.first_each:.3g} → {1e3 * found.last_each:.3g} ms each), {100 * gain:.0f} % of the wall-clock"
    )
    suggestion = f"look at what grows with every entry of {found.phase}"
    return Finding(Bottleneck.DRIFT, run.share(found.phase), evidence, gain, suggestion, phase=found.phase)
