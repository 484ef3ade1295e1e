"""The measurement: arms taken in random order, round after round, every raw sample kept.

Nothing here reads a clock or starts a process: an arm does, through its executor.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from mileage.coderl.build.diagnostics import first_diagnostic
from mileage.coderl.build.executor import JobResult, Outcome


class SampleKind(StrEnum):
    """What was timed."""

    COLD = "cold"
    INCREMENTAL = "incremental"


class BuildOutcome(StrEnum):
    """How a timed build ended; a timeout is not a failure of the code."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    KILLED = "killed"


@dataclass(frozen=True)
class Sample:
    """One timed build or check."""

    arm: str
    kind: SampleKind
    round: int
    order: int
    outcome: BuildOutcome
    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    diagnostic: str = ""


class Arm(Protocol):
    """Something that can be built again and again."""

    @property
    def name(self) -> str:
        """The name of the arm in the report."""
        ...

    def prepare(self, kind: SampleKind) -> None:
        """Bring the arm to where its first sample of `kind` may start; not timed."""
        ...

    def run(self, kind: SampleKind, number: int) -> JobResult:
        """Make one build or check; `number` is new each time. The result's steps hold the timing."""
        ...


def outcome_of(result: JobResult) -> BuildOutcome:
    """Return how a job ended."""
    if result.succeeded:
        return BuildOutcome.OK
    last = result.steps[-1].outcome
    if last is Outcome.TIMEOUT:
        return BuildOutcome.TIMEOUT
    return BuildOutcome.FAILED if last is Outcome.EXITED else BuildOutcome.KILLED


def schedule(
    arms: Sequence[str], runs: int, kinds: Iterable[SampleKind], seed: int
) -> list[tuple[str, SampleKind, int]]:
    """Return (arm, kind, round) in the order of measurement: each round visits every arm once, in random order."""
    rng = np.random.default_rng([seed, 0x6275696C64])
    return [
        (arms[index], kind, number) for kind in kinds for number in range(runs) for index in rng.permutation(len(arms))
    ]


def measure(
    arms: Sequence[Arm],
    runs: int,
    *,
    kinds: Sequence[SampleKind] = (SampleKind.COLD, SampleKind.INCREMENTAL),
    seed: int = 0,
    on_sample: Callable[[Sample, int, int], None] = lambda sample, done, total: None,
) -> tuple[Sample, ...]:
    """Measure all arms and return every sample; `on_sample` gets each one with how many are done, of how many."""
    by_name = {arm.name: arm for arm in arms}
    plan = schedule([arm.name for arm in arms], runs, kinds, seed)
    samples: list[Sample] = []
    prepared: set[SampleKind] = set()
    for order, (name, kind, number) in enumerate(plan):
        if kind not in prepared:
            prepared.add(kind)
            for arm in arms:
                arm.prepare(kind)
        # The number is unique over the whole run, so that no two edits are ever alike.
        result = by_name[name].run(kind, order + 1)
        samples.append(_sample(name, kind, number, order, result))
        on_sample(samples[-1], order + 1, len(plan))
    return tuple(samples)


def _sample(name: str, kind: SampleKind, number: int, order: int, result: JobResult) -> Sample:
    outcome = outcome_of(result)
    last = result.steps[-1]
    return Sample(
        arm=name,
        kind=kind,
        round=number,
        order=order,
        outcome=outcome,
        exit_code=last.exit_code,
        wall_seconds=result.wall_seconds,
        cpu_seconds=sum(step.cpu_seconds for step in result.steps),
        peak_rss_bytes=max(step.peak_rss_bytes for step in result.steps),
        diagnostic="" if outcome is BuildOutcome.OK else first_diagnostic(last.output),
    )


# Iglewicz and Hoaglin (1993): a modified z-score above 3.5 marks an outlier; 0.6745 scales the MAD to a deviation.
OUTLIER_SCORE = 3.5
MAD_SCALE = 0.6745
# A first run this much slower than the slowest of the others has met something cold that the others had not.
SLOW_FIRST_RATIO = 1.25
# Relative spread above which a median of a few runs says little.
UNSTABLE_SPREAD = 0.10
# Runs at or below which the spread itself is unknown.
FEW_RUNS = 2


class WarningKind(StrEnum):
    """What may be wrong with a set of samples, and what to try next."""

    FEW_RUNS = "too few runs for an interval: use --runs 3 or more"
    SLOW_FIRST_RUN = "the first run was much slower than the others (cold page cache?): use one more --runs"
    OUTLIERS = "some runs are far from the others (a busy machine?): close other programs or raise --runs"
    UNSTABLE = "the runs differ by more than 10 %: raise --runs, or lower --jobs on a shared machine"
    FAILED_BUILDS = "some builds failed: their times are left out, the pass rate counts them"
    TIMEOUTS = "some builds hit the timeout: raise --timeout"


@dataclass(frozen=True)
class BenchWarning:
    """A warning with the arm, the samples it is about and its evidence."""

    kind: WarningKind
    arm: str
    sample_kind: SampleKind
    evidence: str


def find_warnings(samples: Sequence[Sample]) -> tuple[BenchWarning, ...]:
    """Return what should be said about the samples, arm by arm."""
    found: list[BenchWarning] = []
    groups: dict[tuple[str, SampleKind], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.arm, sample.kind), []).append(sample)
    for (arm, kind), group in groups.items():
        found += [BenchWarning(warning, arm, kind, evidence) for warning, evidence in _judge(group)]
    return tuple(found)


def _judge(group: list[Sample]) -> list[tuple[WarningKind, str]]:
    found: list[tuple[WarningKind, str]] = []
    failed = sum(sample.outcome in (BuildOutcome.FAILED, BuildOutcome.KILLED) for sample in group)
    late = sum(sample.outcome is BuildOutcome.TIMEOUT for sample in group)
    if failed:
        first = next(
            sample.diagnostic for sample in group if sample.outcome not in (BuildOutcome.OK, BuildOutcome.TIMEOUT)
        )
        found.append((WarningKind.FAILED_BUILDS, f"{failed} of {len(group)}" + (f": {first}" if first else "")))
    if late:
        found.append((WarningKind.TIMEOUTS, f"{late} of {len(group)}"))
    times = [sample.wall_seconds for sample in group if sample.outcome is BuildOutcome.OK]
    if len(times) <= FEW_RUNS:
        return [*found, (WarningKind.FEW_RUNS, f"{len(times)} good runs")]
    if times[0] > SLOW_FIRST_RATIO * max(times[1:]):
        found.append((WarningKind.SLOW_FIRST_RUN, f"{times[0]:.3g} s, then at most {max(times[1:]):.3g} s"))
    middle = statistics.median(times)
    deviation = statistics.median(abs(time - middle) for time in times)
    far = [time for time in times if deviation and MAD_SCALE * abs(time - middle) / deviation > OUTLIER_SCORE]
    if far:
        found.append((WarningKind.OUTLIERS, ", ".join(f"{time:.3g} s" for time in far) + f", median {middle:.3g} s"))
    spread = statistics.stdev(times) / middle
    if spread > UNSTABLE_SPREAD:
        found.append((WarningKind.UNSTABLE, f"spread {spread:.0%}"))
    return found
