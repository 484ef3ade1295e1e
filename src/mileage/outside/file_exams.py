"""Exams of the policy that a recorded program leaves in a file, while the program is halted."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mileage._errors import MileageError
from mileage.exam import Examiner, Source
from mileage.ledger.panels import Panel
from mileage.outside.exams import Exams
from mileage.outside.program import Program
from mileage.recording.recorder import RunRecorder

_SETTLED_SECONDS = 1.0
"""For which a file must not change to be whole, where it could not be read before."""
_LOOK_EVERY_SECONDS = 0.1
_TIMEOUT_SECONDS = 1800.0


class FileExams(Exams):
    """Examines the policy that a program leaves whenever its file has changed."""

    def __init__(
        self, panel: Panel, pattern: str, loader: str | None = None, *, unit_actions: bool = False,
        stop_at_target: bool = True,
    ) -> None:  # fmt: skip
        """Name the exam and the file.

        Args:
            panel: what the policy sits.
            pattern: a path, or a pattern of paths whose newest counts; older ones than this moment are not looked at.
            loader: `module:function` that reads it, where it is one that says nothing by itself.
            unit_actions: whether numbers from -1 to 1 stand for the bounds of actions.
            stop_at_target: whether the program is ended once the target is met.
        """
        self._examiner = Examiner(panel)
        self._pattern, self._loader, self._unit = pattern, loader, unit_actions
        self._stop, self._since = stop_at_target, time.time()
        self._done: tuple[str, float] | None = None
        self._unread: tuple[str, float] | None = None
        self._next = 0.0

    def begin(self, run: RunRecorder, limit_seconds: float | None) -> None:
        """Write what is found to `run`."""
        self._run = run

    def started(self, program: Program) -> None:
        """It is halted during exams."""
        self._program = program

    def tick(self, latest: Callable[[], int]) -> None:
        """Look for a policy that nobody is writing any more, and examine it while the program waits."""
        now = time.monotonic()
        if now < self._next:
            return
        found = self._newest()
        self._next = time.monotonic() + max(_LOOK_EVERY_SECONDS, 50.0 * (time.monotonic() - now))
        if found is None or found == self._done:
            return
        settled = time.time() - found[1] >= _SETTLED_SECONDS
        if found == self._unread and not settled:
            return
        with self._program.paused():
            if settled or not self._program.has_open(found[0]):
                self._examine(found, latest(), settled)
        if self._run.reached and self._stop:
            self._program.enough()

    def last(self, latest: Callable[[], int]) -> None:
        """Examine what the program left at its end."""
        found = self._newest()
        if found is not None and found != self._done:
            self._examine(found, latest())
        elif found is None and self._done is None:
            _say(f"no policy {self._pattern} was left: nothing was examined")

    def close(self) -> None:
        """End the exam's process."""
        self._examiner.close()

    def _examine(self, found: tuple[str, float], step: int, settled: bool = True) -> None:
        self._done = found
        with tempfile.TemporaryDirectory() as place, self._run.phase("eval"):
            # The program may write another while this one sits its exam.
            kept = Path(place, Path(found[0]).name)
            try:
                shutil.copy2(found[0], kept)
                source = Source.parse(kept, self._loader)
                evaluation = self._examiner.examine(source, unit_actions=self._unit, timeout=_TIMEOUT_SECONDS)
            except (MileageError, OSError) as error:
                if not settled:  # it may be half of one
                    self._done, self._unread = None, found
                    return
                _say(f"the policy {found[0]} was not examined: {error}")
                return
        self._run.checkpoint(step, evaluation, path=found[0])

    def _newest(self) -> tuple[str, float] | None:
        found = []
        for path in glob.glob(self._pattern, recursive=True):
            try:
                changed = os.stat(path).st_mtime
            except OSError:
                continue
            if changed >= self._since:
                found.append((path, changed))
        return max(found, key=lambda each: each[1], default=None)


def _say(text: str) -> None:
    print(f"mileage: {text}", file=sys.stderr)
