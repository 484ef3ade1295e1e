"""A mode of building as the arm of an experiment, in a copy of the tree or from a warm snapshot.

Nothing here reads a clock or starts a process: what is built does, through its runner of jobs.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from mileage.coderl.projects.fingerprint import ArmSetup
from mileage.coderl.projects.systems import Command, Project
from mileage.coderl.projects.workarea import clean_outputs, copy_tree, remove_tree, walk_files
from mileage.coderl.sandbox.executor import (
    BuildJob,
    BuildResult,
    Change,
    JobRunner,
    Limits,
    StepOutcome,
    first_diagnostic,
)
from mileage.coderl.sandbox.snapshots import Snapshot
from mileage.errors import BuildError, UsageError
from mileage.measure import Arm, Cause, Outcome, Sample, Turn, run, schedule


# --- The measurement: what is built, as arms of an experiment that take turns in random order ---
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

    def run(self, kind: SampleKind, number: int) -> BuildResult:
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


def outcome_of(result: BuildResult) -> Outcome:
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


@dataclass
class BuildArm:
    """Builds from clean, and checks after an edit, in a copy of the project that is the arm's own."""

    name: str
    project: Project
    setup: ArmSetup
    pristine: Path
    tree: Path
    executor: JobRunner
    limits: Limits
    fill_runs: int = 0

    def make_tree(self) -> None:
        """Copy the project, with the files that the setup replaces."""
        if self.tree.exists():
            remove_tree(self.tree)
        copy_tree(self.pristine, self.tree, history=True)
        for target, source in self.setup.files.items():
            shutil.copyfile(self.pristine / source, self.tree / target)

    def prepare(self, kind: SampleKind) -> None:
        """Fill what the mode keeps (before cold builds), or check once (before incremental checks)."""
        if kind is SampleKind.COLD:
            for _ in range(self.fill_runs):
                self.run(SampleKind.COLD, 0)
        else:
            self._job(self.setup.check)

    def run(self, kind: SampleKind, number: int) -> BuildResult:
        """Make one cold build, or one edit and check."""
        if kind is SampleKind.COLD:
            self._clean()
            return self._job(self.setup.build)
        if self.project.edit_command:
            return self._edit_by_command(self.project.edit_command, number)
        if self.project.edit is None:
            raise UsageError("the project names no file to edit: add edit_file to its [rl-bench] table")
        file = self.tree / self.project.edit.path
        before = file.read_bytes()
        file.write_bytes(self.project.edit.edited(before, number))
        try:
            return self._job(self.setup.check)
        finally:
            file.write_bytes(before)

    def _clean(self) -> None:
        # A new copy each time: nobody knows everything that a build leaves in its tree.
        self.make_tree()
        for command in self.setup.commands(self.project.clean):
            self._job((command,))
        clean_outputs(self.tree, self.project.outputs)

    def _edit_by_command(self, command: Command, number: int) -> BuildResult:
        edited = self._job((command,), {"MILEAGE_EDIT_NUMBER": str(number)})
        if not edited.succeeded:
            raise BuildError(f"the edit command failed: {first_diagnostic(edited.steps[-1].output)}")
        try:
            return self._job(self.setup.check)
        finally:
            self._restore_sources()

    def _restore_sources(self) -> None:
        for name, _ in walk_files(self.pristine):
            original, copy = self.pristine / name, self.tree / name
            if original.is_file() and not original.is_symlink():
                data = original.read_bytes()
                if not copy.is_file() or copy.read_bytes() != data:
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(data)

    def _job(self, steps: tuple[Command, ...], extra: dict[str, str] | None = None) -> BuildResult:
        env = self.setup.environment(str(self.tree)) | (extra or {})
        job = BuildJob(self.setup.commands(steps), str(self.tree), env, limits=self.limits, label=self.name)
        return self.executor.run(job)


@dataclass
class WarmArm:
    """Restores a built tree, edits one line, and builds or checks that; the time includes the restoring."""

    name: str
    project: Project
    setup: ArmSetup
    snapshot: Snapshot
    pristine: Path
    limits: Limits

    def prepare(self, kind: SampleKind) -> None:
        """Build the snapshot once."""
        if kind is not SampleKind.COLD:
            return
        steps = self.setup.commands(self.setup.build + self.setup.check)
        warm = self.snapshot.warm(steps, self.limits)
        if not warm.succeeded:
            raise BuildError(
                f"the warm snapshot of {self.project.name} cannot be built: {first_diagnostic(warm.steps[-1].output)}"
            )

    def run(self, kind: SampleKind, number: int) -> BuildResult:
        """Make one build or check of an edited tree; restoring is part of the first step's time."""
        edit = self.project.edit
        if edit is None:
            raise UsageError("mode 'warm-snapshot' edits a file: add edit_file to the [rl-bench] table")
        change = Change(edit.path, edit.edited((self.pristine / edit.path).read_bytes(), number))
        steps = self.setup.build if kind is SampleKind.COLD else self.setup.check
        result = self.snapshot.run(self.setup.commands(steps), (change,), self.limits, self.name)
        first, *rest = result.steps
        first = replace(first, wall_seconds=first.wall_seconds + result.overhead_seconds)
        return BuildResult((first, *rest))
