"""Sections that only some runs have: builds as KPIs, what the profiler found, comparisons between arms."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mileage.errors import UnmatchedError, UsageError
from mileage.ledger.runs import RecordedRun
from mileage.measure import Arm as Compared
from mileage.metrics import duration, percent
from mileage.records import ReadRecord
from mileage.report.arms import Exam, Selection
from mileage.report.axes import seconds, usd
from mileage.report.bars import BarSpan, interval_chart
from mileage.report.compare import Comparison, compare_arms
from mileage.report.document import Folded, Grid, Part, Picture, Section, Words
from mileage.tables import Cell, Table, plain

MOST_PAIRS = 6
"""More comparisons than this are left to `mileage ledger compare`."""


def comparison_parts(found: Comparison) -> list[Part]:
    """A comparison: its verdict first, then what it rests on."""
    said: list[Part] = [Words(f"verdict: {found.verdict}", "verdict")]
    if found.matching.label is not None:
        said.insert(0, Words(found.matching.label, "refusal"))
    lines = [line for line in found.lines() if not line.startswith("verdict:") and line != found.matching.label]
    said += [Words(line, "small") for line in lines]
    spans = []
    for side in (found.a, found.b):
        expected = side.expected
        ends = (None, None) if expected.interval is None else expected.interval.as_list()
        words = (
            f"not reached, {found.spell(expected.spent)} spent"
            if expected.value is None
            else found.spell(expected.value)
        )
        samples = tuple(
            zip((float(cost) for cost in side.costs.costs), (bool(each) for each in side.costs.reached), strict=True)
        )
        spans.append(BarSpan(side.label, expected.value, ends[0], ends[1], samples, words))
    title = "expected cost to target, dollars" if found.unit == "USD" else "expected time to target, seconds"
    svg = interval_chart(spans, title, usd if found.unit == "USD" else seconds)
    caption = "Expected cost to target with its 95 % interval; small marks are single runs, a cross is one that failed."
    return [*said, Picture(svg, caption), Grid(found.table())]


def comparisons(exam: Exam) -> Section | None:
    """Every arm against the first, or why they may not be compared."""
    others = exam.arms[1:]
    if not others or exam.first.target is None:
        return None
    parts: list[Part] = []
    for arm in others[:MOST_PAIRS]:
        sides = [Compared(plain(each.label, 60), Selection(each.ended, each.running)) for each in (exam.arms[0], arm)]
        parts.append(Words(f"A is {exam.arms[0].label}, B is {arm.label}."))
        if not all(side.subject.runs for side in sides):
            parts.append(Words("Not compared: no run of one of them has ended.", "refusal"))
            continue
        try:
            parts += comparison_parts(compare_arms(*sides))
        except (UnmatchedError, UsageError) as error:
            parts.append(Words(f"Not compared: {error}", "refusal"))
    if len(others) > MOST_PAIRS:
        parts.append(Words(f"{len(others) - MOST_PAIRS} more arms: see mileage ledger compare.", "small"))
    return Section("Comparison", parts)


def builds(runs: Sequence[RecordedRun]) -> Section | None:
    """Builds as KPIs with all raw samples."""
    measured = [run for run in runs if run.kpis]
    if not measured:
        return None
    parts: list[Part] = []
    for run in measured:
        rows: list[tuple[Cell, ...]] = [
            (
                plain(str(kpi.mode), 60),
                _s(kpi.baseline_cold_secs),
                _s(kpi.slicer_cold_secs),
                _speedup(kpi.speedup, kpi.speedup_low, kpi.speedup_high),
                plain(kpi.verdict or "–", 60),
                _n(kpi.slicer_throughput_per_hr, ".1f"),
                _s(kpi.baseline_incr_secs),
                _s(kpi.slicer_incr_secs),
                "–" if kpi.pass_rate is None else percent(kpi.pass_rate),
                _s(kpi.secs_per_valid_sample),
                _n(kpi.training_loop_per_cluster_hr, ".1f"),
                _n(kpi.training_loop_gain, ".2f"),
            )
            for kpi in run.kpis
        ]
        header = (
            "mode",
            "baseline cold",
            "cold",
            "speedup",
            "verdict",
            "samples/h",
            "baseline edit→check",
            "edit→check",
            "pass rate",
            "s/valid sample",
            "samples/cluster-h",
            "loop gain",
        )
        title = f"{plain(run.kpis[0].project or run.run.name, 80)} ({run.run_id})"
        parts.append(Grid(Table.of(header, rows, left=("mode", "verdict"), title=title)))
        parts += _samples(run)
    return Section("Builds as KPIs", parts)


def _samples(run: RecordedRun) -> list[Part]:
    if not run.samples:
        return []
    spans = []
    for arm, kind in dict.fromkeys((each.arm, each.kind) for each in run.samples):
        times = [s for s in run.samples if (s.arm, s.kind) == (arm, kind)]
        good = sorted(s.wall_seconds for s in times if s.outcome == "ok")
        middle = good[len(good) // 2] if good else None
        marks = tuple((s.wall_seconds, s.outcome == "ok") for s in times)
        said = "no valid sample" if middle is None else f"median {duration(middle)} of {len(good)}"
        spans.append(BarSpan(f"{arm}, {kind}", middle, samples=marks, said=said))
    rows: list[tuple[Cell, ...]] = [
        (
            s.order,
            s.round,
            s.arm,
            s.kind,
            s.outcome,
            s.exit_code,
            f"{s.wall_seconds:.3f}",
            f"{s.cpu_seconds:.3f}",
            f"{s.peak_rss_bytes / 2**20:.0f}",
            plain(s.diagnostic, 100),
        )
        for s in run.samples
    ]
    header = ("order", "round", "arm", "kind", "outcome", "exit", "wall s", "CPU s", "peak MiB", "first line")
    table = Table.of(header, rows, left=("arm", "kind", "outcome", "first line"))
    caption = (
        "Every timed build: a mark each, a cross for one that failed; the dot is the median of those that did not."
    )
    return [
        Picture(interval_chart(spans, "seconds of a build", seconds), caption),
        Folded("Raw samples", (Grid(table),)),
    ]


def _s(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g} s"


def _n(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _speedup(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}×" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def findings(runs: Sequence[RecordedRun]) -> Section | None:
    """What the profiler found, and what was measured when its advice was tried."""
    parts: list[Part] = []
    for run in runs:
        for row in run.profiles:
            summary = _object(row.summary)
            parts += _profile(run, summary)
    return Section("What the profiler found", parts) if parts else None


def _object(text: str) -> ReadRecord:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _profile(run: RecordedRun, summary: ReadRecord) -> list[Part]:
    found = [each for each in summary.get("findings") or () if isinstance(each, dict)]
    changes = [each for each in summary.get("what_ifs") or () if isinstance(each, dict)]
    parts: list[Part] = []
    if summary.get("verdict"):
        parts.append(Words(f"{run.run_id}: {plain(str(summary['verdict']), 500)}", "verdict"))
    if found:
        keys = ("bottleneck", "share", "evidence", "suggestion", "estimated_gain")
        parts.append(Grid(_plain_table(found, keys, "Findings")))
    if changes:
        keys = tuple(dict.fromkeys(key for each in changes for key in each))[:8]
        parts.append(Grid(_plain_table(changes, keys, "What changes would bring")))
    return parts


def _plain_table(rows: Sequence[ReadRecord], keys: Sequence[str], title: str) -> Table:
    def shown(key: str, value: object) -> str:
        if isinstance(value, float):
            return percent(value) if key in ("share", "estimated_gain") else f"{value:.4g}"
        return "–" if value is None else plain(str(value), 300)

    cells = [tuple(shown(key, row.get(key)) for key in keys) for row in rows]
    return Table.of(
        [key.replace("_", " ") for key in keys], cells, left=[key.replace("_", " ") for key in keys], title=title
    )
