"""The charts of a report for papers: PDF, SVG and PNG by matplotlib, in colours that everybody can tell apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mileage.errors import MissingExtraError
from mileage.metrics import dollars, duration
from mileage.records import Record
from mileage.report import curves
from mileage.report.arms import Exam, run_costs
from mileage.report.axes import DASHES
from mileage.report.bars import ordered_phases, phase_class
from mileage.report.markup import ARMS, PHASES
from mileage.tables import written_to

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("pdf", "svg", "png")
_WIDTH, _HEIGHT = 5.5, 3.2  # inches: a column of text
_TICKS = 5  # at most, on the axis below: amounts in words are wide
_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "mileage",
    "savefig.dpi": 200,
}


def write_figures(exams: Sequence[Exam], directory: Path) -> list[Path]:
    """Write every chart of every exam as PDF, SVG and PNG, and return the files."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("--figures", "figures") from None
    written = []
    with written_to(directory, "--figures"), rc_context(_STYLE):
        directory.mkdir(exist_ok=True)
        for number, exam in enumerate(exams):
            prefix = f"{number + 1}-" if len(exams) > 1 else ""
            for name, draw in _charts(exam).items():
                figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
                draw(figure.subplots())
                written += _saved(figure, directory / f"{prefix}{_slug(exam.title)}-{name}")
    return written


def _slug(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-").lower()[:60] or "runs"


def _saved(figure: Figure, stem: Path) -> list[Path]:
    files = []
    for kind in KINDS:
        path = stem.with_name(f"{stem.name}.{kind}")
        # The same figure twice is the same file: no date in it.
        figure.savefig(path, metadata={"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind))
        files.append(path)
    return files


def _charts(exam: Exam) -> dict[str, Callable[[Axes], None]]:
    found: dict[str, Callable[[Axes], None]] = {}
    if any(curves.evaluated(run) for run in exam.runs):
        for way in curves.ways(exam):
            found[f"curve-{way.key}"] = lambda axes, way=way: draw_curves(axes, exam, way)  # type: ignore[misc]
    if exam.first.target is not None and any(arm.ended for arm in exam.arms):
        found["cost"] = lambda axes: draw_costs(axes, exam)
    if any(run.phases for run in exam.runs):
        found["phases"] = lambda axes: draw_phases(axes, exam)
    if any(curves.profile(arm).scores for arm in exam.arms):
        found["profile"] = lambda axes: draw_profiles(axes, exam)
    return found


def _line(index: int) -> Record:
    dash = DASHES[index % len(DASHES)]
    style: object = "-" if dash is None else (0, tuple(float(each) / 2 for each in dash.split()))
    return {"color": ARMS[index % len(ARMS)], "linestyle": style}


def draw_curves(axes: Axes, exam: Exam, way: curves.CurveAxis) -> None:
    """Learning curves with their bands, the target, and where each seed met it."""
    for index, arm in enumerate(exam.arms):
        curve, style = curves.curve(arm, way), _line(index)
        if not curve.points:
            continue
        xs, ys = zip(*curve.points, strict=True)
        axes.plot(xs, ys, linewidth=1.8, label=curve.name, **style)
        if curve.low:
            axes.fill_between(xs, curve.low, curve.high, color=style["color"], alpha=0.18, linewidth=0)
        for seed in curve.seeds:
            axes.plot(*zip(*seed, strict=True), color=style["color"], linewidth=0.6, alpha=0.4)
        if curve.reached:
            axes.plot(*zip(*curve.reached, strict=True), "D", markersize=4, color=style["color"], zorder=3)
    if exam.threshold is not None:
        axes.axhline(exam.threshold, color="#b42318", linestyle="--", linewidth=1)
    axes.set_xlabel(way.axis.title)
    axes.set_ylabel(exam.measure)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=_TICKS)
    axes.xaxis.set_major_formatter(lambda value, _: way.axis.spell(value))
    axes.legend(fontsize=7)


def draw_costs(axes: Axes, exam: Exam) -> None:
    """Expected cost to target with its interval, and single runs below it."""
    for index, arm in enumerate(exam.arms):
        if not arm.ended:
            continue
        colour, costs, expected = ARMS[index % len(ARMS)], run_costs(arm.ended, exam.unit), arm.expected(exam.unit)
        if expected is not None and expected.value is not None:
            axes.plot([expected.value], [index], "o", color=colour)
            if expected.interval is not None:
                low, high = expected.interval.low, expected.interval.as_list()[1]
                axes.plot([low, expected.value if high is None else high], [index] * 2, color=colour, linewidth=1.8)
        values = costs.costs[costs.reached]
        axes.plot(values, [index + 0.25] * len(values), ".", color=colour, alpha=0.7, markersize=5)
        if arm.failed:  # a failure is not cheap for having spent little
            edge = axes.get_yaxis_transform()
            axes.plot([1.0], [index + 0.25], "x", color=colour, markersize=5, transform=edge, clip_on=False)
            axes.text(0.98, index + 0.25, f"{arm.failed} failed", transform=edge, ha="right", va="center", fontsize=7)
    axes.set_yticks(range(len(exam.arms)), [f"{arm.label}\n{arm.seeds}" for arm in exam.arms], fontsize=7)
    axes.invert_yaxis()
    spelled = dollars if exam.unit == "USD" else duration
    axes.set_xlabel(f"expected {'cost' if exam.unit == 'USD' else 'time'} to target, 95 % interval")
    axes.locator_params(axis="x", nbins=_TICKS)
    axes.xaxis.set_major_formatter(lambda value, _: spelled(value))


def draw_phases(axes: Axes, exam: Exam) -> None:
    """Seconds per phase, mean over the runs of an arm."""
    shown = [arm for arm in exam.arms if any(run.phases for run in arm.runs)]
    names = ordered_phases([run.phases for arm in shown for run in arm.runs])
    starts = [0.0] * len(shown)
    for name in names:
        spent = [sum(run.phases.get(name, 0.0) for run in arm.runs) / len(arm.runs) for arm in shown]
        colour = PHASES[phase_class(name).removeprefix("p-")]
        axes.barh(range(len(shown)), spent, left=starts, color=colour, label=name, height=0.6)
        starts = [start + each for start, each in zip(starts, spent, strict=True)]
    axes.set_yticks(range(len(shown)), [arm.label for arm in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("seconds per run")
    axes.legend(fontsize=6, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.22))


def draw_profiles(axes: Axes, exam: Exam) -> None:
    """Share of held-out episodes that returned at least so much."""
    for index, arm in enumerate(exam.arms):
        profile, style = curves.profile(arm), _line(index)
        if not profile.scores:
            continue
        axes.plot(profile.scores, profile.shares, linewidth=1.8, label=profile.name, **style)
        if profile.low:
            axes.fill_between(profile.scores, profile.low, profile.high, color=style["color"], alpha=0.18, linewidth=0)
    axes.set_xlabel("return of a held-out episode")
    axes.set_ylabel("share of episodes")
    axes.legend(fontsize=7)
