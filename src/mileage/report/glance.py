"""A run at a glance, in lines of text: its curve, its phases, how far it is and how long it has left."""

from __future__ import annotations

from mileage.charts.text import phase_bar, sparkline
from mileage.ledger.notebook import evaluated
from mileage.ledger.runs import RecordedRun
from mileage.metrics import dollars, duration


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
