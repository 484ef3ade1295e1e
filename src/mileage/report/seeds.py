"""Runs over seeds: tables of them, at a glance or in full."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mileage.ledger.runs import RecordedRun
from mileage.measure import ExpectedCost, expected_cost
from mileage.metrics import Shown, Totals, dollars, duration, percent, shown
from mileage.records import Record
from mileage.report.arms import run_costs
from mileage.report.bars import phase_bar, sparkline
from mileage.report.cost import CostReport, report_lines
from mileage.report.markup import Html, tag
from mileage.report.notebook import evaluated, frame, new_axes
from mileage.report.notebook import shown as shown_html
from mileage.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True)
class SeedPanel:
    """Runs that differ in nothing but their seed."""

    runs: tuple[RecordedRun, ...]
    expected: ExpectedCost | None
    """Expected seconds to target, failed runs counted; None without a target."""

    @classmethod
    def of(cls, runs: Sequence[RecordedRun]) -> SeedPanel:
        """The panel of `runs`; costs are those that comparisons use."""
        expected = expected_cost(run_costs(runs, "s")) if runs[0].target is not None else None
        return cls(tuple(runs), expected)

    @property
    def reports(self) -> tuple[CostReport, ...]:
        """One per run."""
        return tuple(CostReport(run) for run in self.runs)

    def _repr_html_(self) -> str:
        said = [tag("p", line) for line in self._summary()]
        return shown_html(Html(self._run_table().html()), *said, Html(self._phase_table().html()))

    def to_frame(self) -> DataFrame:
        """The runs as a data frame of pandas, one row each with all metrics."""
        return frame({"seed": run.seed, "state": str(run.state), **run.metrics} for run in self.runs)

    def plot(self, axes: Axes | None = None, *, against: str = "steps") -> Axes:
        """The learning curves of all seeds as a plot of matplotlib, against `steps`, `seconds` or `dollars`."""
        drawn = new_axes(axes)
        for run in self.runs:
            run.plot(drawn, against=against)
        return drawn

    def as_dict(self) -> Record:
        """The panel as plain JSON values."""
        first = self.runs[0]
        return {
            "algorithm": first.algorithm,
            "env": first.env,
            "panel_id": first.panel_id,
            "target": first.target,
            "config": dict(first.config),
            "runs": [_run_dict(run) for run in self.runs],
            "aggregate": self._aggregate(),
        }

    def _aggregate(self) -> Record:
        finals = [run.final.mean_return for run in self.runs if run.final is not None]
        to_target = [run.wall_to_target for run in self.runs if run.wall_to_target is not None]
        interval = None if self.expected is None else self.expected.interval
        together = Totals.together([run.totals for run in self.runs])
        return {
            "runs": len(self.runs),
            "reached": sum(run.reached for run in self.runs),
            "failed": None if self.expected is None else sum(not run.reached for run in self.runs),
            "mean_return": statistics.fmean(finals) if finals else None,
            "median_wall_to_target": statistics.median(to_target) if to_target else None,
            "expected_seconds_to_target": None if self.expected is None else self.expected.value,
            "expected_seconds_interval": None if interval is None else interval.as_list(),
            "cost_usd": sum(run.cost_usd or 0.0 for run in self.runs),
            **{metric.name: metric.of(together) for metric in shown(Shown.SEEDS)},
        }

    def print(self) -> None:
        """Show a table of the runs, the cost report of one, and the aggregate."""
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=True)  # what does not fit goes on below, uncut
        if len(self.runs) > 1:
            console.print(self._run_table().terminal())
            for line in self._summary():
                console.print(line, markup=False)
        else:
            report = self.reports[0]
            for line in (*report.headline(), *report.details(), *(f"warning: {text}" for text in report.warnings())):
                console.print(line, markup=False)
        console.print(self._phase_table().terminal())

    def _run_table(self) -> Table:
        priced = self.runs[0].priced
        judged = any(run.metric("success_rate") is not None for run in self.runs)
        more, cost = ["success"] if judged else [], ["cost"] if priced else []
        header = ("seed", "ended", "steps", "to target", *more, "mean return", "steps/s", "steady", *cost)
        rows = []
        for run in self.runs:
            success = run.metric("success_rate")
            cells = [
                str(run.seed),
                run.state.replace("_", " "),
                f"{run.steps:,}",
                "–" if run.wall_to_target is None else duration(run.wall_to_target),
                *(["–" if success is None else f"{success:.2f}"] if judged else []),
                "–" if run.final is None else f"{run.final.mean_return:.1f}",
                f"{run.steps_per_second or 0.0:,.0f}",
                f"{run.steady_steps_per_second or 0.0:,.0f}",
            ]
            rows.append([*cells, *([dollars(run.cost_usd or 0.0)] if priced else [])])
        return Table.of(header, rows, left=("ended",), title=f"{self.runs[0].algorithm} on {self.runs[0].env}")

    def _summary(self) -> list[str]:
        total = self._aggregate()
        lines = []
        if self.expected is not None:
            reached = f"reached by {total['reached']} of {total['runs']} runs, {total['failed']} failed"
            lines.append(f"target {self.runs[0].target}: {reached}")
        if self.expected is not None and self.expected.value is not None:
            lines.append(f"wall-clock to target: median {duration(total['median_wall_to_target'])}")
            lines.append(f"expected cost to target: {self._expected()}")
        elif self.expected is not None:
            lines.append(f"expected cost to target: not reached; {duration(self.expected.spent)} spent")
        if self.runs[0].priced:
            lines.append(f"total compute cost: {dollars(total['cost_usd'])}")
        return lines + report_lines(total.get)

    def _expected(self) -> str:
        assert self.expected is not None
        assert self.expected.value is not None
        per_second = self.runs[0].run.price_usd_per_hour / 3600.0
        texts = [duration(self.expected.value)]
        if per_second:
            texts.insert(0, dollars(self.expected.value * per_second))
        interval = self.expected.interval
        if interval is None:
            return f"{' or '.join(texts)} ({self.expected.statement})"
        span = interval.spelled(duration)
        if per_second:
            span = f"{interval.spelled(lambda seconds: dollars(seconds * per_second))}, {span}"
        return f"{' or '.join(texts)} (95 %: {span})"

    def _phase_table(self) -> Table:
        wall = sum(run.wall_seconds for run in self.runs)
        seconds: dict[str, float] = {}
        for run in self.runs:
            for phase, spent in run.phases.items():
                seconds[phase] = seconds.get(phase, 0.0) + spent
        ordered = sorted(seconds.items(), key=lambda item: (item[0] == "other", -item[1]))
        rows = [(phase, f"{spent:.3f}", percent(spent / wall)) for phase, spent in ordered]
        return Table.of(("phase", "seconds", "share"), rows, left=("phase",), title="Where the time went")


def _run_dict(run: RecordedRun) -> Record:
    points = [(point.steps, point.wall_seconds, point.evaluation.mean_return) for point in run.evaluations]
    evaluations = [dict(zip(("steps", "wall_seconds", "mean_return"), point, strict=True)) for point in points]
    return {**CostReport(run).as_dict(), "seed": run.seed, "checkpoint": run.checkpoint, "evaluations": evaluations}


# --- A run at a glance, in lines of text: its curve, its phases, how far it is and how long it has left ---
def curve_lines(run: RecordedRun, width: int = 40) -> list[str]:
    """The held-out values over the run as a sparkline; nothing before the first."""
    values = [value for _, value in evaluated(run.checkpoints)]
    if not values:
        return []
    spark = sparkline(values, width)
    count = f"{len(values):,} evaluation{'' if len(values) == 1 else 's'}"
    return [f"learning curve: {spark} {values[0]:,.4g} → {values[-1]:,.4g} ({count})"]


def phase_lines(run: RecordedRun, width: int = 60) -> list[str]:
    """Where the time went as a bar, and which part is which."""
    return [line for line in phase_bar(run.phases, width) if line]


def seconds_left(run: RecordedRun) -> float | None:
    """How long a run that goes on has left at most, if it keeps its pace; None where nobody knows."""
    budget, done = run.run.step_budget, run.totals.env_steps
    if run.end is not None or not budget or done <= 0:
        return None
    return run.wall_seconds * max(budget - done, 0) / done


def progress_line(run: RecordedRun) -> str:
    """Steps, pace, dollars so far and time left."""
    said = [f"{run.steps:,} steps in {duration(run.wall_seconds)}"]
    pace = run.steady_steps_per_second
    said += [] if pace is None else [f"{pace:,.0f} steps/s"]
    said += [dollars(run.metric("cost_usd") or 0.0) + (" so far" if run.end is None else "")] if run.priced else []
    left = seconds_left(run)
    if left is not None:
        share = min(run.totals.env_steps / (run.run.step_budget or 1), 1.0)
        said.append(f"{100 * share:.0f} % of the step budget, at most {duration(left)} left")
    return ", ".join(said)


def watch_lines(run: RecordedRun, width: int = 80) -> list[str]:
    """Everything that `mileage watch` shows of a run."""
    row = run.run
    title = f"{row.run_id}  {row.name}{run.seed_words}"
    state = f"{str(run.state).replace('_', ' ')}{f' ({run.reason})' if run.reason else ''}{run.target_words}"
    return [title, state, progress_line(run), *curve_lines(run, width // 2), *phase_lines(run, min(width, 60))]
