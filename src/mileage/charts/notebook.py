"""What objects show of themselves in a notebook: markup with its own style, a data frame, axes of matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mileage._errors import MissingExtraError
from mileage.charts.bars import ordered_phases, phase_class
from mileage.charts.markup import Child, Html, tag
from mileage.charts.palette import ARMS, PHASES, chart_style, theme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from pandas import DataFrame

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
