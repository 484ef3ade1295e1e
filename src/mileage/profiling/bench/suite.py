"""Micro-benchmarks of every primitive beside other libraries, and controls that never change.

They take turns with what is measured, round by round. A case that got slower while its control did as well tells of the
machine; one that got slower against its control tells of the code. There are two: one on one thread, and one that is
shared out over all cores and waits for the last of them, as kernels on a team of threads do.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mileage.errors import UsageError
from mileage.measure import Arm, Caveat, Executor, Sample, fingerprint
from mileage.measure import surroundings as bench_machine
from mileage.measure.surroundings import Reader, Reading, conditions
from mileage.measure.timing import Measurement, TimingComparison, Work, compare
from mileage.profiling.bench.cases import Case, Way, same
from mileage.records import ReadRecord, Record
from mileage.system import usable_cores

# --- Jobs that are none of ours and never change: what they take says how fast the machine is at that moment ---
ONE, ALL = "control, one thread", "control, all cores"
_SIZE = 20_000
# A case that keeps more cores than this busy is held against the control on all of them.
_SEVERAL = 1.25


@dataclass(frozen=True)
class Standing:
    """Where a case stands against its control: in each round, how many times as long as the control it took."""

    walls: tuple[float, ...]
    cpus: tuple[float, ...]


def _job() -> float:
    """Arithmetic, sorting and a loop in the interpreter, some hundred microseconds of each."""
    rng = np.random.default_rng(0)
    values = rng.random(_SIZE)
    total = 0.0
    for value in values[:500].tolist():
        total += value
    return total + float(np.sort(values)[0] + np.exp(values).sum())


@functools.cache
def _pool(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, thread_name_prefix="mileage-control")


def _on_all(cores: int) -> None:
    for done in [_pool(cores).submit(_job) for _ in range(cores)]:
        done.result()


def control_arms(cores: int | None = None) -> list[Arm[Work]]:
    """Both controls, to take turns with a case."""
    cores = usable_cores() if cores is None else cores
    return [Arm(ONE, Work(_job)), Arm(ALL, Work(functools.partial(_on_all, cores)))]


def standing(
    walls: list[float], cpus: list[float], controls: dict[str, tuple[list[float], list[float]]]
) -> Standing | None:
    """A case by its control's times of the same rounds; None where no control was measured."""
    if not controls:
        return None
    busy = sorted(cpu / wall for cpu, wall in zip(cpus, walls, strict=True) if wall > 0.0)
    several = bool(busy) and busy[len(busy) // 2] > _SEVERAL
    wall_of, cpu_of = controls[ALL if several and ALL in controls else ONE]
    return Standing(
        tuple(own / max(control, 1e-12) for own, control in zip(walls, wall_of, strict=False)),
        tuple(own / max(control, 1e-12) for own, control in zip(cpus, cpu_of, strict=False)),
    )


def is_control(measurement: Measurement) -> bool:
    """Whether a measurement is that of a control."""
    return measurement.arm in (ONE, ALL)


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
    controls: bool = False
    """Whether jobs that never change take turns with every case, for comparisons with other runs."""


class Others(Protocol):
    """Other libraries that are measured too, those of one interpreter."""

    @property
    def libraries(self) -> Sequence[str]:
        """Those that are there."""

    @property
    def versions(self) -> Mapping[str, str]:
        """By library."""

    @property
    def absent(self) -> Mapping[tuple[str, str], str]:
        """Why a library has no arm for a job, by title and library."""

    def arms(self, title: str, primitive: str, params: ReadRecord, without: Collection[str] = ()) -> list[Arm[Work]]:
        """Arms of the libraries that can do the job, but for those in `without`."""

    def drop(self) -> None:
        """Let go of what the arms of a job hold."""


@dataclass(frozen=True)
class CaseResult:
    """All arms of one case."""

    case: Case
    comparison: TimingComparison

    @property
    def ours(self) -> Measurement:
        """Mileage's own arm."""
        return self.comparison[OURS]

    @property
    def peers(self) -> tuple[tuple[Measurement, float], ...]:
        """The other arms, fastest first, each with how many times as long as ours it took in the same rounds."""
        found = [(each, self.comparison.ratio(each.arm, OURS)) for each in self._measured]
        return tuple(sorted((pair for pair in found if pair[0].arm != OURS), key=lambda pair: pair[1]))

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """What to keep in mind about this case."""
        return tuple(caveat for each in self._measured for caveat in each.caveats)

    @property
    def _measured(self) -> list[Measurement]:
        """All arms but controls."""
        return [each for each in self.comparison.measurements if not is_control(each)]

    def record(self) -> Record:
        """Everything as plain data."""
        case = self.case
        description = {"primitive": case.primitive, "title": case.title, "work": case.work, "unit": case.unit}
        return description | {
            "arms": [each.record() for each in self._measured],
            "controls": [each.record() for each in self.comparison.measurements if is_control(each)],
            "warnings": [
                {"arm": each.arm, "kind": each.cause.value, "evidence": each.evidence, "remedy": each.remedy}
                for each in self.caveats
            ],
        }


@dataclass(frozen=True)
class PrimitivesReport:
    """One run of the benchmarks."""

    results: tuple[CaseResult, ...]
    machine: ReadRecord
    hardware_id: str
    readings: tuple[Reading, Reading]
    conditions: tuple[Caveat, ...]
    """What speaks against numbers taken on this machine at that time."""
    versions: Mapping[str, str]
    """Versions of the libraries compared with."""
    absent: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why a library has no arm, by title and library."""
    command: str = ""
    time: str = ""

    def record(self) -> Record:
        """Everything as plain data, raw samples included."""
        return {
            "format": FORMAT,
            "command": self.command,
            "time": self.time,
            "machine": dict(self.machine),
            "hardware_id": self.hardware_id,
            "readings": [reading.as_dict() for reading in self.readings],
            "conditions": [{"kind": each.cause.name, "evidence": each.evidence} for each in self.conditions],
            "versions": dict(self.versions),
            "absent": [{"case": case, "library": library, "why": why} for (case, library), why in self.absent.items()],
            "cases": [result.record() for result in self.results],
        }


Progress = Callable[[int, int, str], None]


def run(
    cases: Sequence[Case],
    options: BenchOptions | None = None,
    *,
    others: Sequence[Others] = (),
    command: str = "",
    executor: Executor[Work, Sample] | None = None,
    read: Reader = bench_machine.read,
    on_progress: Progress | None = None,
) -> PrimitivesReport:
    """Measure `cases`, and what `others` do of them; arms alternate, and kernels' answers are compared with NumPy's."""
    options = options or BenchOptions()
    if not cases:
        raise UsageError("there is nothing to measure: name a primitive of 'mileage bench --list'")
    machine = fingerprint()
    before = read()
    results = []
    for index, case in enumerate(cases):
        if on_progress is not None:
            on_progress(index, len(cases), case.title)
        results.append(_measure(case, others, machine.cores, options, executor))
    after = read()
    versions = {name: text for each in reversed(others) for name, text in each.versions.items()}
    absent = {key: why for each in others for key, why in each.absent.items()}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return PrimitivesReport(
        tuple(results), machine.as_dict(), machine.hardware_id, (before, after),
        conditions(before, after, machine.cores), versions, absent, command, now,
    )  # fmt: skip


def _measure(
    case: Case,
    others: Sequence[Others],
    threads: int,
    options: BenchOptions,
    executor: Executor[Work, Sample] | None,
) -> CaseResult:
    own = case.own(threads)
    check_answer(case, own, threads)
    arms = [Arm(OURS, Work(own.run, own.prepare, own.units))]
    arms += control_arms(threads) if options.controls else []
    met: set[str] = set()
    for each in others:
        arms += each.arms(case.title, case.primitive, case.params, met)
        # A library that several interpreters have is measured in the first of them.
        met.update(each.libraries)
    comparison = compare(
        case.title, arms, rounds=options.rounds, warmups=WARMUPS, budget=options.budget, executor=executor
    )
    for each in others:
        each.drop()
    return CaseResult(case, comparison)


def check_answer(case: Case, own: Way, threads: int) -> None:
    """Raise if mileage's answer is not NumPy's, where there is one to compare."""
    if own.answer is None:
        return
    plain = case.plain(threads)
    assert plain.answer is not None
    if not same(own.answer(own.run()), plain.answer(plain.run())):
        raise UsageError(f"{case.title}: the answer differs from NumPy's; please report this")
