"""The held-out exam of a program that is recorded: the policy it leaves is examined, while the program is halted."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mileage._errors import MileageError
from mileage.exam import Examiner, Source
from mileage.outside.program import Program
from mileage.recording.recorder import RunRecorder

_SETTLED_SECONDS = 1.0
"""For which a file must not change, so that no half of one is read."""
_TIMEOUT_SECONDS = 1800.0


class PolicyFile(NamedTuple):
    """Where a program leaves its policy."""

    pattern: str
    """A path, or a pattern of paths whose newest counts."""
    loader: str | None = None
    unit_actions: bool = False
    stop_at_target: bool = True


class Exams:
    """Examines a program's policy whenever its file has changed, on the run's clock."""

    def __init__(self, file: PolicyFile, run: RunRecorder, program: Program, since: float) -> None:
        assert run.panel is not None
        self._file, self._run, self._program, self._since = file, run, program, since
        self._examiner = Examiner(run.panel)
        self._done: tuple[str, float] | None = None
        self._next = 0.0

    def tick(self, step: Callable[[], int]) -> None:
        """Look for a policy that has settled, and examine it while the program waits."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SETTLED_SECONDS
        found = self._newest()
        if found is None or found == self._done or time.time() - found[1] < _SETTLED_SECONDS:
            return
        with self._program.paused():
            self._examine(found, step())
        if self._run.reached and self._file.stop_at_target:
            self._program.enough()

    def last(self, step: Callable[[], int]) -> None:
        """Examine what the program left at its end."""
        found = self._newest()
        if found is not None and found != self._done:
            self._examine(found, step())
        elif found is None and self._done is None:
            _say(f"no policy {self._file.pattern} was left: nothing was examined")

    def close(self) -> None:
        """End the exam's process."""
        self._examiner.close()

    def _examine(self, found: tuple[str, float], step: int) -> None:
        self._done = found
        with tempfile.TemporaryDirectory() as place, self._run.phase("eval"):
            # The program may write another while this one sits its exam.
            kept = Path(place, Path(found[0]).name)
            try:
                shutil.copy2(found[0], kept)
                source = Source.parse(kept, self._file.loader)
                evaluation = self._examiner.examine(
                    source, unit_actions=self._file.unit_actions, timeout=_TIMEOUT_SECONDS
                )
            except (MileageError, OSError) as error:
                _say(f"the policy {found[0]} was not examined: {error}")
                return
        self._run.checkpoint(step, evaluation, path=found[0])

    def _newest(self) -> tuple[str, float] | None:
        found = []
        for path in glob.glob(self._file.pattern, recursive=True):
            try:
                changed = os.stat(path).st_mtime
            except OSError:
                continue
            if changed >= self._since:
                found.append((path, changed))
        return max(found, key=lambda each: each[1], default=None)


def _say(text: str) -> None:
    print(f"mileage: {text}", file=sys.stderr)
