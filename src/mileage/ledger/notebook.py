"""A run in a notebook: its curve and figures, its checkpoints as rows, its curve as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mileage.charts.bars import phase_bars
from mileage.charts.curves import Axis, Curve, curve_chart
from mileage.charts.markup import Html, tag
from mileage.charts.notebook import frame, new_axes, shown
from mileage.charts.palette import ARMS
from mileage.charts.scales import compact
from mileage.ledger.rows import Checkpoint
from mileage.metrics import METRICS, dollars, duration, gigabytes
from mileage.tables import Table
from mileage.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from mileage.ledger.runs import RecordedRun

_X = {
    "steps": ("step", "environment steps"),
    "seconds": ("wall_seconds", "seconds"),
    "dollars": ("cost_usd", "dollars"),
}


def evaluated(rows: Sequence[Checkpoint]) -> list[tuple[Checkpoint, float]]:
    """The evaluated checkpoints with the number that the target looks at, else the mean return."""
    values = ((row, row.mean_return if row.target_value is None else row.target_value) for row in rows)
    return [(row, value) for row, value in values if value is not None]


def _threshold(run: RecordedRun) -> float | None:
    from mileage._errors import UsageError
    from mileage.ledger.targets import Target

    try:
        return None if run.target is None else Target.parse(run.target).threshold
    except UsageError:
        return None


def run_html(run: RecordedRun) -> str:
    """What a notebook shows of a run."""
    title = f"{plain(run.algorithm or run.run.name, 60)} on {plain(run.env or '–', 60)}{run.seed_words}"
    state = f"{str(run.state).replace('_', ' ')}{plain(run.target_words, 60)}, run {run.run_id}"
    points = tuple((float(row.step), value) for row, value in evaluated(run.checkpoints))
    parts = [tag("h4", title), tag("p", state)]
    if points:
        reached = tuple((float(r.step), value) for r, value in evaluated(run.checkpoints) if r.target_met)[:1]
        curve = Curve(title, points, reached=reached)
        axes = Axis("environment steps", compact), Axis("held-out value", "{:,.4g}".format)
        parts.append(curve_chart([curve], *axes, target=_threshold(run)))
    if run.phases:
        parts.append(phase_bars([(run.seed_words.removeprefix(", ") or "run", run.phases)]))
    rows = [
        (
            metric.title,
            "–" if metric.priced and not run.priced else metric.spelled(run.metric(metric.name)),
            "" if metric.spell in (duration, dollars, gigabytes) else metric.unit,
        )
        for metric in METRICS
    ]
    table = Table.of(("", "value", "unit"), rows, left=("", "unit"))
    return shown(*parts, Html(table.html()))


def run_frame(run: RecordedRun) -> DataFrame:
    """One row per checkpoint; all of a checkpoint's columns."""
    return frame((row._asdict() for row in run.checkpoints), Checkpoint._fields)


def run_plot(run: RecordedRun, axes: Axes | None, against: str) -> Axes:
    """The learning curve with its target."""
    from mileage._errors import UnknownNameError

    if against not in _X:
        raise UnknownNameError("axis", against, _X)
    field, title = _X[against]
    drawn = new_axes(axes)
    points = [(getattr(row, field), value) for row, value in evaluated(run.checkpoints)]
    seed = run.seed_words.removeprefix(", ")
    drawn.plot([x for x, _ in points], [y for _, y in points], marker="o", color=ARMS[0], label=seed)
    threshold = _threshold(run)
    if threshold is not None:
        drawn.axhline(threshold, color="#b42318", linestyle="--", linewidth=1)
    drawn.set_xlabel(title)
    drawn.set_ylabel("held-out value")
    return drawn
