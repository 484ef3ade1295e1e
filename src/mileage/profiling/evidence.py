"""What findings are made of: shares of a run in words, changes that were measured, and when they are worth a word."""

from __future__ import annotations

import dataclasses

from mileage.profiling.calibration import Calibration
from mileage.profiling.end_to_end import EndToEnd
from mileage.profiling.findings import Bottleneck, Finding
from mileage.profiling.what_if import WhatIf

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
