"""`mileage profile -- python train.py`: a program as it is, and where its time goes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mileage.external.record import record
from mileage.jobs.process import Ended, EndingWay, Program
from mileage.ledger.recorder import Ledger
from mileage.ledger.secrets import scrubbed_command
from mileage.profiling.findings.programs import ProgramFinding, find, verdict
from mileage.profiling.model import Evidence
from mileage.profiling.programs.layers import Layered, Place, ProgramSettings, hot_places, layered
from mileage.profiling.programs.mileage_inside import PLACE
from mileage.profiling.programs.resources import ResourceWatch
from mileage.profiling.programs.trace import CallTimes, Process, Reader, call_times
from mileage.records import Record

BOOTSTRAP = Path(__file__).parent / "bootstrap"
WAITED = "waiting for a core"
UNSAMPLED = "start and end of the interpreter"
_FEWEST_SAMPLES = 5


@dataclass(frozen=True)
class Watched:
    """A program that was watched to its end."""

    command: tuple[str, ...]
    """Without what looks like a secret."""
    ended: Ended
    began_ns: int
    """On the monotonic clock."""
    evidence: Evidence
    run_id: str | None = None
    """In the ledger; None if it was not recorded."""

    @cached_property
    def findings(self) -> tuple[ProgramFinding, ...]:
        """What takes the time, the most first."""
        return find(self.evidence)

    @property
    def run(self) -> Layered | None:
        """The process that trains."""
        return self.evidence.run

    @property
    def wall_seconds(self) -> float:
        """From the start of the program to its end."""
        return self.evidence.wall_seconds

    @property
    def verdict(self) -> str:
        """The first finding in one line."""
        if self.run is None:
            return ("NOT WATCHED: no Python of the program loaded the sampler (python -I, -E or -S, or a program that "
                    "lasted less than a blink)")  # fmt: skip
        return verdict(self.findings, self.evidence)

    @cached_property
    def layers(self) -> dict[str, float]:
        """Seconds by layer; they add up to the wall-clock with what came before the first sample and after the last."""
        if self.run is None:
            return {"not watched": self.wall_seconds}
        found = {str(layer): seconds for layer, seconds in self.run.by_layer().items()}
        found[WAITED] = float(self.run.waited_seconds.sum())
        return found | {UNSAMPLED: self.wall_seconds - sum(found.values())}

    @cached_property
    def calls(self) -> tuple[CallTimes, ...]:
        """Timed calls of the process that trains, by kind."""
        return () if self.run is None else call_times(self.run.process.calls)

    @cached_property
    def places(self) -> list[Place]:
        """Lines of the program's own where most time is spent."""
        return [] if self.run is None else hot_places(self.run)

    @property
    def processes(self) -> tuple[Layered, ...]:
        """All that were watched, the one that trains first."""
        return () if self.run is None else (self.run, *self.evidence.workers)

    @property
    def watching_seconds(self) -> float:
        """CPU time of the samplers within the program."""
        return sum(each.process.watching_seconds for each in self.processes)

    def as_dict(self) -> Record:
        """As plain data."""
        resources = self.evidence.resources
        return {
            "command": list(self.command),
            "exit_code": self.ended.code,
            "end": self.ended.reason,
            "run_id": self.run_id,
            "verdict": self.verdict,
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.evidence.cpu_seconds,
            "watching_seconds": self.watching_seconds,
            "waited_for_a_core_share": self.evidence.waited_share,
            "others_cores": resources.others_cores,
            "peak_rss_gb": resources.peak_rss_gb,
            "gpu_utilisation": list(resources.gpu_utilisation),
            "findings": [each.as_dict() for each in self.findings],
            "layers": self.layers,
            "phases": {} if self.run is None else self.run.by_phase(),
            "calls": [each.as_dict() for each in self.calls],
            "lines": [{"file": each.frame.path, "line": each.frame.line, "function": each.frame.function,
                       "seconds": each.seconds, "cpu_seconds": each.cpu_seconds} for each in self.places],
            "samples": 0 if self.run is None else len(self.run.seconds),
            "python": "" if self.run is None else self.run.process.python,
        }  # fmt: skip


def watch(
    command: Sequence[str], *, ledger: Ledger | None = None, name: str = "", limit_seconds: float | None = None
) -> Watched:
    """Run `command` to its end as it is, and find out where its time goes.

    Args:
        command: program and arguments.
        ledger: where the run is recorded, if anywhere.
        name: of the run in the ledger.
        limit_seconds: after which the program is ended.
    """
    with tempfile.TemporaryDirectory(prefix="mileage-profile-") as place:
        reader, resources, begun = Reader(Path(place)), ResourceWatch(), time.perf_counter_ns()
        cpu = _children_seconds()
        way = EndingWay(watched_environment(Path(place)))

        def begin(program: Program) -> None:
            nonlocal begun
            begun = time.perf_counter_ns()
            resources.start(program.pid)

        run_id = None
        if ledger is None:
            program = Program(command, f"profile-{os.getpid()}", lambda _: None, way)
            ended = program.run(limit_seconds, reader.tick, begin)
        else:
            run, ended = record(command, ledger, name, limit_seconds=limit_seconds, way=way,
                                begun=begin, tick=reader.tick, framework="recorded")  # fmt: skip
            run_id = run.run.run_id
        wall = (time.perf_counter_ns() - begun) / 1e9
        used = _children_seconds() - cpu
        readings = resources.stop(used)
        processes = reader.processes()
    trained, others = _parted(processes)
    evidence = Evidence(wall, used, trained, others, readings, _settings(trained))
    shown = tuple(scrubbed_command([word]) for word in command)
    return Watched(shown, ended, begun, evidence, run_id)


def watched_environment(place: Path) -> dict[str, str]:
    """Variables with which every Python that the program starts is watched and writes to `place`."""
    path = os.environ.get("PYTHONPATH")
    return {PLACE: str(place), "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), *([path] if path else [])])}


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _parted(processes: Sequence[Process]) -> tuple[Layered | None, tuple[Layered, ...]]:
    """The process that trains, and the others: it spends most on updates, or is the first that nobody here started."""
    found = [layered(each) for each in processes if len(each.main) >= _FEWEST_SAMPLES]
    if not found:
        return None, ()

    def weight(each: Layered) -> tuple[float, ...]:
        calls = {one.kind: one.seconds for one in call_times(each.process.calls)}
        learning = calls.get("backward", 0.0) + calls.get("optimizer.step", 0.0)
        first = each.process.parent not in {one.pid for one in processes}
        return learning, float(first), -float(each.process.samples[0, 0])

    chosen = max(found, key=weight)
    return chosen, tuple(each for each in found if each is not chosen)


def _settings(run: Layered | None) -> ProgramSettings:
    if run is None:
        return ProgramSettings(Process(0), ())
    own = {frame.path: None for frame, is_own in zip(run.process.frames, run.is_own, strict=True) if is_own}
    return ProgramSettings(run.process, own)
