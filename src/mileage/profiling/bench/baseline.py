"""Comparing a run of the benchmarks with an earlier one of the same machine."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mileage.errors import UsageError
from mileage.measure import Cause
from mileage.profiling.bench import suite
from mileage.profiling.bench.suite import FORMAT, PrimitivesReport
from mileage.records import ReadRecord

# How much longer a job may take: below this, processes and machines that are left alone differ from hour to hour.
TOLERANCE = 0.15
# How often a suspect is measured anew.
_REPEATS = 2
# Conditions that take cores away.
_BUSY = frozenset({Cause.BUSY.name, Cause.STOLEN.name, Cause.LOOP.name})


class Change(Enum):
    """What became of a case."""

    REGRESSION = "slower"
    IMPROVEMENT = "faster"
    SAME = "same"


@dataclass(frozen=True)
class CaseChange:
    """One case now and then, in seconds."""

    title: str
    before: float
    after: float
    change: Change
    least: float = 1.0
    """How many times as long it takes at least, by all that was measured: against its control, in every repeat."""
    measured: int = 1
    """How many times it was measured."""

    @property
    def ratio(self) -> float:
        """How many times as long it takes now, by medians alone."""
        return self.after / self.before


@dataclass(frozen=True)
class BaselineCheck:
    """All cases that both runs have."""

    changes: tuple[CaseChange, ...]
    new: tuple[str, ...]
    """Cases the baseline does not have."""
    versions: tuple[str, ...]
    """Software that is not the baseline's, as sentences."""
    busy: bool = False
    """Whether others used the machine, now or when the baseline was measured."""

    @property
    def regressions(self) -> tuple[CaseChange, ...]:
        """Cases that became slower."""
        return tuple(each for each in self.changes if each.change is Change.REGRESSION)


def save(report: PrimitivesReport, path: Path, passes: Sequence[ReadRecord] = ()) -> None:
    """Write `report` as a baseline, with further passes in processes of their own."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report.record() | {"passes": list(passes)}) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write the baseline {str(path)!r}: {error.strerror}") from error


def load(path: Path, hardware_id: str) -> ReadRecord:
    """Read a baseline, refusing one of another machine; done before anything is measured."""
    try:
        record = json.loads(path.read_text())
        found, form = str(record["hardware_id"]), int(record["format"])
        if not isinstance(record["cases"], list):
            raise TypeError
    except OSError as error:
        raise UsageError(f"cannot read the baseline {str(path)!r}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        how = "make one with 'mileage bench --save-baseline FILE'"
        raise UsageError(f"{str(path)!r} is not a baseline: {how}") from error
    if form != FORMAT:
        raise UsageError(f"baseline {str(path)!r} has format {form}, not {FORMAT}: save a new one")
    if found != hardware_id:
        raise UsageError(
            f"baseline {str(path)!r} was measured on another machine ({found}, this is {hardware_id}): "
            "save one on this machine with --save-baseline"
        )
    checked: ReadRecord = record
    return checked


Again = Callable[[Sequence[str]], ReadRecord]
"""Measures the cases of these primitives once more, in a process of its own, and returns the record."""


def check(
    report: PrimitivesReport, baseline: ReadRecord, tolerance: float = TOLERANCE, again: Again | None = None
) -> BaselineCheck:
    """Compare. A case is slower if it is so by everything that was measured of it, every time that it was.

    What counts is the time by that of a control of the same rounds: its median and its best, and beside busy
    neighbours its CPU time as well, for they take cores away and not instructions. A case that looks slower, or close
    to it, is measured again, up to twice, and must look so each time; and slower than in every pass of the baseline.

    Args:
        report: now.
        baseline: then.
        tolerance: how much slower is a regression.
        again: measures suspects anew; without it, once is enough.
    """
    if not tolerance > 0.0:
        raise UsageError(f"tolerance must be above 0, not {tolerance}")
    then = [_by_title(each) for each in (baseline, *baseline.get("passes", ()))]
    record = report.record()
    busy = _was_busy(record) or _was_busy(baseline)
    before = {case["title"]: next(iter(case["arms"]))["median"] for case in baseline["cases"]}
    ratios: dict[str, list[float]] = {}
    primitive = {case["title"]: str(case["primitive"]) for case in record["cases"]}
    now = _by_title(record)
    for title in now:
        if title in before:
            ratios[title] = [_least_ratio(now[title], [old[title] for old in then if title in old], busy)]
    for _ in range(_REPEATS if again is not None else 0):
        # Close is what could be a regression on another day.
        suspects = [title for title, found in ratios.items() if min(found) > 1.0 + 0.8 * tolerance]
        if not suspects or again is None:
            break
        repeated = again(sorted({primitive[title] for title in suspects}))
        later, busy_now = _by_title(repeated), busy or _was_busy(repeated)
        for title in suspects:
            if title in later:
                ratios[title].append(_least_ratio(later[title], [old[title] for old in then if title in old], busy_now))
    changes, new = [], []
    for result in report.results:
        title = result.case.title
        if title not in ratios:
            new.append(title)
            continue
        low, after = min(ratios[title]), result.ours.median
        faster = _greatest_ratio(now[title], [old[title] for old in then if title in old]) < 1.0 / (1.0 + tolerance)
        change = Change.REGRESSION if low > 1.0 + tolerance else Change.IMPROVEMENT if faster else Change.SAME
        changes.append(CaseChange(title, before[title], after, change, low, len(ratios[title])))
    return BaselineCheck(tuple(changes), tuple(new), _version_changes(report.machine, baseline["machine"]), busy)


@dataclass(frozen=True)
class _Times:
    """A case of one run: its seconds, and those by its control's where there was one."""

    walls: tuple[float, ...]
    cpus: tuple[float, ...]
    standing: suite.Standing | None


def _by_title(record: ReadRecord) -> dict[str, _Times]:
    found = {}
    for case in record["cases"]:
        walls, cpus = _columns(next(iter(case["arms"])))
        steady = {each["arm"]: _columns(each) for each in case.get("controls", ())}
        found[str(case["title"])] = _Times(tuple(walls), tuple(cpus), suite.standing(walls, cpus, steady))
    return found


def _columns(arm: ReadRecord) -> tuple[list[float], list[float]]:
    return [each["wall"] for each in arm["samples"]], [each["cpu"] for each in arm["samples"]]


def _ratios(now: _Times, old: _Times, busy: bool) -> list[float]:
    """How many times as long a case takes, by all that was measured of it."""
    if now.standing is None or old.standing is None:
        return [statistics.median(now.walls) / statistics.median(old.walls), min(now.walls) / min(old.walls)]
    walls, before = now.standing.walls, old.standing.walls
    found = [statistics.median(walls) / statistics.median(before), min(walls) / min(before)]
    if busy and min(*now.standing.cpus, *old.standing.cpus) > 0.0:
        found.append(statistics.median(now.standing.cpus) / statistics.median(old.standing.cpus))
        found.append(min(now.cpus) / min(old.cpus))
    return found


def _least_ratio(now: _Times, passes: Sequence[_Times], busy: bool) -> float:
    return min(ratio for old in passes for ratio in _ratios(now, old, busy))


def _greatest_ratio(now: _Times, passes: Sequence[_Times]) -> float:
    return max(ratio for old in passes for ratio in _ratios(now, old, busy=True))


def _was_busy(record: ReadRecord) -> bool:
    """Whether others used the machine while this was measured, by the record's own word."""
    return any(each["kind"] in _BUSY for each in record.get("conditions", ()))


def _version_changes(now: ReadRecord, then: ReadRecord) -> tuple[str, ...]:
    pairs = {"Python": (then["python"], now["python"])}
    names = sorted({*now["versions"], *then["versions"]})
    pairs |= {name: (then["versions"].get(name, "none"), now["versions"].get(name, "none")) for name in names}
    return tuple(f"{name} {old} → {new}" for name, (old, new) in pairs.items() if old != new)
