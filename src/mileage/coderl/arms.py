"""The two kinds of arm: one that builds in a copy of the tree, one that starts each time from a warm snapshot."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from mileage._errors import BuildError, UsageError
from mileage.coderl.build.diagnostics import first_diagnostic
from mileage.coderl.build.executor import Change, Job, JobResult, JobRunner, Limits
from mileage.coderl.build.snapshots import Snapshot
from mileage.coderl.measure import SampleKind
from mileage.coderl.project.fingerprint import ArmSetup
from mileage.coderl.project.model import Command, Project
from mileage.coderl.project.workarea import clean_outputs, copy_tree, remove_tree, walk_files


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

    def run(self, kind: SampleKind, number: int) -> JobResult:
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

    def _edit_by_command(self, command: Command, number: int) -> JobResult:
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

    def _job(self, steps: tuple[Command, ...], extra: dict[str, str] | None = None) -> JobResult:
        env = self.setup.environment(str(self.tree)) | (extra or {})
        job = Job(self.setup.commands(steps), str(self.tree), env, limits=self.limits, label=self.name)
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

    def run(self, kind: SampleKind, number: int) -> JobResult:
        """Make one build or check of an edited tree; restoring is part of the first step's time."""
        edit = self.project.edit
        if edit is None:
            raise UsageError("mode 'warm-snapshot' edits a file: add edit_file to the [rl-bench] table")
        change = Change(edit.path, edit.edited((self.pristine / edit.path).read_bytes(), number))
        steps = self.setup.build if kind is SampleKind.COLD else self.setup.check
        result = self.snapshot.run(self.setup.commands(steps), (change,), self.limits, self.name)
        first, *rest = result.steps
        first = replace(first, wall_seconds=first.wall_seconds + result.overhead_seconds)
        return JobResult((first, *rest))
