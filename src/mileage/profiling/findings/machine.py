"""Findings about what surrounds a run: other users, memory, slower phases; and evidence in words."""

from __future__ import annotations

import dataclasses

from mileage.measure.machine import BUSY_SHARE, Load
from mileage.profiling import drift
from mileage.profiling.calibration import Calibration
from mileage.profiling.model import WORTH_TRYING, Bottleneck, Finding
from mileage.profiling.run import EndToEnd
from mileage.profiling.what_if import WhatIf

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


def memory_growth(run: EndToEnd, grown: drift.MemoryGrowth | None) -> Finding | None:
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
    found = next(iter(drift.drifts(run.moments)), None)
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


# --- What findings are made of: shares of a run in words, measured changes, when they are worth a word ---
# Below these shares of the wall-clock a phase is not worth a finding.
LEAST_SHARE = 0.05
LEAST_TRAINING_SHARE = 0.10
# A change that leaves more than this of a phase is not worth one.
_LEAST_RATIO_GAIN = 0.10


def of_training(run: EndToEnd, share: float) -> float:
    """A share of the wall-clock as a share of what is left of it without start-up and compilation."""
    rest = 1.0 - run.share("init") - run.share("compile")
    return share / rest if rest > 0.0 else 0.0


def percent(share: float) -> str:
    """A share of 1 in whole per cent."""
    return f"{100.0 * share:.0f} %"


def finding(
    share: float, bottleneck: Bottleneck, said: str, gain: float, suggestion: str, *, least: float = LEAST_SHARE,
    phase: str | None = None, at_most: bool = False,
) -> Finding | None:  # fmt: skip
    """A finding whose evidence is its share and what is `said` of it; None below the `least` share."""
    if share < least:
        return None
    evidence = f"{percent(share)} {said}"
    return Finding(bottleneck, share, evidence, gain, suggestion, phase=phase, at_most=at_most)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A change with what it would save."""

    change: WhatIf
    gain: float
    interval: tuple[float, float]


def of_change(bottleneck: Bottleneck, share: float, evidence: str, best: Measured, phase: str | None = None) -> Finding:
    """The finding that a measured change would help."""
    change = best.change
    return Finding(bottleneck, share, evidence, best.gain, change.suggestion, change.fix, best.interval, phase=phase)


def best_change(run: EndToEnd, found: Calibration | None, *fixes: str) -> Measured | None:
    """The measured change with the largest gain among `fixes`, if its interval is beyond the noise."""
    changes = [change for change in (found.what_ifs if found else ()) if change.fix in fixes]
    shares = {phase: run.share(phase) for phase in run.phases}
    worth = []
    for change in changes:
        gain, interval = change.gain(shares), change.gain_interval(shares)
        if interval[0] > 0.0 and min(change.ratios.values(), default=1.0) < 1.0 - _LEAST_RATIO_GAIN:
            worth.append(Measured(change, gain, interval))
    return max(worth, key=lambda each: each.gain, default=None)
