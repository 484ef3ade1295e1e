"""What objects show in a notebook: markup, data frames, axes of matplotlib; and a run's curve and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mileage.errors import MissingExtraError
from mileage.ledger.rows import Checkpoint
from mileage.metrics import METRICS, dollars, duration, gigabytes
from mileage.report.axes import compact
from mileage.report.bars import Axis, Curve, curve_chart, ordered_phases, phase_bars, phase_class
from mileage.report.markup import ARMS, PHASES, Child, Html, chart_style, tag, theme
from mileage.tables import Table, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from pandas import DataFrame

    from mileage.ledger.runs import RecordedRun


_ROOT = ".mileage"
_STYLE = (
    f"{_ROOT}{{color:var(--ink);max-width:56rem}}{_ROOT} table{{font-size:.9em}}{_ROOT} .number{{text-align:right}}"
    f"{_ROOT} .chart{{max-width:46rem}}{_ROOT} .verdict{{font-weight:600}}"
)


def shown(*parts: Child) -> str:
    """Markup with all that it needs to look like the pages do."""
    return str(tag("div", tag("style", Html(theme(_ROOT) + chart_style() + _STYLE)), *parts, class_=_ROOT[1:]))


def frame(records: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> DataFrame:
    """Rows by name as a data frame of pandas."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("to_frame", "notebook") from None
    return pandas.DataFrame(list(records), columns=None if columns is None else list(columns))


def new_axes(axes: Axes | None) -> Axes:
    """`axes`, or those of a new figure."""
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingExtraError("plot", "notebook") from None
    made: Axes = pyplot.subplots(layout="constrained")[1]
    return made


def draw_phases(axes: Axes, rows: Sequence[tuple[str, Mapping[str, float]]]) -> Axes:
    """Seconds per phase as stacked bars, a row each."""
    starts = [0.0] * len(rows)
    for name in ordered_phases([phases for _, phases in rows]):
        spent = [phases.get(name, 0.0) for _, phases in rows]
        colour = PHASES[phase_class(name).removeprefix("p-")]
        axes.barh(range(len(rows)), spent, left=starts, color=colour, label=name, height=0.6)
        starts = [start + each for start, each in zip(starts, spent, strict=True)]
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.legend(fontsize=7)
    return axes


def draw_intervals(
    axes: Axes, rows: Sequence[tuple[str, float | None, float | None, float | None]], title: str
) -> Axes:
    """Values with their intervals, a row each: name, value, low, high."""
    for index, (_, value, low, high) in enumerate(rows):
        colour = ARMS[index % len(ARMS)]
        if value is not None:
            axes.plot([value], [index], "o", color=colour)
            if low is not None:
                axes.plot([low, value if high is None else high], [index] * 2, color=colour)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.invert_yaxis()
    axes.set_xlabel(title)
    return axes


# --- A run in a notebook: its curve and figures, its checkpoints as rows, its curve as a plot ---
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
    from mileage.errors import UsageError
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
    from mileage.errors import UnknownNameError

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
