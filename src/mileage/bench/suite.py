"""Micro-benchmarks of every primitive on this machine, alone or side by side with other libraries."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mileage._errors import UsageError
from mileage.bench import machine as bench_machine
from mileage.bench.cases import Case
from mileage.bench.machine import Condition, Reader, Reading, conditions
from mileage.bench.peers import PeerLibraries, ProcessChannel
from mileage.bench.timing import Arm, Comparison, Executor, Measurement, compare
from mileage.meter import fingerprint

OURS = "mileage"
# 1: first format.
FORMAT = 1
WARMUPS = 3


@dataclass(frozen=True)
class BenchOptions:
    """How much to measure."""

    rounds: int = 15
    """Samples of each arm."""
    budget: float | None = 12.0
    """Seconds after which a case with slow arms stops early (five rounds at least)."""
    peer_pythons: tuple[Path, ...] = ()
    """Interpreters whose libraries are measured too."""


@dataclass(frozen=True)
class Doubt:
    """Why one arm's numbers are to be read with care."""

    arm: str
    kind: str
    evidence: str
    remedy: str


@dataclass(frozen=True)
class CaseResult:
    """All arms of one case."""

    case: Case
    comparison: Comparison

    @property
    def ours(self) -> Measurement:
        """Mileage's own arm."""
        return self.comparison[OURS]

    @property
    def peers(self) -> tuple[tuple[Measurement, float], ...]:
        """The other arms, fastest first, each with how many times as long as ours it took in the same rounds."""
        found = [(each, self.comparison.ratio(each.arm, OURS)) for each in self.comparison.measurements]
        return tuple(sorted((pair for pair in found if pair[0].arm != OURS), key=lambda pair: pair[1]))

    @property
    def warnings(self) -> tuple[Doubt, ...]:
        """What to keep in mind about this case."""
        found = []
        for each in self.comparison.measurements:
            found += [Doubt(each.arm, f"{f.kind}", f.evidence, f.kind.remedy) for f in each.instabilities]
            for caution in each.cautions:
                what, _, remedy = caution.value.partition(": ")
                found.append(Doubt(each.arm, caution.name.lower().replace("_", " "), what, remedy))
        return tuple(found)

    def record(self) -> dict[str, Any]:
        """Everything as plain data."""
        case = self.case
        description = {"primitive": case.primitive, "title": case.title, "work": case.work, "unit": case.unit}
        return description | {
            "arms": self.comparison.record()["arms"],
            "warnings": [asdict(each) for each in self.warnings],
        }


@dataclass(frozen=True)
class BenchReport:
    """One run of the benchmarks."""

    results: tuple[CaseResult, ...]
    machine: Mapping[str, Any]
    hardware_id: str
    readings: tuple[Reading, Reading]
    conditions: tuple[tuple[Condition, str], ...]
    versions: Mapping[str, str]
    """Versions of the libraries compared with."""
    absent: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why a library has no arm, by title and library."""
    command: str = ""
    time: str = ""

    def record(self) -> dict[str, Any]:
        """Everything as plain data, raw samples included."""
        return {
            "format": FORMAT,
            "command": self.command,
            "time": self.time,
            "machine": dict(self.machine),
            "hardware_id": self.hardware_id,
            "readings": [reading.as_dict() for reading in self.readings],
            "conditions": [{"kind": kind.name, "evidence": evidence} for kind, evidence in self.conditions],
            "versions": dict(self.versions),
            "absent": [{"case": case, "library": library, "why": why} for (case, library), why in self.absent.items()],
            "cases": [result.record() for result in self.results],
        }


Progress = Callable[[int, int, str], None]


def run(
    cases: Sequence[Case],
    options: BenchOptions | None = None,
    *,
    command: str = "",
    executor: Executor | None = None,
    read: Reader = bench_machine.read,
    on_progress: Progress | None = None,
) -> BenchReport:
    """Measure `cases`; every case's arms alternate, and the answers of kernels are checked against NumPy's first."""
    options = options or BenchOptions()
    if not cases:
        raise UsageError("there is nothing to measure: name a primitive of 'mileage bench --list'")
    machine = fingerprint()
    before = read()
    results = []
    with _libraries(options.peer_pythons, machine.cores) as peers:
        for index, case in enumerate(cases):
            if on_progress is not None:
                on_progress(index, len(cases), case.title)
            results.append(_measure(case, peers, machine.cores, options, executor))
        versions = {name: text for each in reversed(peers) for name, text in each.versions.items()}
        absent = {key: why for each in peers for key, why in each.absent.items()}
    after = read()
    return BenchReport(
        results=tuple(results),
        machine=machine.as_dict(),
        hardware_id=machine.hardware_id,
        readings=(before, after),
        conditions=conditions(before, after, machine.cores),
        versions=versions,
        absent=absent,
        command=command,
        time=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


@contextlib.contextmanager
def _libraries(pythons: Sequence[Path], threads: int) -> Iterator[list[PeerLibraries]]:
    with contextlib.ExitStack() as stack:
        found = []
        for python in pythons:
            channel = ProcessChannel(python)
            stack.callback(channel.close)
            found.append(PeerLibraries(channel, threads))
        yield found


def _measure(
    case: Case, peers: Sequence[PeerLibraries], threads: int, options: BenchOptions, executor: Executor | None
) -> CaseResult:
    own = case.own(threads)
    check_answer(case, own, threads)
    arms = [Arm(OURS, own.run, own.prepare, own.units)]
    wanted = [peer.library for peer in case.peers]
    for libraries in peers:
        arms += libraries.arms(case.title, case.primitive, case.params, wanted)
        # A library that several interpreters have is measured in the first of them.
        wanted = [name for name in wanted if name not in libraries.libraries]
    comparison = compare(
        case.title, arms, rounds=options.rounds, warmups=WARMUPS, budget=options.budget, executor=executor
    )
    for libraries in peers:
        libraries.drop()
    return CaseResult(case, comparison)


def check_answer(case: Case, own: Any, threads: int) -> None:
    """Raise if mileage's answer is not NumPy's, where there is one to compare."""
    from mileage.profiling.peers.worker import same

    reference = next((peer for peer in case.peers if peer.library == "NumPy"), None)
    if reference is None or own.answer is None:
        return
    (way,) = reference.arms(case.params | {"threads": threads})
    if way.answer is not None and not same(own.answer(own.run()), way.answer(way.run())):
        raise UsageError(f"{case.title}: the answer differs from NumPy's; please report this")
