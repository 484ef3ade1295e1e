"""Comparing a run of the benchmarks with an earlier one of the same machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mileage._errors import UsageError
from mileage._records import ReadRecord
from mileage.bench.suite import FORMAT, BenchReport

# How much longer a job may take: below this, machines that are left alone differ from hour to hour.
TOLERANCE = 0.25


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

    @property
    def ratio(self) -> float:
        """How many times as long it takes now."""
        return self.after / self.before


@dataclass(frozen=True)
class BaselineCheck:
    """All cases that both runs have."""

    changes: tuple[CaseChange, ...]
    new: tuple[str, ...]
    """Cases the baseline does not have."""
    versions: tuple[str, ...]
    """Software that is not the baseline's, as sentences."""

    @property
    def regressions(self) -> tuple[CaseChange, ...]:
        """Cases that became slower."""
        return tuple(each for each in self.changes if each.change is Change.REGRESSION)


def save(report: BenchReport, path: Path) -> None:
    """Write `report` as a baseline."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report.record()) + "\n")
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


def check(report: BenchReport, baseline: ReadRecord, tolerance: float = TOLERANCE) -> BaselineCheck:
    """Compare; slower is what has both its median and its best beyond the tolerance, so that noise is not enough."""
    if not tolerance > 0.0:
        raise UsageError(f"tolerance must be above 0, not {tolerance}")
    arms = {case["title"]: next(iter(case["arms"])) for case in baseline["cases"]}
    changes, new = [], []
    for result in report.results:
        old = arms.get(result.case.title)
        if old is None:
            new.append(result.case.title)
            continue
        ours = result.ours
        ratios = ours.median / old["median"], ours.best / old["best"]
        slower, faster = min(ratios) > 1.0 + tolerance, max(ratios) < 1.0 / (1.0 + tolerance)
        change = Change.REGRESSION if slower else Change.IMPROVEMENT if faster else Change.SAME
        changes.append(CaseChange(result.case.title, old["median"], ours.median, change))
    return BaselineCheck(tuple(changes), tuple(new), _version_changes(report.machine, baseline["machine"]))


def _version_changes(now: ReadRecord, then: ReadRecord) -> tuple[str, ...]:
    pairs = {"Python": (then["python"], now["python"])}
    names = sorted({*now["versions"], *then["versions"]})
    pairs |= {name: (then["versions"].get(name, "none"), now["versions"].get(name, "none")) for name in names}
    return tuple(f"{name} {old} → {new}" for name, (old, new) in pairs.items() if old != new)
