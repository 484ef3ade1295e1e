"""The measurement: what is built, as arms of an experiment that take turns in random order.

Nothing here reads a clock or starts a process: what is built does, through its runner of jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mileage.coderl.build.diagnostics import first_diagnostic
from mileage.coderl.build.executor import JobResult, StepOutcome
from mileage.experiments import Arm, Cause, Outcome, Sample, Turn, run, schedule


class SampleKind(StrEnum):
    """What was timed."""

    COLD = "cold"
    INCREMENTAL = "incremental"


@dataclass(frozen=True)
class TimedBuild(Sample):
    """One timed build or check."""

    exit_code: int = 0
    peak_rss_bytes: int = 0


class Building(Protocol):
    """Something that can be built again and again."""

    @property
    def name(self) -> str:
        """The name of its arm in the report."""
        ...

    def prepare(self, kind: SampleKind) -> None:
        """Bring it to where its first sample of `kind` may start; not timed."""
        ...

    def run(self, kind: SampleKind, number: int) -> JobResult:
        """Make one build or check; `number` is new each time. The result's steps hold the timing."""
        ...


class BuildExecutor:
    """Builds what the arms are about."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def prepare(self, arm: Arm[Building], kind: str) -> None:
        """Fill what a mode keeps, or check once."""
        arm.subject.prepare(SampleKind(kind))

    def attempt(self, arm: Arm[Building], turn: Turn) -> TimedBuild:
        """Make one build or check."""
        # The number is unique over the whole run, so that no two edits are ever alike.
        result = arm.subject.run(SampleKind(turn.kind), turn.order + 1)
        outcome, last = outcome_of(result), result.steps[-1]
        return TimedBuild(
            arm=arm.name,
            outcome=outcome,
            exit_code=last.exit_code,
            wall_seconds=result.wall_seconds,
            cpu_seconds=sum(step.cpu_seconds for step in result.steps),
            peak_rss_bytes=max(step.peak_rss_bytes for step in result.steps),
            diagnostic="" if outcome is Outcome.OK else first_diagnostic(last.output),
        )


def outcome_of(result: JobResult) -> Outcome:
    """How a job ended; a timeout is not a failure of the code."""
    if result.succeeded:
        return Outcome.OK
    last = result.steps[-1].outcome
    if last is StepOutcome.TIMEOUT:
        return Outcome.TIMEOUT
    return Outcome.FAILED if last is StepOutcome.EXITED else Outcome.KILLED


def measure(
    buildings: Sequence[Building],
    runs: int,
    *,
    kinds: Sequence[SampleKind] = (SampleKind.COLD, SampleKind.INCREMENTAL),
    seed: int = 0,
    done: Sequence[TimedBuild] = (),
    on_sample: Callable[[TimedBuild, int, int], None] | None = None,
) -> tuple[TimedBuild, ...]:
    """Every sample of all arms; `done` are not measured again, `on_sample` gets each new one with how many are done."""
    arms = [Arm(building.name, building) for building in buildings]
    turns = schedule([arm.name for arm in arms], runs, kinds, seed)
    return run(arms, BuildExecutor(), turns, done=done, on_sample=on_sample)


REMEDIES = {
    Cause.FEW_RUNS: "use --runs 3 or more",
    Cause.SLOW_START: "use one more --runs",
    Cause.OUTLIERS: "close other programs or raise --runs",
    Cause.DRIFT: "let the machine cool down, check for a filling disk or cache, and raise --runs",
    Cause.WIDE_SPREAD: "raise --runs, or lower --jobs on a shared machine",
    Cause.FAILURES: "their times are left out, the pass rate counts them",
    Cause.TIMEOUTS: "raise --timeout",
    Cause.NOT_COLD: "no KPI is made of them: declare clean or outputs in rl-bench.toml, or put the project into git "
    "(where the check does more than the build, give check = the build command; on a busy machine raise --runs)",
}
"""What to try, by the flags of rl-bench."""
