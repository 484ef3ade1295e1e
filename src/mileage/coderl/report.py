"""What a benchmark found: arms, KPIs, verdicts, as text, Markdown, HTML and JSON."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mileage.coderl.arms import REMEDIES, SampleKind, TimedBuild
from mileage.coderl.kpi import ArmFigures, ArmKpis, KpiSettings, PassRateSource, arm_kpis, training_loop_gain
from mileage.coderl.projects.fingerprint import Fingerprint, SetupDifference
from mileage.coderl.projects.modes import BASELINE
from mileage.measure import (
    Cause,
    Caveat,
    Estimate,
    Interval,
    Outcome,
    Verdict,
    find_caveats,
    median_estimate,
    median_ratio_estimate,
    verdict_of_ratio,
)
from mileage.measure.intervals import DEFAULT_LEVEL
from mileage.records import Record, strict_json
from mileage.report.markup import Html, file_page, tag
from mileage.report.notebook import draw_intervals, frame, new_axes, shown
from mileage.tables import Table, markdown, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


# 1: first version.
FORMAT_VERSION = 1
# A build from clean that is shorter than every check of one edited line, by so many seconds, has not been one.
_NOT_COLD_SECONDS = 0.1


_WORDS = {Verdict.B_CHEAPER: "faster", Verdict.A_CHEAPER: "slower", Verdict.UNDECIDED: "no difference shown"}
NO_VALID_SAMPLE = "no valid sample"
NOT_COLD = "not cold"
TOO_FEW_RUNS = "too few runs to tell"


def _spelled(estimate: Estimate | None) -> str:
    """A median with its interval, in seconds."""
    if estimate is None or estimate.value is None:
        return NO_VALID_SAMPLE
    interval = "" if estimate.interval is None else f" [{estimate.interval.spelled('{:.3g}'.format, ', ')}]"
    return f"{estimate.value:.3g} s{interval}"


def verdict_words(speedup: Estimate | None) -> str:
    """What a ratio of medians, baseline over mode, shows at 95 % confidence."""
    if speedup is None:
        return NO_VALID_SAMPLE
    return TOO_FEW_RUNS if speedup.interval is None else _WORDS[verdict_of_ratio(speedup)]


@dataclass(frozen=True)
class ArmReport:
    """One arm: its medians with intervals, its KPIs, its resources."""

    name: str
    about: str
    difference: SetupDifference | None
    cold: Estimate | None
    incremental: Estimate | None
    pass_rate: float
    pass_rate_source: PassRateSource
    kpis: ArmKpis
    cpu_seconds: float | None
    peak_rss_bytes: int | None
    outcomes: Mapping[str, int]
    fingerprint: Fingerprint
    not_cold: bool = False
    """Whether its cold builds were so fast that they cannot have been cold; it then has no KPI of them."""

    @property
    def warm(self) -> bool:
        """Whether its samples start from a restored, built tree."""
        return self.fingerprint.get("warm_snapshot") == "yes"


@dataclass(frozen=True)
class ModeComparison:
    """One mode against the baseline."""

    mode: str
    cold_speedup: Estimate | None
    """The baseline's median over the mode's; None without a sample of either."""
    incremental_speedup: Estimate | None
    training_loop_gain: float | None
    """KPI 4: how much faster the whole loop turns."""
    training_loop_gain_interval: Interval | None = None
    """What the interval of the speedup makes of it: it only grows with the speedup, so the ends carry over."""


@dataclass(frozen=True)
class BenchReport:
    """Everything a run of rl-bench found; immutable, with all raw samples."""

    project: str
    kind: str
    revision: str
    started_at: str
    settings: KpiSettings
    arms: tuple[ArmReport, ...]
    comparisons: tuple[ModeComparison, ...]
    warnings: tuple[Caveat, ...]
    samples: tuple[TimedBuild, ...]
    notes: tuple[str, ...]
    machine: Mapping[str, str]
    corpus: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def measured(self) -> bool:
        """Whether every arm has a valid sample of a cold build."""
        return all(arm.cold is not None and not arm.not_cold for arm in self.arms)

    @property
    def baseline(self) -> ArmReport:
        """The arm all others are compared with."""
        return self.arms[0]

    def _repr_html_(self) -> str:
        rows = [
            (arm.name, arm.about, _spelled(arm.cold), _spelled(arm.incremental), arm.pass_rate) for arm in self.arms
        ]
        header = ("arm", "what", "cold build", "edit to check", "pass rate")
        return shown(Html(Table.of(header, rows, left=header).html()))

    def to_frame(self) -> DataFrame:
        """Every timed build as a data frame of pandas, one row each."""
        return frame(dataclasses.asdict(sample) for sample in self.samples)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Median cold builds of every arm with their intervals, as a plot of matplotlib."""
        rows = []
        for arm in self.arms:
            ends = (None, None) if arm.cold is None or arm.cold.interval is None else arm.cold.interval.as_list()
            rows.append((arm.name, None if arm.cold is None else arm.cold.value, ends[0], ends[1]))
        return draw_intervals(new_axes(axes), rows, "seconds of a cold build, median and interval")

    def as_dict(self) -> Record:
        """The report as plain JSON data."""
        data = dataclasses.asdict(self)
        for arm, row in zip(self.arms, data["arms"], strict=True):
            row |= {"cold": _estimate_dict(arm.cold), "incremental": _estimate_dict(arm.incremental)}
        for comparison, row in zip(self.comparisons, data["comparisons"], strict=True):
            for name, speedup in (("cold", comparison.cold_speedup), ("incremental", comparison.incremental_speedup)):
                row |= {f"{name}_speedup": _estimate_dict(speedup), f"{name}_verdict": verdict_words(speedup)}
        data["warnings"] = [
            {"kind": str(each), "arm": each.arm, "sample_kind": each.kind, "evidence": each.evidence}
            for each in self.warnings
        ]
        return data


def _estimate_dict(estimate: Estimate | None) -> Record | None:
    if estimate is None:
        return None
    low, high, level = dataclasses.astuple(estimate.interval) if estimate.interval else (None, None, None)
    return {"value": estimate.value, "low": low, "high": high, "level": level, "runs": estimate.runs}


@dataclass(frozen=True)
class ArmInput:
    """What is known about an arm before its samples are looked at."""

    name: str
    about: str
    fingerprint: Fingerprint
    difference: SetupDifference | None = None
    corpus_pass_rate: float | None = None
    """Share of corpus patches that passed, where a corpus was given."""


def good_times(samples: Sequence[TimedBuild], arm: str, kind: SampleKind) -> list[float]:
    """The wall-clock of the builds of an arm that succeeded."""
    own = (sample for sample in samples if sample.arm == arm and sample.kind == kind)
    return [sample.wall_seconds for sample in own if sample.outcome is Outcome.OK]


def _median(values: Sequence[float]) -> Estimate | None:
    return median_estimate(values) if values else None


def _times(arm: ArmInput, samples: Sequence[TimedBuild]) -> tuple[Estimate | None, Estimate | None]:
    """The medians of an arm: cold, incremental."""
    cold, incremental = (_median(good_times(samples, arm.name, kind)) for kind in SampleKind)
    return cold, incremental


def _not_cold(arm: ArmInput, samples: Sequence[TimedBuild]) -> Caveat | None:
    """What speaks against the cold builds of an arm having been cold."""
    cold, _ = _times(arm, samples)
    # The fastest: a single check may have waited for a core that others had.
    quick = min(good_times(samples, arm.name, SampleKind.INCREMENTAL), default=None)
    if arm.fingerprint.get("warm_snapshot") == "yes" or cold is None or cold.value is None or quick is None:
        return None
    if quick - cold.value < _NOT_COLD_SECONDS:
        return None
    evidence = f"a cold build took {cold.value:.3g} s, the fastest check of one edited line {quick:.3g} s"
    return Caveat(Cause.NOT_COLD, evidence, arm.name, SampleKind.COLD, REMEDIES[Cause.NOT_COLD])


def _figures(arm: ArmInput, samples: Sequence[TimedBuild]) -> ArmFigures:
    cold, incremental = (each.value if each else None for each in _times(arm, samples))
    cold = None if _not_cold(arm, samples) else cold
    if arm.corpus_pass_rate is not None:
        return ArmFigures(cold, incremental, arm.corpus_pass_rate, PassRateSource.CORPUS)
    builds = [sample for sample in samples if sample.arm == arm.name and sample.kind == SampleKind.COLD]
    passed = sum(sample.outcome is Outcome.OK for sample in builds)
    return ArmFigures(cold, incremental, passed / max(len(builds), 1), PassRateSource.TIMED_BUILDS)


def _arm_report(arm: ArmInput, baseline: ArmFigures, samples: Sequence[TimedBuild], settings: KpiSettings) -> ArmReport:
    figures = _figures(arm, samples)
    own = [sample for sample in samples if sample.arm == arm.name and sample.kind == SampleKind.COLD]
    good = [sample for sample in own if sample.outcome is Outcome.OK]
    cpu = _median([sample.cpu_seconds for sample in good])
    return ArmReport(
        arm.name, arm.about, arm.difference, *_times(arm, samples), figures.pass_rate, figures.pass_rate_source,
        arm_kpis(figures, baseline, settings),
        cpu_seconds=cpu.value if cpu else None,
        peak_rss_bytes=max((sample.peak_rss_bytes for sample in good), default=None),
        outcomes={str(outcome): sum(sample.outcome is outcome for sample in own) for outcome in Outcome},
        fingerprint=arm.fingerprint,
        not_cold=_not_cold(arm, samples) is not None,
    )  # fmt: skip


def _comparison(
    baseline: ArmReport, arm: ArmReport, samples: Sequence[TimedBuild], settings: KpiSettings
) -> ModeComparison:
    def speedup(kind: SampleKind) -> Estimate | None:
        before, after = (good_times(samples, name, kind) for name in (baseline.name, arm.name))
        return median_ratio_estimate(before, after) if before and after else None

    cold = None if baseline.not_cold or arm.not_cold else speedup(SampleKind.COLD)
    gain = functools.partial(training_loop_gain, rollout_fraction=settings.rollout_fraction)
    ends = cold.interval if cold else None
    return ModeComparison(
        mode=arm.name,
        cold_speedup=cold,
        incremental_speedup=speedup(SampleKind.INCREMENTAL),
        training_loop_gain=gain(cold.value) if cold and cold.value else None,
        training_loop_gain_interval=replace(ends, low=gain(ends.low), high=gain(ends.high)) if ends else None,
    )


def build_report(
    *,
    project: str,
    kind: str,
    revision: str,
    started_at: str,
    settings: KpiSettings,
    arms: Sequence[ArmInput],
    samples: Sequence[TimedBuild],
    notes: Sequence[str] = (),
    machine: Mapping[str, str] | None = None,
    corpus: Mapping[str, Mapping[str, int]] | None = None,
) -> BenchReport:
    """Turn raw samples into the report; the first arm is the baseline."""
    assert arms[0].name == BASELINE
    baseline = _figures(arms[0], samples)
    reports = tuple(_arm_report(arm, baseline, samples, settings) for arm in arms)
    comparisons = tuple(_comparison(reports[0], arm, samples, settings) for arm in reports[1:])
    return BenchReport(
        project, kind, revision, started_at, settings, reports, comparisons,
        (*(found for arm in arms if (found := _not_cold(arm, samples))), *find_caveats(samples, REMEDIES)),
        tuple(samples), tuple(notes), dict(machine or {}), dict(corpus or {}),
    )  # fmt: skip


# --- The report as text, Markdown, HTML and JSON: its tables, and one small function per format ---
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
    found: dict[str, ModeComparison] = {comparison.mode: comparison for comparison in report.comparisons}

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


def _gain(comparison: ModeComparison | None) -> str:
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
