"""Any training program as a run of the ledger: `mileage record -- python train.py`, with its held-out exams.

Two kinds of it: `asked_exams`, where the program asks to be examined and answers for its policy, and `file_exams`,
where the policy that it leaves in a file is examined.
"""

from __future__ import annotations

import abc
import glob
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from mileage.errors import MileageError
from mileage.external.variables import kept_variables
from mileage.jobs.process import Ended, EndingWay, How, Program
from mileage.ledger.panels import Panel
from mileage.ledger.recorder import Ledger, RunRecorder
from mileage.ledger.rows import EndState
from mileage.ledger.runs import RecordedRun
from mileage.ledger.scalars import LogFiles, OutputLines, ReaderGuard
from mileage.ledger.secrets import scrubbed_value
from mileage.measure import PhaseClock


# --- The held-out exam of a program that is recorded, and what of the recording it is told ---
class Exams(abc.ABC):
    """Examines the policy of a recorded program on the run's clock. Whoever makes it closes it."""

    def begin(self, run: RunRecorder, limit_seconds: float | None) -> None:  # noqa: B027 (not all need it)
        """The run is in the ledger, and its program is about to start."""

    def started(self, program: Program) -> None:  # noqa: B027
        """The program runs."""

    @abc.abstractmethod
    def tick(self, latest: Callable[[], int]) -> None:
        """Examine what is to be examined now, on the thread that has the clock; `latest` is the last step named."""

    def last(self, latest: Callable[[], int]) -> None:  # noqa: B027
        """The program has ended: examine what it left."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of processes and sockets."""


_WRITE_EVERY_SECONDS = 1.0
_LOOK_EVERY_SECONDS = 5.0
_STATES = {How.FINISHED: None, How.FAILED: EndState.FAILED, How.KILLED: EndState.CRASHED,
           How.INTERRUPTED: EndState.STOPPED, How.TIMED_OUT: EndState.STOPPED}  # fmt: skip


def record(
    command: Sequence[str], ledger: Ledger, name: str, *, directories: Sequence[Path] = (Path(),),
    limit_seconds: float | None = None, started: Callable[[RunRecorder], None] = lambda _: None,
    way: EndingWay | None = None, exams: Exams | None = None, variables: Sequence[str] = (),
    begun: Callable[[Program], None] = lambda _: None, tick: Callable[[], None] = lambda: None, **facts: Any,
) -> tuple[RecordedRun, Ended]:  # fmt: skip
    """Run `command` to its end and record it.

    Args:
        command: program and arguments.
        ledger: where the run is recorded.
        name: the arm this run belongs to.
        directories: where files of trackers are looked for.
        limit_seconds: after which the program is ended.
        started: told the recorder once the run is in the ledger.
        way: where and how the program runs.
        exams: examine its policy on the run's panel.
        begun: told the program once it runs.
        tick: called from time to time while it runs.
        variables: environment variables that are kept with the run beside those that are known to matter.
        facts: as for `Ledger.run`: panel, target, price_usd_per_hour, seed and so on.
    """
    (way := way or EndingWay()).find(command[0])  # before a run begins
    config = {
        "command": scrubbed_value(list(command)),
        "environment": kept_variables(variables),
        "packages": _packages(command[0]),
        "directory": os.getcwd(),
    }
    since = time.time()
    run = ledger.run(name, config=config, clock=PhaseClock(), **facts)
    with run:
        started(run)
        figures = _Figures(run, [each.absolute() for each in directories], since)
        if exams is not None:
            exams.begin(run, limit_seconds)

        def started_now(program: Program) -> None:
            begun(program)
            if exams is not None:
                exams.started(program)

        def tick_all() -> None:
            if exams is not None:
                exams.tick(figures.latest)
            figures.tick()
            tick()

        program = Program(command, run.run_id, figures.feed, way)
        ended = program.run(limit_seconds, tick_all, started_now)
        figures.last()
        if exams is not None:
            exams.last(figures.latest)
        return run.end(_STATES[ended.how], ended.reason), ended


class _Figures:
    """What the program says of itself, written down as claimed at the steps it says."""

    def __init__(self, run: RunRecorder, directories: list[Path], since: float) -> None:
        self.lines = OutputLines()
        self._run = run
        self._guard = ReaderGuard()
        self._files = LogFiles(directories, since, self._guard)
        self.step = 0
        """The last one that the program named."""
        self._next_write = self._next_look = 0.0

    def feed(self, text: bytes) -> None:
        """More of the program's output."""
        with self._guard("standard output"):
            self.lines.feed(text)

    def tick(self) -> None:
        """Look for new files and write new figures, neither too often."""
        now = time.monotonic()
        if now >= self._next_look:
            self._look()
            # A large directory is looked through less often.
            self._next_look = now + max(_LOOK_EVERY_SECONDS, 500.0 * (time.monotonic() - now))
        if now >= self._next_write:
            self._write()
            self._next_write = now + max(_WRITE_EVERY_SECONDS, 500.0 * (time.monotonic() - now))

    def latest(self) -> int:
        """The last step that the program named, what has come meanwhile included."""
        self.last()
        return self.step

    def last(self) -> None:
        """Everything that has come meanwhile."""
        self._look()
        self._write()

    def _look(self) -> None:
        with self._guard("new files"):
            self._files.look()

    def _write(self) -> None:
        """Everything that has come, with the time at which it did; of one step and second, in one row."""
        rows: dict[tuple[int, int], dict[str, float]] = {}
        times: dict[tuple[int, int], float] = {}
        now = time.time()
        for scalar in (*self.lines.new(), *self._files.new()):
            self.step = self.step if scalar.step is None else scalar.step
            at = scalar.at or now
            rows.setdefault((self.step, int(at)), {})[scalar.name] = scalar.value
            times[self.step, int(at)] = max(at, times.get((self.step, int(at)), 0.0))
        wall = self._run.wall_seconds - time.time()
        for row in sorted(rows, key=times.__getitem__):
            with self._guard("some steps"):
                self._run.checkpoint(row[0], claimed=rows[row], at=wall + times[row])


def _packages(program: str) -> dict[str, str]:
    """Versions of what is installed beside a program of a Python environment; nothing where that is not known."""
    prefix = (
        Path(shutil.which(program) or program).absolute().parent.parent
    )  # a link to another Python is no other place
    places = [str(each) for each in prefix.glob("lib*/python3*/*-packages")]
    is_python = Path(program).name.startswith("python") or (prefix / "pyvenv.cfg").exists()
    found = metadata.distributions(path=places) if is_python and places else ()
    return {each.metadata["Name"]: each.version for each in found if each.metadata["Name"]}


# --- Exams of the policy that a recorded program leaves in a file, while the program is halted ---
_SETTLED_SECONDS = 1.0
"""For which a file must not change to be whole, where it could not be read before."""
_LOOK_FOR_FILES_EVERY_SECONDS = 0.1
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
        from mileage.external.exam import Examiner  # what sits exams is heavy, and few programs are examined so

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
        self._next = time.monotonic() + max(_LOOK_FOR_FILES_EVERY_SECONDS, 50.0 * (time.monotonic() - now))
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
        from mileage.external.exam import PolicySource

        self._done = found
        with tempfile.TemporaryDirectory() as place, self._run.phase("eval"):
            # The program may write another while this one sits its exam.
            kept = Path(place, Path(found[0]).name)
            try:
                shutil.copy2(found[0], kept)
                source = PolicySource.parse(kept, self._loader)
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
