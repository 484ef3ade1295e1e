"""What runs cost: tables, and bills of clouds beside them.

Every number keeps its denominator: throughput uses training seconds, wall-clock to target uses training plus
evaluation, cost uses all billable time.

A bill has the columns of FOCUS, the open specification of cost data. A charge is for one resource and one period; the
runs on that resource share the part of it in which any of them ran, by the time each ran, and the rest is idle.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mileage.errors import UsageError
from mileage.ledger.catalogue import Cells, csv_rows
from mileage.ledger.prices import NO_PRICE
from mileage.ledger.rows import EndState, Phase
from mileage.ledger.runs import RecordedRun
from mileage.metrics import BY_NAME, OTHER_SHARE_LIMIT, RunMetric, Shown, dollars, duration, percent, shown
from mileage.records import Record
from mileage.tables import Table


@dataclass(frozen=True)
class PhaseShare:
    """One line of the phase table."""

    phase: str
    seconds: float
    share: float
    entries: int


@dataclass(frozen=True)
class CostReport:
    """What one run that has ended achieved and what it cost. Absent numbers are None, never 0."""

    recorded: RecordedRun

    @property
    def target_reached(self) -> bool | None:
        """Whether the target was met; None without one."""
        return None if self.recorded.target is None else self.recorded.reached

    @property
    def phases(self) -> tuple[PhaseShare, ...]:
        """The exclusive phases, longest first and `other` last."""
        return self._shares([row for row in self.recorded.phase_rows if not row.beside])

    @property
    def beside(self) -> tuple[PhaseShare, ...]:
        """Busy time of other threads and processes."""
        return self._shares([row for row in self.recorded.phase_rows if row.beside])

    def _shares(self, rows: Sequence[Phase]) -> tuple[PhaseShare, ...]:
        wall = self.recorded.wall_seconds
        ordered = sorted(rows, key=lambda row: (row.phase == "other", -row.seconds))
        shares = [row.seconds / wall if wall > 0 else 0.0 for row in ordered]
        return tuple(PhaseShare(r.phase, r.seconds, s, r.entries) for r, s in zip(ordered, shares, strict=True))

    def spelled(self, metric: RunMetric) -> str:
        """A metric of the run as text."""
        if metric.priced and not self.recorded.priced:
            return NO_PRICE
        return metric.spelled(self.recorded.metric(metric.name))

    def _line(self, name: str) -> str:
        return f"{BY_NAME[name].title}: {self.spelled(BY_NAME[name])}"

    def headline(self) -> list[str]:
        """The six lines."""
        return [
            f"train throughput: {self._throughput()}",
            self._line("wall_seconds"),
            f"held-out success: {self._success()}",
            f"target reached: {self._reached()}",
            self._line("cost_usd"),
            self._line("cost_per_billion_steps"),
        ]

    def details(self) -> list[str]:
        """What the six lines leave out."""
        run, reason = self.recorded.run, self.recorded.reason
        lines = [f"state: {self.recorded.state}" + (f" ({reason})" if reason else "")]
        if self.recorded.before is not None:
            lines.append(f"includes the runs it resumes: {self.recorded.before}")
        if run.target is not None:
            lines += [self._line("wall_to_target"), self._line("cost_to_target")]
        lines += report_lines(self.recorded.metric)
        rate = f"{dollars(run.price_usd_per_hour)}/h × {run.instances}" if self.recorded.priced else NO_PRICE
        lines.append(f"price: {rate}" + (f" ({run.instance})" if run.instance else ""))
        return lines

    def phase_table(self) -> list[tuple[str, str, str, str]]:
        """The phases, longest first and `other` last, then what went on beside: phase, seconds, share, entries."""
        parts = [(phase, percent(phase.share)) for phase in self.phases]
        parts += [(phase, "beside") for phase in self.beside]
        return [(phase.phase, f"{phase.seconds:.3f}", share, f"{phase.entries:,}") for phase, share in parts]

    def warnings(self) -> list[str]:
        """What a reader has to know before using the numbers."""
        found = []
        share = next((phase.share for phase in self.phases if phase.phase == "other"), 0.0)
        framework = self.recorded.run.framework
        if share > OTHER_SHARE_LIMIT and framework != "recorded":  # nobody sees phases of a program from outside
            theirs = "" if framework == "mileage" else ": wrap it in run.phase(...)"
            found.append(f"{percent(share)} of the wall-clock is in no phase{theirs}")
        return found

    def as_dict(self) -> Record:
        """The report as plain JSON values."""
        recorded, run = self.recorded, self.recorded.run
        shares = {
            name: {
                each.phase: {"seconds": each.seconds, "share": each.share, "entries": each.entries} for each in phases
            }
            for name, phases in (("phases", self.phases), ("beside", self.beside))
        }
        return {
            "run_id": run.run_id,
            "name": run.name,
            "state": str(recorded.state),
            "reason": recorded.reason,
            "target": run.target,
            **recorded.metrics,
            "target_reached": self.target_reached,
            "before": None if recorded.before is None else recorded.before.as_dict(),
            "price_usd_per_hour": run.price_usd_per_hour,
            "instances": run.instances,
            "instance": run.instance,
            "checkpoints": recorded.end.checkpoints if recorded.end else len(recorded.checkpoints),
            **shares,
        }

    def _throughput(self) -> str:
        pace, steady = self.recorded.steps_per_second, self.recorded.steady_steps_per_second
        if pace is None or steady is None:
            return "no training time"
        if not pace:
            return "no steps were counted"
        return f"{pace:,.0f} env steps/s (steady {steady:,.0f})"

    def _reached(self) -> str:
        if self.recorded.state == EndState.CLAIMED:
            return "claimed, with no episodes to show for it"
        return "no target set" if self.target_reached is None else str(self.target_reached)

    def _success(self) -> str:
        success, mean_return = self.recorded.metric("success_rate"), self.recorded.metric("mean_return")
        if success is not None:
            return BY_NAME["success_rate"].spell(success)
        if mean_return is not None:
            return f"not defined (mean return {BY_NAME['mean_return'].spell(mean_return)})"
        return "not evaluated"


def report_lines(value: Callable[[str], float | None]) -> list[str]:
    """The lines of a report below its headline, from a metric's name to its value."""
    return [f"{metric.title}: {metric.spelled(value(metric.name))}" for metric in shown(Shown.REPORT)]


# --- A cloud's bill beside the ledger: what was charged, and what runs say they cost ---
_NEEDED = ("BilledCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd")


@dataclass(frozen=True)
class Charge:
    """One line of a bill."""

    start: float
    """Seconds since the epoch."""
    end: float
    billed: float
    """US dollars."""
    resource: str
    """Its id, or its name where it has none."""
    names: frozenset[str]
    """Everything it is known by: id, name, and the values of its tags."""


def read_bill(path: Path) -> list[Charge]:
    """The charges of a FOCUS file that are for a resource; those for none (support, taxes) are left out."""
    rows = csv_rows(path, _NEEDED, lambda column: f"{path} is no bill with FOCUS columns: {column} is missing")
    found = [_charge(row, f"{path}, line {number}") for number, row in rows]
    return [charge for charge in found if charge is not None]


def _charge(row: Cells, where: str) -> Charge | None:
    currency = row["BillingCurrency"] or ""
    if currency != "USD":
        raise UsageError(f"{where}: the bill is in {currency[:20] or 'no currency'}, and prices of runs are in USD")
    try:
        billed = float(row["BilledCost"] or "")
        start, end = (_seconds(row[f"ChargePeriod{name}"] or "") for name in ("Start", "End"))
    except ValueError:
        raise UsageError(f"{where}: cost and period must be a number and two times, as FOCUS writes them") from None
    if not math.isfinite(billed) or end <= start:
        raise UsageError(f"{where}: a charge must be finite, and its period must end after it starts")
    resource = row.get("ResourceId") or row.get("ResourceName") or ""
    if not resource:
        return None
    names = {resource, row.get("ResourceName") or "", *_tags(row.get("Tags") or "")}
    return Charge(start, end, billed, resource, frozenset(names - {""}))


def _seconds(text: str) -> float:
    time = datetime.datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()


def _tags(text: str) -> list[str]:
    try:
        tags = json.loads(text)
    except ValueError:
        return []
    return [str(value) for value in tags.values()] if isinstance(tags, dict) else []


@dataclass(frozen=True)
class BilledRun:
    """One run with both prices."""

    run: RecordedRun
    listed_usd: float | None
    """By the price that was frozen at launch; None without one."""
    billed_usd: float | None
    """Its part of the bill; None where the bill has nothing for it."""

    def as_dict(self) -> Record:
        """As plain JSON values."""
        return {
            "run_id": self.run.run_id, "name": self.run.run.name, "host": self.run.run.host,
            "wall_seconds": self.run.wall_seconds, "listed_usd": self.listed_usd, "billed_usd": self.billed_usd,
        }  # fmt: skip


@dataclass(frozen=True)
class Reconciliation:
    """Runs and a bill, side by side."""

    runs: tuple[BilledRun, ...]
    billed_usd: float
    """All charges for resources that runs used."""
    idle_usd: float
    """Of these, for time in which no run of the ledger ran."""
    foreign_usd: float
    """Charges for resources that no run used."""

    def as_dict(self) -> Record:
        """As plain JSON values."""
        names = ("billed_usd", "idle_usd", "foreign_usd")
        return {"runs": [run.as_dict() for run in self.runs]} | {name: getattr(self, name) for name in names}

    def table(self) -> Table:
        """A row for each run, and sentences about the rest."""
        rows = [
            (each.run.run_id, each.run.run.name, each.run.run.host, duration(each.run.wall_seconds),
             "no price set" if each.listed_usd is None else dollars(each.listed_usd),
             "not on the bill" if each.billed_usd is None else dollars(each.billed_usd),
             _ratio(each))
            for each in self.runs
        ]  # fmt: skip
        idle = self.idle_usd / self.billed_usd if self.billed_usd else 0.0
        note = (
            f"{dollars(self.billed_usd)} were billed for machines that runs used, {dollars(self.idle_usd)} of it "
            f"({percent(idle)}) for time without a run; {dollars(self.foreign_usd)} for machines without any."
        )
        header = ("run", "name", "host", "wall-clock", "listed", "billed", "billed / listed")
        return Table.of(header, rows, left=("run", "name", "host"), title="Bill and ledger", note=note)


def _ratio(each: BilledRun) -> str:
    return f"{each.billed_usd / each.listed_usd:.2f}" if each.billed_usd is not None and each.listed_usd else "–"


def reconcile(
    runs: Sequence[RecordedRun], charges: Iterable[Charge], resources: Mapping[str, str] | None = None
) -> Reconciliation:
    """Put every charge on the runs that it was for.

    Args:
        runs: those that have ended.
        charges: of the bill.
        resources: which resource of the bill a host is, where neither its name, its id nor a tag says so.
    """
    billed: dict[str, float] = {}
    on_machines = idle = foreign = 0.0
    for charge in charges:
        used = {}
        there = [run for run in runs if _is_on(run, charge, resources or {})]
        for run in there:
            seconds = min(charge.end, _end(run)) - max(charge.start, run.run.started_at)
            if seconds > 0:
                used[run.run_id] = (seconds, run)
        if not there:
            foreign += charge.billed
            continue
        on_machines += charge.billed
        busy = _union(charge, [run for _, run in used.values()])
        part = charge.billed * busy / (charge.end - charge.start)
        idle += charge.billed - part
        total = sum(seconds for seconds, _ in used.values())
        for run_id, (seconds, _) in used.items():
            billed[run_id] = billed.get(run_id, 0.0) + part * seconds / total
    rows = tuple(BilledRun(run, (run.cost_usd or 0.0) if run.priced else None, billed.get(run.run_id)) for run in runs)
    return Reconciliation(rows, on_machines, idle, foreign)


def _is_on(run: RecordedRun, charge: Charge, resources: Mapping[str, str]) -> bool:
    """Whether `run` used the resource that `charge` is for."""
    known = resources.get(run.run.host, run.run.host)
    return known in charge.names or run.run_id in charge.names


def _end(run: RecordedRun) -> float:
    return run.run.started_at + run.wall_seconds


def _union(charge: Charge, runs: Sequence[RecordedRun]) -> float:
    """Seconds of the charge's period in which at least one of `runs` ran."""
    busy, until = 0.0, charge.start
    for run in sorted(runs, key=lambda run: run.run.started_at):
        start, end = max(run.run.started_at, until), min(_end(run), charge.end)
        if end > start:
            busy += end - start
            until = end
    return busy
