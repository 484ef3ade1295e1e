"""The cost report of one run: six lines that belong together, and where the time went.

Every number keeps its denominator: throughput uses training seconds, wall-clock to target uses training plus
evaluation, cost uses all billable time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mileage._records import Record
from mileage.ledger.prices import NO_PRICE
from mileage.ledger.rows import EndState, Phase
from mileage.ledger.runs import RecordedRun
from mileage.metrics import BY_NAME, OTHER_SHARE_LIMIT, RunMetric, Shown, dollars, percent, shown


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
