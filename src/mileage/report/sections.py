"""What a page says about the arms of one exam, section by section."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable

from mileage.ledger.rows import EndState
from mileage.ledger.runs import RecordedRun
from mileage.measure import Estimate, ExpectedCost
from mileage.metrics import BY_NAME, METRICS, dollars, duration, percent
from mileage.report import curves as learning
from mileage.report.arms import Exam, ReportArm, run_costs, setting
from mileage.report.axes import colour, compact, legend, seconds, usd
from mileage.report.bars import (
    Axis,
    BarSpan,
    curve_chart,
    interval_chart,
    ordered_phases,
    phase_bars,
    phase_class,
    phases_over_time,
    profile_chart,
)
from mileage.report.document import Facts, Figures, Folded, Grid, PageFigure, Part, Picture, Section, Tabs, Words
from mileage.report.markup import Html, join
from mileage.tables import Cell, Column, Table, plain

CURVES = "Learning curve"
_WHY_COST = (
    "Expected cost to target: what all runs cost up to their target or their stop, failed ones included, over the "
    "number that reached it. Interval: 95 %, posterior with Beta(1/2, 1/2) on success, log-normal cost given success."
)
_WHY_IQM = "Interquartile mean over seeds with its 95 % stratified bootstrap interval."


def spell(unit: str) -> Callable[[float], str]:
    """How an amount of `unit` is written."""
    return dollars if unit == "USD" else duration


def exam_sections(exam: Exam, curve: Section | None = None) -> list[Section]:
    """All sections that there is something to say for, in the order of a report; `curve` in place of all curves."""
    made = (
        overview(exam),
        curve or curves(exam),
        costs(exam),
        phases(exam),
        profiles(exam),
        memory(exam),
        seeds(exam),
    )
    return [section for section in made if section is not None]


def overview(exam: Exam) -> Section:
    """The numbers that stand out, and why they are so."""
    parts: list[Part] = []
    if len(exam.arms) == 1:
        parts.append(Figures(tuple(_figures(exam.arms[0], exam.unit))))
    else:
        parts.append(Grid(arm_table(exam)))
    parts.append(why())
    return Section(exam.title, parts)


def _figures(arm: ReportArm, unit: str) -> list[PageFigure]:
    ended = len(arm.ended)
    found = []
    if arm.first.target is not None and ended:
        mood = "good" if arm.reached == ended else "bad" if arm.reached == 0 else "wait"
        found.append(PageFigure("reached the target", f"{arm.reached} of {ended}", f"{arm.failed} failed", mood))
    expected = arm.expected(unit)
    if expected is not None:
        found.append(PageFigure("expected cost to target", *_expected_words(expected, unit)))
    times = [run.wall_to_target for run in arm.ended if run.wall_to_target is not None]
    if times:
        found.append(
            PageFigure("wall-clock to target", duration(statistics.median(times)), f"median of {len(times)} runs")
        )
    if arm.iqm_return is not None:
        found.append(PageFigure("held-out return", *estimate_words(arm.iqm_return, "{:,.1f}".format)))
    pace = [value for run in arm.ended if (value := run.steps_per_second) is not None]
    steady = [value for run in arm.ended if (value := run.steady_steps_per_second) is not None]
    if pace and steady:
        note = f"steps/s of training, median; steady {statistics.median(steady):,.0f}"
        found.append(PageFigure("throughput", f"{statistics.median(pace):,.0f}", note))
    total = sum(run.metric("cost_usd" if unit == "USD" else "wall_seconds") or 0.0 for run in arm.runs)
    found.append(PageFigure("spent in all", spell(unit)(total), arm.seeds))
    return found


def _expected_words(expected: ExpectedCost, unit: str) -> tuple[str, str]:
    words = spell(unit)
    if expected.value is None:
        return "not reached", f"{words(expected.spent)} spent; {expected.statement}"
    if expected.interval is None:
        return words(expected.value), expected.statement
    return words(expected.value), f"95 %: {expected.interval.spelled(words)}"


def estimate_words(estimate: Estimate, form: Callable[[float], str]) -> tuple[str, str]:
    """A value, and its interval or why there is none."""
    value = "–" if estimate.value is None else form(estimate.value)
    if estimate.interval is None:
        return value, estimate.statement
    return value, f"IQM; 95 %: {estimate.interval.spelled(form)}"


def arm_table(exam: Exam) -> Table:
    """One row per arm."""
    rows = []
    for arm in exam.arms:
        expected = arm.expected(exam.unit)
        value, note = ("–", "") if expected is None else _expected_words(expected, exam.unit)
        returned, interval = ("–", "") if arm.iqm_return is None else estimate_words(arm.iqm_return, "{:,.1f}".format)
        rows.append((arm.label, len(arm.runs), arm.reached, arm.failed, arm.running, value, note, returned, interval))
    header = (
        "arm",
        "seeds",
        "reached",
        "failed",
        "running",
        "expected cost",
        "its interval",
        "return",
        "its interval ",
    )
    return Table.of(header, rows, left=("arm", "its interval", "its interval "))


def why() -> Folded:
    """What every number is counted in."""
    rows = [
        (metric.title, metric.unit, (metric.of.__doc__ or "").strip().rstrip("."))
        for metric in METRICS
        if metric.of.__name__ != "<lambda>" or metric.unit
    ]
    table = Table.of(
        ("number", "unit and denominator", "what it is"), rows, left=("number", "unit and denominator", "what it is")
    )
    return Folded("Why these numbers", (Words(_WHY_COST, "small"), Words(_WHY_IQM, "small"), Grid(table)))


def curves(exam: Exam) -> Section | None:
    """Learning curves against steps, seconds and dollars."""
    if not any(learning.evaluated(run) for run in exam.runs):
        return None
    tabs = tuple((way.key, curve_picture(exam, way)) for way in learning.ways(exam))
    return Section(CURVES, (Tabs(f"x{_key(exam)}", "against", tabs),))


def curve_picture(exam: Exam, way: learning.CurveAxis) -> Picture:
    """The learning curves of all arms against one thing."""
    drawn = [learning.curve(arm, way) for arm in exam.arms]
    svg = curve_chart(drawn, way.axis, Axis(exam.measure, "{:,.4g}".format), target=exam.threshold)
    late = "" if way.key == "steps" else learning.startup_words(exam)
    return Picture(svg, late + _reading(exam), legend([(colour(index), each.name) for index, each in enumerate(drawn)]))


def _key(exam: Exam) -> str:
    return hashlib.sha256(exam.first.run_id.encode()).hexdigest()[:8]


def _reading(exam: Exam) -> str:
    diamonds = "Diamonds: first evaluation of a seed that met the target. " if exam.threshold is not None else ""
    several = any(len(arm.runs) > 1 for arm in exam.arms)
    band = f"{learning.BAND[0].upper()}{learning.BAND[1:]}." if several else "One seed: a line and no band."
    few = [arm.label for arm in exam.arms if 1 < len(arm.runs) < 3]
    less = f" Too few seeds for a band: {', '.join(few)}." if few else ""
    return f"{diamonds}{band}{less}"


def costs(exam: Exam) -> Section | None:
    """Expected cost to target of every arm, with its interval and its runs."""
    if exam.first.target is None or not any(arm.ended for arm in exam.arms):
        return None
    spans = []
    for arm in exam.arms:
        if not arm.ended:
            spans.append(BarSpan(arm.label, None, said=arm.seeds))
            continue
        found = run_costs(arm.ended, exam.unit)
        expected = arm.expected(exam.unit)
        assert expected is not None
        value, note = _expected_words(expected, exam.unit)
        ends = (None, None) if expected.interval is None else expected.interval.as_list()
        samples = tuple(zip((float(cost) for cost in found.costs), (bool(each) for each in found.reached), strict=True))
        spans.append(BarSpan(arm.label, expected.value, ends[0], ends[1], samples, f"{value} ({note}); {arm.seeds}"))
    title = "expected cost to target, dollars" if exam.unit == "USD" else "expected time to target, seconds"
    svg = interval_chart(spans, title, usd if exam.unit == "USD" else seconds)
    rows = [(span.name, span.said) for span in spans]
    caption = (
        "Large dot and line: expected cost and its 95 % interval; a line to the edge has no upper bound. Small marks: "
        "single runs up to their target; crosses at the edge: runs that failed, whatever they spent."
    )
    return Section(
        "Cost to target", (Picture(svg, caption), Grid(Table.of(("arm", "cost"), rows, left=("arm", "cost"))))
    )


def phases(exam: Exam) -> Section | None:
    """Where the time went, per run; of a single run also over time."""
    rows = []
    for arm in exam.arms:
        timed = [run for run in arm.runs if run.phases]
        totals: dict[str, float] = {}
        for run in timed:
            for name, spent in run.phases.items():
                totals[name] = totals.get(name, 0.0) + spent / len(timed)
        if totals:
            rows.append((arm.label, totals))
    if not rows:
        return None
    names = [(phase_class(name), name) for name in ordered_phases([totals for _, totals in rows])]
    caption = "Exclusive phases of the wall-clock, mean over the runs of an arm; they add up to it."
    parts: list[Part] = [Picture(phase_bars(rows), caption, legend(names, "box"))]
    single = exam.runs[0] if len(exam.runs) == 1 else None
    readings = [] if single is None else learning.phase_readings(single)
    if len(readings) > 2:
        parts.append(Picture(phases_over_time(readings), "Between one reading of the run's clock and the next."))
    wall = [sum(totals.values()) or math.inf for _, totals in rows]
    cells: list[tuple[Cell, ...]] = [
        (
            name,
            *(
                f"{totals.get(name, 0.0):.3f} s, {percent(totals.get(name, 0.0) / whole)}"
                for (_, totals), whole in zip(rows, wall, strict=True)
            ),
        )
        for _, name in names
    ]
    header = [Column("phase"), *(Column(label, right=True) for label, _ in rows)]
    return Section("Where the time went", (*parts, Folded("As a table", (Grid(Table.of(header, cells)),))))


def profiles(exam: Exam) -> Section | None:
    """Performance profile over held-out episodes."""
    found = [learning.profile(arm) for arm in exam.arms]
    if not any(each.scores for each in found):
        return None
    by_return = exam.target is None or "return" in str(exam.target.aggregate)
    svg = profile_chart(
        found, Axis("return of a held-out episode", compact), target=exam.threshold if by_return else None
    )
    names = [(colour(index), each.name if each.scores else "") for index, each in enumerate(found)]
    caption = (
        "Share of held-out episodes that returned at least so much, over all seeds, at the evaluation that a run is "
        "judged by; band: 95 % interval by bootstrap over seeds."
    )
    return Section("Performance profile", (Picture(svg, caption, legend(names)),))


def memory(exam: Exam) -> Section | None:
    """Peak memory over the time of the run that used most."""
    found = [learning.memory(arm) for arm in exam.arms]
    if not any(line.points for line in found):
        return None
    svg = curve_chart(
        found, Axis("wall-clock since the start", seconds), Axis("peak memory, GB", "{:.3g}".format), from_zero=True
    )
    names = [(colour(index), each.name if each.points else "") for index, each in enumerate(found)]
    caption = "Highest resident memory of the process tree so far, of the run of each arm that used most."
    return Section("Memory", (Picture(svg, caption, legend(names)),))


def seeds(exam: Exam) -> Section:
    """One row per run."""
    return Section("Seeds", tuple(Grid(seed_table(arm, exam.unit)) for arm in exam.arms))


def seed_table(arm: ReportArm, unit: str) -> Table:
    """The runs of an arm."""
    names = (
        "env_steps",
        "wall_seconds",
        "wall_to_target",
        "success_rate",
        "mean_return",
        "steps_per_second",
        "steady_steps_per_second",
        *(("cost_usd",) if unit == "USD" else ()),
        "peak_rss_gb",
    )
    metrics = [BY_NAME[name] for name in names if any(run.metric(name) is not None for run in arm.runs)]
    rows = [
        (
            "–" if run.seed is None else str(run.seed),
            run.run_id,
            state_words(run),
            *(each.spelled(run.metric(each.name)) for each in metrics),
        )
        for run in arm.runs
    ]
    header = [
        Column("seed", right=True),
        Column("run"),
        Column("ended"),
        *(Column(m.heading, right=True) for m in metrics),
    ]
    return Table.of(header, rows, title=f"{arm.label}: {arm.seeds}")


def state_words(run: RecordedRun) -> str:
    """How a run ended, and whether it counts."""
    reason = f": {plain(run.reason, 80)}" if run.reason and run.state in (EndState.FAILED, EndState.STOPPED) else ""
    return str(run.state).replace("_", " ") + (", void" if run.voided else "") + reason


def rules(exam: Exam) -> Section:
    """What holds for all runs, and what each ran with."""
    run = exam.first.run
    panel = json.loads(run.panel) if run.panel else {}
    count = len(panel.get("seeds", ())) if isinstance(panel, dict) else 0
    facts = {
        "environment": plain(run.env_id, 200) or "not stated",
        "target": plain(run.target or "none", 200),
        "held-out panel": f"{plain(run.panel_id or 'none', 80)}" + (f", {count} episodes" if count else ""),
        "success of an episode": plain(run.success or "not defined", 200),
        "accounting window": plain(run.accounting_window, 200),
        "what counts as a step": plain(run.step_rule, 200),
    }
    parts: list[Part] = [Facts(facts)]
    rows: list[tuple[Cell, ...]] = []
    for arm in exam.arms:
        found = setting(arm.runs)
        rows.append((arm.label, *found.values(), _versions(arm.first)))
    header = ("arm", *setting(exam.arms[0].runs), "versions")
    parts.append(Grid(Table.of(header, rows, left=header, title="What each arm ran with")))
    for arm in exam.arms:
        config = {plain(str(name), 60): plain(json.dumps(value), 200) for name, value in arm.first.config.items()}
        command = {
            "command": plain(arm.first.run.command, 500),
            "revision": plain(arm.first.run.git_revision or "none", 80),
        }
        parts.append(Folded(f"Configuration of {arm.label}", (Facts(command | config),)))
    return Section("Matching rules, machine and versions", parts)


def _versions(run: RecordedRun) -> str:
    machine = json.loads(run.run.machine)
    versions = machine.get("versions") if isinstance(machine, dict) else None
    known = versions if isinstance(versions, dict) else {}
    python = f"Python {machine.get('python')}, " if isinstance(machine, dict) and machine.get("python") else ""
    said = ", ".join(f"{name} {version}" for name, version in known.items() if version)
    return plain(f"mileage {run.run.mileage_version}, {python}{said}", 300)


def markup(sections: list[Section]) -> Html:
    """Sections one after the other."""
    return join(section.html() for section in sections)
