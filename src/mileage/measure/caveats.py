"""Why a number is to be read with care: the cause, the evidence, and the next thing to try."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from mileage.measure.experiment import Outcome, Sample
from mileage.measure.intervals import FEWEST_RUNS
from mileage.measure.verdict import outliers, spread, trend

# pyperf's rule: a spread above a tenth of the value makes a benchmark unstable.
SPREAD_LIMIT = 0.10
DRIFT_P = 0.01
# A first run this much slower than the slowest of the others has met something cold that the others had not.
SLOW_START_RATIO = 1.25


class Cause(StrEnum):
    """What may be wrong with a set of samples, with the machine they were taken on, or with what is made of them."""

    sentence: str
    """What it means."""
    remedy: str
    """The next thing to try, unless a command knows a flag for it."""

    def __new__(cls, name: str, sentence: str, remedy: str) -> Self:
        """A name with its two texts."""
        cause = str.__new__(cls, name)
        cause._value_, cause.sentence, cause.remedy = name, sentence, remedy
        return cause

    FEW_ROUNDS = "few rounds", "fewer than five rounds", "run with more"
    FEW_RUNS = "few runs", "too few runs for an interval", "measure at least three"
    SLOW_START = ("slow start", "the first run was much slower than the others (cold page cache?)",
                  "add a warm-up run, or report the first run apart as cold")  # fmt: skip
    OUTLIERS = ("outliers", "some runs are far from the others (a busy machine?)",
                "quit other programs or pin the process, and repeat with more runs")  # fmt: skip
    DRIFT = ("drift", "the runs get slower or faster with time",
             "let the machine cool down, check for a filling disk or cache, and alternate the arms")  # fmt: skip
    WIDE_SPREAD = "wide spread", "the runs differ by more than 10 %", "measure longer runs, or more of them"
    NOISY = "noisy", "samples vary by more than a quarter", "run on a quieter machine, or with more rounds"
    FAILURES = "failures", "some runs failed", "look at what the first of them said"
    TIMEOUTS = "timeouts", "some runs hit the timeout", "give them more time"
    BUSY = "busy", "other work uses the cores", "stop it, or wait"
    FREQUENCY = ("frequency", "the CPU changed its frequency",
                 "fix it (performance governor, no turbo), or let the machine cool down")  # fmt: skip
    GOVERNOR = "governor", "the CPU saves power", "choose the performance governor"
    STOLEN = "stolen time", "the hypervisor gave the cores to others", "repeat when the host is quiet"
    LOOP = "uneven speed", "the same loop did not take the same time at the end", "repeat on a quieter machine"
    STILL_RUNNING = "still running", "some runs have not ended and are not counted", "compare again when they have"
    UNEVALUATED = "never evaluated", "some runs were never evaluated and have no return", "evaluate during training"
    FEWER_STEPS = "fewer steps", "it learns in fewer steps", "call it a better algorithm, not a faster system"
    RESUMED = "resumed", "some runs go on from others", "train from scratch to compare what training costs"
    UNKNOWN_PARENT = "unknown parent", "what a resumed run goes on from is not in the ledger", "import that run too"
    UNCLOCKED = "unclocked", "work before the clock started is not counted", "start the run before anything is trained"
    CLAIMED = "claimed", "some runs only claim to have reached the target", "import them with their episodes"
    STOPPED_SHORT = "stopped short", "some runs ended before they could reach this target", "train them further"
    ON_TRUST = "on trust", "not everything about the exam is on record", "state env_version in the panel"
    NOT_COLD = ("not cold", "NOT COLD: builds from clean took far less time than the check of one edited line, so they "
                "found work done", "keep what they found out of the measurement")  # fmt: skip
    NO_PRICE = "no price", "not every run has a price", "record runs with --price to compare dollars"


@dataclass(frozen=True)
class Caveat:
    """One reason to read a number with care."""

    cause: Cause
    evidence: str
    arm: str = ""
    """Whose samples it is about; nobody's where it is about the machine."""
    kind: str = ""
    """Which samples of the arm, where there are several kinds."""
    remedy: str = ""
    """What to try, in the words of the command that measured; the cause's own unless given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "remedy", self.remedy or self.cause.remedy)

    def __str__(self) -> str:
        return f"{self.cause.sentence}: {self.remedy}"


def instabilities(seconds: Sequence[float], arm: str = "", kind: str = "") -> tuple[Caveat, ...]:
    """What the order and scatter of timings say against them, in the order they were measured."""
    outside = outliers(seconds)
    median = statistics.median(seconds)
    found: list[tuple[Cause, str]] = []
    late = len(seconds) >= FEWEST_RUNS and seconds[0] > SLOW_START_RATIO * max(seconds[1:])
    if late or (outside[0] and seconds[0] > median):
        found.append((Cause.SLOW_START, f"the first run took {seconds[0]:.4g} s, the median is {median:.4g} s"))
    rest = int(outside[1:].sum())
    if rest:
        found.append((Cause.OUTLIERS, f"{rest} of {len(seconds)} runs are outliers"))
    # A slow first run alone is no trend.
    direction, p = trend(seconds[1:] if outside[0] else seconds)
    if p < DRIFT_P:
        found.append((Cause.DRIFT, f"runs get {'slower' if direction > 0 else 'faster'} (p = {p:.2g})"))
    wide = spread([value for value, out in zip(seconds, outside, strict=True) if not out], median)
    if wide > SPREAD_LIMIT:
        found.append((Cause.WIDE_SPREAD, f"the standard deviation is {wide:.0%} of the median"))
    return tuple(Caveat(cause, evidence, arm, kind) for cause, evidence in found)


def find_caveats(samples: Sequence[Sample], remedies: Mapping[Cause, str] | None = None) -> tuple[Caveat, ...]:
    """Everything that is to be said about samples, arm by arm and kind by kind.

    `remedies` are what to try in the words of the command that measured, such as the flag that helps.
    """
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.arm, sample.kind), []).append(sample)
    found = [caveat for (arm, kind), group in groups.items() for caveat in _of_group(group, arm, kind)]
    return tuple(replace(each, remedy=(remedies or {}).get(each.cause, "")) for each in found)


def _of_group(group: Sequence[Sample], arm: str, kind: str) -> list[Caveat]:
    found: list[Caveat] = []
    failed = [sample for sample in group if sample.outcome in (Outcome.FAILED, Outcome.KILLED)]
    late = sum(sample.outcome is Outcome.TIMEOUT for sample in group)
    if failed:
        said = f": {failed[0].diagnostic}" if failed[0].diagnostic else ""
        found.append(Caveat(Cause.FAILURES, f"{len(failed)} of {len(group)}{said}", arm, kind))
    if late:
        found.append(Caveat(Cause.TIMEOUTS, f"{late} of {len(group)}", arm, kind))
    times = [sample.wall_seconds for sample in group if sample.outcome is Outcome.OK]
    if len(times) < FEWEST_RUNS:
        return [*found, Caveat(Cause.FEW_RUNS, f"{len(times)} good runs", arm, kind)]
    return [*found, *instabilities(times, arm, kind)]
