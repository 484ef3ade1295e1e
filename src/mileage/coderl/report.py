"""What a benchmark found: arms with their KPIs, comparisons with their verdicts. Data only; see `render`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mileage._records import Record
from mileage.charts.markup import Html
from mileage.charts.notebook import draw_intervals, frame, new_axes, shown
from mileage.coderl.kpi import ArmFigures, ArmKpis, KpiSettings, PassRateSource, arm_kpis, training_loop_gain
from mileage.coderl.measure import REMEDIES, SampleKind, TimedBuild
from mileage.coderl.project.fingerprint import Difference, Fingerprint
from mileage.coderl.project.modes import BASELINE
from mileage.experiments import Cause, Caveat, Estimate, Outcome, Verdict, find_caveats
from mileage.stats import Interval, median_estimate, median_ratio_estimate, verdict_of_ratio
from mileage.tables import Table

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
    difference: Difference | None
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
class Comparison:
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
    comparisons: tuple[Comparison, ...]
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
        for arm, plain in zip(self.arms, data["arms"], strict=True):
            plain |= {"cold": _estimate_dict(arm.cold), "incremental": _estimate_dict(arm.incremental)}
        for comparison, plain in zip(self.comparisons, data["comparisons"], strict=True):
            for name, speedup in (("cold", comparison.cold_speedup), ("incremental", comparison.incremental_speedup)):
                plain |= {f"{name}_speedup": _estimate_dict(speedup), f"{name}_verdict": verdict_words(speedup)}
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
    difference: Difference | None = None
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
) -> Comparison:
    def speedup(kind: SampleKind) -> Estimate | None:
        before, after = (good_times(samples, name, kind) for name in (baseline.name, arm.name))
        return median_ratio_estimate(before, after) if before and after else None

    cold = None if baseline.not_cold or arm.not_cold else speedup(SampleKind.COLD)
    gain = functools.partial(training_loop_gain, rollout_fraction=settings.rollout_fraction)
    ends = cold.interval if cold else None
    return Comparison(
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
