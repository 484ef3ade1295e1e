"""What a benchmark found: arms with their KPIs, comparisons with their verdicts. Data only; see `render`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mileage.coderl.intervals import Estimate, median_estimate, ratio_estimate
from mileage.coderl.kpi import ArmFigures, ArmKpis, KpiSettings, PassRateSource, arm_kpis
from mileage.coderl.measure import BenchWarning, BuildOutcome, Sample, SampleKind, find_warnings
from mileage.coderl.project.fingerprint import Difference, Fingerprint
from mileage.coderl.project.modes import BASELINE

# 1: first version.
FORMAT_VERSION = 1


class Verdict(StrEnum):
    """What a comparison shows."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference shown"
    TOO_FEW_RUNS = "too few runs to tell"
    NO_VALID_SAMPLE = "no valid sample"


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


@dataclass(frozen=True)
class Comparison:
    """One mode against the baseline."""

    mode: str
    cold_speedup: Estimate | None
    cold_verdict: Verdict
    incremental_speedup: Estimate | None
    incremental_verdict: Verdict
    training_loop_gain: float | None


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
    warnings: tuple[BenchWarning, ...]
    samples: tuple[Sample, ...]
    notes: tuple[str, ...]
    machine: Mapping[str, str]
    corpus: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def baseline(self) -> ArmReport:
        """The arm all others are compared with."""
        return self.arms[0]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON data."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class ArmInput:
    """What is known about an arm before its samples are looked at."""

    name: str
    about: str
    fingerprint: Fingerprint
    difference: Difference | None = None
    # Share of corpus patches that passed, where a corpus was given.
    corpus_pass_rate: float | None = None


def judge(speedup: Estimate | None) -> Verdict:
    """Return what a ratio of medians shows at 95 % confidence."""
    if speedup is None:
        return Verdict.NO_VALID_SAMPLE
    if speedup.low is None or speedup.high is None:
        return Verdict.TOO_FEW_RUNS
    if speedup.low > 1.0:
        return Verdict.FASTER
    return Verdict.SLOWER if speedup.high < 1.0 else Verdict.NO_DIFFERENCE


def good_times(samples: Sequence[Sample], arm: str, kind: SampleKind) -> list[float]:
    """Return the wall-clock of the builds of an arm that succeeded."""
    return [
        sample.wall_seconds
        for sample in samples
        if sample.arm == arm and sample.kind is kind and sample.outcome is BuildOutcome.OK
    ]


def _figures(arm: ArmInput, samples: Sequence[Sample]) -> ArmFigures:
    cold = median_estimate(good_times(samples, arm.name, SampleKind.COLD))
    incremental = median_estimate(good_times(samples, arm.name, SampleKind.INCREMENTAL))
    builds = [sample for sample in samples if sample.arm == arm.name and sample.kind is SampleKind.COLD]
    passed = sum(sample.outcome is BuildOutcome.OK for sample in builds)
    from_corpus = arm.corpus_pass_rate is not None
    return ArmFigures(
        cold_seconds=cold.value if cold else None,
        incremental_seconds=incremental.value if incremental else None,
        pass_rate=arm.corpus_pass_rate if arm.corpus_pass_rate is not None else passed / max(len(builds), 1),
        pass_rate_source=PassRateSource.CORPUS if from_corpus else PassRateSource.TIMED_BUILDS,
    )


def _arm_report(arm: ArmInput, baseline: ArmFigures, samples: Sequence[Sample], settings: KpiSettings) -> ArmReport:
    figures = _figures(arm, samples)
    own = [sample for sample in samples if sample.arm == arm.name and sample.kind is SampleKind.COLD]
    good = [sample for sample in own if sample.outcome is BuildOutcome.OK]
    cpu = median_estimate([sample.cpu_seconds or 1e-9 for sample in good])
    return ArmReport(
        name=arm.name,
        about=arm.about,
        difference=arm.difference,
        cold=median_estimate(good_times(samples, arm.name, SampleKind.COLD)),
        incremental=median_estimate(good_times(samples, arm.name, SampleKind.INCREMENTAL)),
        pass_rate=figures.pass_rate,
        pass_rate_source=figures.pass_rate_source,
        kpis=arm_kpis(figures, baseline, settings),
        cpu_seconds=cpu.value if cpu else None,
        peak_rss_bytes=max((sample.peak_rss_bytes for sample in good), default=None),
        outcomes={str(outcome): sum(sample.outcome is outcome for sample in own) for outcome in BuildOutcome},
        fingerprint=arm.fingerprint,
    )


def _comparison(baseline: ArmReport, arm: ArmReport, samples: Sequence[Sample]) -> Comparison:
    speedups = {
        kind: ratio_estimate(good_times(samples, baseline.name, kind), good_times(samples, arm.name, kind))
        for kind in SampleKind
    }
    before = baseline.kpis.training_loop_samples_per_cluster_hour
    after = arm.kpis.training_loop_samples_per_cluster_hour
    return Comparison(
        mode=arm.name,
        cold_speedup=speedups[SampleKind.COLD],
        cold_verdict=judge(speedups[SampleKind.COLD]),
        incremental_speedup=speedups[SampleKind.INCREMENTAL],
        incremental_verdict=judge(speedups[SampleKind.INCREMENTAL]),
        training_loop_gain=after / before if before and after else None,
    )


def build_report(
    *,
    project: str,
    kind: str,
    revision: str,
    started_at: str,
    settings: KpiSettings,
    arms: Sequence[ArmInput],
    samples: Sequence[Sample],
    notes: Sequence[str] = (),
    machine: Mapping[str, str] | None = None,
    corpus: Mapping[str, Mapping[str, int]] | None = None,
) -> BenchReport:
    """Turn raw samples into the report; the first arm is the baseline."""
    assert arms[0].name == BASELINE
    baseline = _figures(arms[0], samples)
    reports = tuple(_arm_report(arm, baseline, samples, settings) for arm in arms)
    return BenchReport(
        project=project,
        kind=kind,
        revision=revision,
        started_at=started_at,
        settings=settings,
        arms=reports,
        comparisons=tuple(_comparison(reports[0], arm, samples) for arm in reports[1:]),
        warnings=find_warnings(samples),
        samples=tuple(samples),
        notes=tuple(notes),
        machine=dict(machine or {}),
        corpus=dict(corpus or {}),
    )
