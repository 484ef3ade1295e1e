"""The report as text, Markdown, HTML and JSON: its tables, and one small function per format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mileage._records import strict_json
from mileage.charts.document import file_page
from mileage.charts.markup import Html, tag
from mileage.coderl.report import NO_VALID_SAMPLE, NOT_COLD, ArmReport, BenchReport, Comparison, verdict_words
from mileage.experiments import Estimate, Verdict
from mileage.stats import verdict_of_ratio
from mileage.stats.intervals import DEFAULT_LEVEL
from mileage.tables import Table
from mileage.text import markdown, plain

RAW = "Raw samples"


def _table(title: str, header: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Table:
    """A table of words and of numbers with their words, all flush left; cells may quote a candidate."""
    return Table.of(header, rows, left=header, title=title)


def times(speedup: Estimate | None) -> str:
    """A speedup as a verdict: `1.26× [1.21, 1.31] faster`, or `no difference shown`."""
    words = verdict_words(speedup)
    if speedup is None or speedup.value is None:
        return words
    if speedup.interval is None:
        return f"{speedup.value:.2f}× ({speedup.runs} runs: {words})"
    interval = f"{speedup.value:.2f}× [{speedup.interval.low:.2f}, {speedup.interval.high:.2f}]"
    return f"{words} ({interval})" if verdict_of_ratio(speedup) is Verdict.UNDECIDED else f"{interval} {words}"


def _number(value: float | None, form: str) -> str:
    return NO_VALID_SAMPLE if value is None else format(value, form)


def _seconds(estimate: Estimate | None) -> str:
    """A median with its interval, and with what that covers where so few runs cannot reach 95 %."""
    if estimate is None or estimate.value is None:
        return NO_VALID_SAMPLE
    digits = ".1f" if estimate.value >= 10 else ".3g"
    text, interval = f"{estimate.value:{digits}} s", estimate.interval
    if interval is None:
        return text
    covers = "" if interval.level >= DEFAULT_LEVEL else f" ({interval.level:.0%})"
    return f"{text} [{interval.low:{digits}}, {interval.high:{digits}}]{covers}"


def tables(report: BenchReport) -> tuple[Table, ...]:
    """The tables of a report in order."""
    settings = report.settings
    found: dict[str, Comparison] = {comparison.mode: comparison for comparison in report.comparisons}

    def against(arm: ArmReport, kind: str) -> str:
        comparison = found.get(arm.name)
        if comparison is None:
            return ""
        return times(comparison.cold_speedup if kind == "cold" else comparison.incremental_speedup)

    def table(title: str, header: Sequence[str], row: Callable[[ArmReport], tuple[str, ...]]) -> Table:
        return _table(title, ("arm", *header), [(arm.name, *row(arm)) for arm in report.arms])

    priced = settings.price_usd_per_hour is not None
    cluster = f"KPI 4: cluster-hour equivalent ({settings.gpus} GPUs, {settings.rollout_fraction:.0%} rollout fraction)"

    def throughput(title: str, column: str, arms: Iterable[ArmReport]) -> tuple[Table, ...]:
        rows = tuple(
            (
                arm.name,
                f"{NOT_COLD}: {_seconds(arm.cold)}" if arm.not_cold else _seconds(arm.cold),
                NOT_COLD if arm.not_cold else _number(arm.kpis.samples_per_hour, ".2f"),
                NOT_COLD if arm.not_cold or report.baseline.not_cold else against(arm, "cold"),
            )
            for arm in arms
        )
        return (_table(title, ("arm", column, "samples/hour", "against baseline"), rows),) if rows else ()

    return (
        *throughput("KPI 1: cold-build throughput", "cold build", (arm for arm in report.arms if not arm.warm)),
        *throughput("KPI 1 without cold builds: throughput from a warm snapshot", "restore, edit, build",
                    (arm for arm in report.arms if arm.warm)),
        table("KPI 2: incremental feedback latency",
              ("edit to check result", "feedback loops/hour", "against baseline"),
              lambda arm: (_seconds(arm.incremental), _number(arm.kpis.feedback_loops_per_hour, ".0f"),
                           against(arm, "incremental"))),
        table("KPI 3: compute cost per valid sample",
              ("pass rate", "measured on", "seconds", *(("dollars",) if priced else ())),
              lambda arm: (f"{arm.pass_rate:.1%}", str(arm.pass_rate_source),
                           _number(arm.kpis.seconds_per_valid_sample, ".4g"),
                           *((_number(arm.kpis.usd_per_valid_sample, ".6f"),) if priced else ()))),
        table(cluster,
              ("rollout-bound: samples/cluster-hour", "training loop: samples/cluster-hour", "training-loop gain"),
              lambda arm: (_number(arm.kpis.rollout_bound_samples_per_cluster_hour, ".1f"),
                           _number(arm.kpis.training_loop_samples_per_cluster_hour, ".1f"),
                           _gain(found.get(arm.name)))),
        *_details(report),
    )  # fmt: skip


def _gain(comparison: Comparison | None) -> str:
    if comparison is None or comparison.training_loop_gain is None:
        return ""
    ends = comparison.training_loop_gain_interval
    return f"{comparison.training_loop_gain:.2f}×" + (f" [{ends.low:.2f}, {ends.high:.2f}]" if ends else "")


def _details(report: BenchReport) -> tuple[Table, ...]:
    rows = tuple(
        (
            arm.name,
            arm.about,
            f"{arm.difference.key}: {arm.difference.baseline} → {arm.difference.mode}" if arm.difference else "",
            "" if arm.cpu_seconds is None else f"{arm.cpu_seconds:.3g} s",
            "" if arm.peak_rss_bytes is None else f"{arm.peak_rss_bytes / 2**30:.2f} GiB",
            ", ".join(f"{count} {name}" for name, count in arm.outcomes.items() if count),
        )
        for arm in report.arms
    )
    details = [_table("Arms", ("arm", "what", "the one difference", "CPU time", "peak memory", "cold builds"), rows)]
    if report.corpus:
        names = sorted({name for counts in report.corpus.values() for name in counts})
        found = [(arm, *(str(counts.get(name, 0)) for name in names)) for arm, counts in report.corpus.items()]
        details.append(_table("Corpus verdicts", ("arm", *names), found))
    if report.warnings:
        said = [(each.arm, each.kind, str(each), each.evidence) for each in report.warnings]
        details.append(_table("Warnings", ("arm", "samples", "warning", "evidence"), said))
    return tuple(details)


def _facts(report: BenchReport) -> list[str]:
    facts = [f"{name}: {value}" for name, value in report.machine.items()]
    shared = [
        f"{key}: {value}"
        for key, value in report.baseline.fingerprint.items()
        if key.startswith(("toolchain.", "flags.", "commands.", "lock_file.")) or key in ("jobs", "profile")
    ]
    rows = [f"revision: {report.revision}", f"started: {report.started_at}", *facts, *shared, *report.notes]
    return [plain(row) for row in rows]


def to_text(report: BenchReport) -> str:
    """The report for a terminal."""
    lines = [f"rl-bench: {plain(report.project)} ({report.kind})", ""]
    for table in tables(report):
        lines += [f"  {table.title}", table.text(indent="    "), ""]
    return "\n".join(lines + [f"  {note}" for note in report.notes]) + "\n"


def to_markdown(report: BenchReport) -> str:
    """The report as Markdown, raw samples included."""
    lines = [f"# rl-bench: {markdown(report.project)}", ""]
    for table in tables(report):
        lines += [f"## {table.title}", "", table.markdown(), ""]
    lines += ["## Conditions", "", *[f"- {markdown(fact)}" for fact in _facts(report)], ""]
    return "\n".join([*lines, f"## {RAW}", "", sample_table(report).markdown()]) + "\n"


def sample_table(report: BenchReport) -> Table:
    """Every timed build and check."""
    header = ("order", "round", "arm", "kind", "outcome", "exit", "wall s", "CPU s", "peak MiB")
    rows = [
        (each.order, each.round, each.arm, str(each.kind), str(each.outcome), each.exit_code,
         f"{each.wall_seconds:.3f}", f"{each.cpu_seconds:.3f}", f"{each.peak_rss_bytes / 2**20:.0f}")
        for each in report.samples
    ]  # fmt: skip
    return Table.of(header, rows, left=("arm", "kind", "outcome"), title=RAW)


def to_html(report: BenchReport) -> str:
    """The report as one page that opens from disk, in the style of all pages."""
    parts = [tag("h1", f"rl-bench: {plain(report.project)}")]
    for table in (*tables(report), sample_table(report)):
        box = tag("div", Html(table.html()), class_="scroll", tabindex="0", role="region", aria_label=table.title)
        parts.append(tag("section", tag("h2", table.title), box, class_="card"))
    facts = tag("ul", *(tag("li", fact) for fact in _facts(report)))
    parts.insert(-1, tag("section", tag("h2", "Conditions"), facts, class_="card"))
    return file_page(f"rl-bench: {plain(report.project)}", *parts, scripted=False)


def to_json(report: BenchReport) -> str:
    """The report as JSON, with every raw sample and both fingerprints."""
    return strict_json(report.as_dict(), indent=2, sort_keys=True)
