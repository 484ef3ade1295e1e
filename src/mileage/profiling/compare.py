"""Two profiles beside each other: where the time that one run took more went, and which findings came and went."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mileage.errors import UsageError
from mileage.ledger import queries
from mileage.ledger.store import Store
from mileage.measure.intervals import DEFAULT_LEVEL, Interval, welch_half_width
from mileage.records import ReadRecord, Record
from mileage.tables import Table

# A phase is looked at in the pieces between two looks at the run's clock; fewer say nothing about chance.
_FEWEST_PIECES = 4
# What differs by less is not worth a row's notice.
_WORTH_SAYING = 0.02


@dataclass(frozen=True)
class Side:
    """What is compared of one profile: of a run of ours, or of a program that was watched."""

    label: str
    wall_seconds: float
    parts: Mapping[str, float]
    """Seconds by phase, or by layer of a program; they add up to the wall-clock."""
    steps: int | None
    """Environment steps, where they are known."""
    each: Mapping[str, tuple[float, ...]]
    """For a phase, its seconds per entry in pieces of the run."""
    findings: Mapping[str, str]
    """What stood out, and the evidence."""
    settings: Mapping[str, object]
    """What the run was told, and where it ran."""
    peak_rss_gb: float | None
    shared: bool
    """Whether others used the machine meanwhile."""
    program: bool = False
    """Whether it is of somebody's program."""


@dataclass(frozen=True)
class PartDifference:
    """One phase of both."""

    part: str
    a: float
    b: float
    """Seconds, or microseconds per environment step where both have steps."""
    ratio: Interval | None
    """Of an entry's time in B by that in A, where the run was seen in enough pieces."""
    of_a: float
    """The difference as a share of A's wall-clock."""

    @property
    def chance(self) -> str:
        """Whether the entries themselves differ."""
        if self.ratio is None:
            return "one run each"
        within = self.ratio.low <= 1.0 <= self.ratio.high
        return f"{self.ratio.low:.2f} to {self.ratio.high:.2f}" + (", below the noise" if within else "")


@dataclass(frozen=True)
class ProfileComparison:
    """What differs between two profiles."""

    a: Side
    b: Side

    @property
    def per_step(self) -> bool:
        """Whether costs are per environment step, which runs of different lengths can be compared by."""
        return bool(self.a.steps and self.b.steps)

    @property
    def unit(self) -> str:
        """Of the compared costs."""
        return "µs per step" if self.per_step else "s"

    def _cost(self, side: Side, seconds: float) -> float:
        return 1e6 * seconds / side.steps if self.per_step and side.steps else seconds

    @property
    def totals(self) -> tuple[float, float]:
        """Cost of both as a whole."""
        return self._cost(self.a, self.a.wall_seconds), self._cost(self.b, self.b.wall_seconds)

    @property
    def parts(self) -> list[PartDifference]:
        """Every phase of either, the largest difference first."""
        whole = self.totals[0]
        found = []
        for part in dict.fromkeys((*self.a.parts, *self.b.parts)):
            a = self._cost(self.a, self.a.parts.get(part, 0.0))
            b = self._cost(self.b, self.b.parts.get(part, 0.0))
            ratio = _ratio(self.a.each.get(part, ()), self.b.each.get(part, ()))
            found.append(PartDifference(part, a, b, ratio, (b - a) / whole))
        return sorted(found, key=lambda each: -abs(each.b - each.a))

    @property
    def settings(self) -> dict[str, tuple[object, object]]:
        """What the two were told differently, or where they ran."""
        names = dict.fromkeys((*self.a.settings, *self.b.settings))
        both = {name: (self.a.settings.get(name), self.b.settings.get(name)) for name in names}
        return {name: pair for name, pair in both.items() if pair[0] != pair[1]}

    @property
    def verdict(self) -> str:
        """The comparison in a sentence or two."""
        a, b = self.totals
        figures = f"({a:.4g} and {b:.4g} {self.unit})"
        changed = [each for each in self.parts if abs(each.of_a) >= _WORTH_SAYING]
        if abs(b - a) >= _WORTH_SAYING * a:
            said = f"B takes {b / a:.3g} times as long as A {figures}"
            changed = [each for each in changed if (each.b > each.a) == (b > a)]
        else:
            said = f"A and B take the same, within {_WORTH_SAYING:.0%} {figures}"
        if changed:
            first = changed[0]
            said += f"; what differs most is {first.part}: {first.a:.4g} and {first.b:.4g}, {first.chance}"
        shared = [name for name, side in (("A", self.a), ("B", self.b)) if side.shared]
        if shared:
            said += f". Others used the machine during {' and '.join(shared)}: repeat it alone before believing this"
        return said

    def tables(self) -> list[Table]:
        """Costs by phase, findings, and what else differs."""
        rows = [
            (each.part, f"{each.a:.4g}", f"{each.b:.4g}", f"{each.b - each.a:+.4g}", f"{each.of_a:+.1%}", each.chance)
            for each in self.parts
        ]
        a, b = self.totals
        rows.append(("wall-clock", f"{a:.4g}", f"{b:.4g}", f"{b - a:+.4g}", "", ""))
        header = ("phase", "A", "B", "B - A", "of A", "an entry, B / A")
        tables = [Table.of(header, rows, left=("phase",), title=f"Where the time goes, {self.unit}", key="phases")]
        named = dict.fromkeys((*self.a.findings, *self.b.findings))
        found = [(name, self.a.findings.get(name, "–"), self.b.findings.get(name, "–")) for name in named]
        if found:
            columns = ("finding", "in A", "in B")
            tables.append(Table.of(columns, found, left=columns, title="Findings", key="findings"))
        other = [(name, str(pair[0]), str(pair[1])) for name, pair in self.settings.items()]
        if self.a.peak_rss_gb is not None and self.b.peak_rss_gb is not None:
            other.append(("peak memory, GB", f"{self.a.peak_rss_gb:.3g}", f"{self.b.peak_rss_gb:.3g}"))
        if other:
            columns = ("what", "A", "B")
            tables.append(Table.of(columns, other, left=columns, title="What else differs", key="settings"))
        return tables

    def as_dict(self) -> Record:
        """Plain data."""
        return {
            "verdict": self.verdict,
            "unit": self.unit,
            "totals": list(self.totals),
            "parts": [asdict(each) | {"chance": each.chance} for each in self.parts],
            "findings": {"a": dict(self.a.findings), "b": dict(self.b.findings)},
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "shared_machine": {"a": self.a.shared, "b": self.b.shared},
            "labels": {"a": self.a.label, "b": self.b.label},
        }


def compare_profiles(a: str, b: str, db: str | None = None) -> ProfileComparison:
    """Two profiles, each a file that `--json` wrote or a run whose profile is in the ledger."""
    found = ProfileComparison(read_side(a, db), read_side(b, db))
    if found.a.program != found.b.program:
        raise UsageError(
            "one profile is of a program and the other of a run of mileage's own: their parts have nothing in common"
        )
    return found


def read_side(name: str, db: str | None) -> Side:
    """One side of a comparison by its file or run."""
    found = _from_file(Path(name)) if Path(name).is_file() else _from_ledger(name, db)
    try:
        return _of_run(found, name) if "run" in found else _of_program(found, name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{name} is not a profile: make one with mileage profile --json") from error


def _from_file(path: Path) -> Record:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as a profile: make one with mileage profile --json") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not a profile: make one with mileage profile --json")
    return found


def _from_ledger(name: str, db: str | None) -> Record:
    with Store(db, create=False) as store:
        recorded = store.read(queries.complete, store.read(queries.only_record, name), episodes_too=False)
    if not recorded.profiles:
        raise UsageError(f"run {recorded.run.run_id} has no profile: make one with mileage profile --run {name}")
    found: Record = json.loads(recorded.profiles[-1].summary)
    return found


def _of_run(found: ReadRecord, label: str) -> Side:
    work, run = found["workload"], found["run"]
    machine = work["machine"]
    places = {"cpu": machine.get("cpu"), "cores": machine.get("cores"), "python": machine.get("python")}
    plain = {name: work.get(name) for name in ("algorithm", "env", "backend", "threads", "seed")}
    findings = {each["bottleneck"]: each["evidence"] for each in found["findings"]}
    return Side(
        label=label,
        wall_seconds=_positive(run["wall_seconds"]),
        parts={str(name): float(spent) for name, spent in run["phases"].items()},
        steps=int(run["env_steps"]) or None,
        each=_pieces(run.get("over_time") or ()),
        findings=findings,
        settings=plain | dict(work["config"]) | places,
        peak_rss_gb=run.get("peak_rss_gb"),
        shared="shared_machine" in findings,
    )


def _of_program(found: ReadRecord, label: str) -> Side:
    where = {
        f"{each['trouble']} at {Path(each['file']).name}:{each['line']}" if each.get("file") else each["trouble"]: each[
            "evidence"
        ]
        for each in found["findings"]
    }
    return Side(
        label=label,
        wall_seconds=_positive(found["wall_seconds"]),
        parts={str(name): float(spent) for name, spent in found["layers"].items()},
        steps=None,
        each={},
        findings=where,
        settings={"command": " ".join(found["command"]), "python": found.get("python")},
        peak_rss_gb=found.get("peak_rss_gb"),
        shared=any("shared" in str(each["trouble"]) for each in found["findings"]),
        program=True,
    )


def _positive(value: object) -> float:
    if not isinstance(value, int | float) or not 0.0 < value < math.inf:
        raise ValueError(f"not a time: {value!r}")
    return float(value)


def _pieces(moments: Sequence[ReadRecord]) -> dict[str, tuple[float, ...]]:
    """Seconds per entry of every phase between two looks at it."""
    found: dict[str, list[float]] = {}
    for part, each in _entries(moments):
        found.setdefault(part, []).append(each)
    return {part: tuple(values) for part, values in found.items()}


def _entries(moments: Sequence[ReadRecord]) -> Iterator[tuple[str, float]]:
    for earlier, later in itertools.pairwise(moments):
        for part, entries in later["entries"].items():
            new = entries - earlier["entries"].get(part, 0)
            spent = later["phases"].get(part, 0.0) - earlier["phases"].get(part, 0.0)
            if new > 0 and spent > 0.0:
                yield part, spent / new


def _ratio(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Welch's interval of B by A, of the logarithms of an entry's time in each piece."""
    if min(len(a), len(b)) < _FEWEST_PIECES:
        return None
    logs = [[math.log(value) for value in values] for values in (a, b)]
    middle = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    variances = [statistics.variance(values) for values in logs]
    half = welch_half_width(variances, [len(values) for values in logs], 1.0 - DEFAULT_LEVEL)
    return Interval(math.exp(middle - half), math.exp(middle + half), DEFAULT_LEVEL)
