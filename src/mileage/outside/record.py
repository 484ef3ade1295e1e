"""Any training program as a run of the ledger, from outside: `mileage record -- python train.py`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from mileage.ledger.rows import EndState
from mileage.ledger.runs import RecordedRun
from mileage.ledger.secrets import scrubbed_value
from mileage.meter import PhaseClock
from mileage.outside.exams import Exams
from mileage.outside.program import Ended, How, Program, Way
from mileage.outside.scalars import Files, Guard, OutputLines
from mileage.outside.variables import kept_variables
from mileage.recording.recorder import Ledger, RunRecorder

_WRITE_EVERY_SECONDS = 1.0
_LOOK_EVERY_SECONDS = 5.0
_STATES = {How.FINISHED: None, How.FAILED: EndState.FAILED, How.KILLED: EndState.CRASHED,
           How.INTERRUPTED: EndState.STOPPED, How.TIMED_OUT: EndState.STOPPED}  # fmt: skip


def record(
    command: Sequence[str], ledger: Ledger, name: str, *, directories: Sequence[Path] = (Path(),),
    limit_seconds: float | None = None, started: Callable[[RunRecorder], None] = lambda _: None,
    way: Way | None = None, exams: Exams | None = None, variables: Sequence[str] = (),
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
    (way := way or Way()).find(command[0])  # before a run begins
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
        self._guard = Guard()
        self._files = Files(directories, since, self._guard)
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
