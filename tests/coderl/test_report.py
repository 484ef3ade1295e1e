from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path

import pytest

from mileage.coderl.arms import SampleKind, TimedBuild
from mileage.coderl.kpi import KpiSettings
from mileage.coderl.projects.fingerprint import SetupDifference
from mileage.coderl.report import (
    ArmInput,
    BenchReport,
    build_report,
    tables,
    times,
    to_html,
    to_json,
    to_markdown,
    to_text,
    verdict_words,
)
from mileage.coderl.store import KpiStore
from mileage.measure import Estimate, Interval, Outcome, Verdict, verdict_of_ratio

# Published figures of one project: cold 103.0 s to 82.0 s, incremental 12.4 s to 4.1 s. Medians of three.
PUBLISHED = {
    ("baseline", SampleKind.COLD): (102.1, 103.0, 104.4),
    ("cargo-slicer", SampleKind.COLD): (82.9, 82.0, 81.5),
    ("baseline", SampleKind.INCREMENTAL): (12.4, 12.1, 12.6),
    ("cargo-slicer", SampleKind.INCREMENTAL): (4.1, 4.0, 4.2),
}
# The query that users of such databases already have.
EXISTING_QUERY = """SELECT project, baseline_cold_secs, slicer_cold_secs, speedup,
       slicer_throughput_per_hr, ts
FROM rl_kpi ORDER BY ts DESC LIMIT 10;"""


def samples_of(times_by_arm: dict[tuple[str, SampleKind], tuple[float, ...]]) -> list[TimedBuild]:
    found = []
    for (arm, kind), seconds in times_by_arm.items():
        for number, second in enumerate(seconds):
            order = len(found)
            found.append(TimedBuild(arm, second, 2 * second, Outcome.OK, kind, number, order, peak_rss_bytes=1 << 30))
    return found


def report_of(samples: list[TimedBuild], **changes: object) -> BenchReport:
    arms = [
        ArmInput("baseline", "as it is", {"linker": "default", "jobs": "8"}),
        ArmInput(
            "cargo-slicer", "slicer", {"linker": "default", "jobs": "8"}, SetupDifference("compiler_cache", "none", "x")
        ),
    ]
    values: dict[str, object] = {
        "project": "nushell",
        "kind": "cargo",
        "revision": "tree abc",
        "started_at": "2026-04-01T00:00:00Z",
        "settings": KpiSettings(),
        "arms": arms,
        "samples": samples,
    }
    return build_report(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def published() -> BenchReport:
    return report_of(samples_of(PUBLISHED))


def test_the_worked_example(published: BenchReport) -> None:
    base, mode = published.arms
    (comparison,) = published.comparisons
    assert comparison.cold_speedup is not None
    assert comparison.incremental_speedup is not None
    assert comparison.training_loop_gain is not None
    assert round(comparison.cold_speedup.value, 2) == 1.26
    assert f"{base.kpis.samples_per_hour:.2f}" == "34.95"
    assert f"{mode.kpis.samples_per_hour:.2f}" == "43.90"
    assert round(comparison.incremental_speedup.value, 1) == 3.0
    assert f"{base.kpis.feedback_loops_per_hour:.0f}" == "290"
    assert f"{mode.kpis.feedback_loops_per_hour:.0f}" == "878"
    assert f"{base.kpis.rollout_bound_samples_per_cluster_hour:.1f}" == "279.6"
    assert f"{mode.kpis.rollout_bound_samples_per_cluster_hour:.1f}" == "351.2"
    assert f"{base.kpis.training_loop_samples_per_cluster_hour:.1f}" == "223.7"
    assert f"{mode.kpis.training_loop_samples_per_cluster_hour:.1f}" == "267.3"
    assert round(comparison.training_loop_gain, 2) == 1.19
    assert verdict_of_ratio(comparison.cold_speedup) is Verdict.B_CHEAPER


@pytest.mark.parametrize("render", [to_text, to_markdown, to_html])
def test_every_format_prints_the_worked_example(published: BenchReport, render: object) -> None:
    text = render(published)  # type: ignore[operator]
    for number in ("103.0 s", "82.0 s", "34.95", "43.90", "1.26×", "290", "878", "3.02×"):
        assert number in text
    for number in ("279.6", "351.2", "223.7", "267.3", "1.19×", "rollout-bound", "training loop", "8 GPUs"):
        assert number in text


def test_json_keeps_every_raw_sample_and_both_fingerprints(published: BenchReport) -> None:
    data = json.loads(to_json(published))
    assert [sample["wall_seconds"] for sample in data["samples"]] == [s.wall_seconds for s in published.samples]
    assert data["arms"][1]["fingerprint"] == {"jobs": "8", "linker": "default"}
    assert data["format_version"] == 1


def test_existing_queries_run_unchanged_on_the_database(published: BenchReport, tmp_path: Path) -> None:
    store = KpiStore(tmp_path / "bench-results.db")
    run = store.start_run("nushell", "abc", {})
    store.finish_run(run, published)
    store.close()
    with sqlite3.connect(tmp_path / "bench-results.db") as database:
        rows = database.execute(EXISTING_QUERY).fetchall()
    assert len(rows) == 1
    project, baseline, mode, speedup, throughput, stamp = rows[0]
    assert (project, baseline, mode, stamp) == ("nushell", 103.0, 82.0, "2026-04-01T00:00:00Z")
    assert speedup == pytest.approx(103 / 82)
    assert throughput == pytest.approx(3600 / 82)


def test_a_failed_build_lowers_the_pass_rate_and_not_the_time() -> None:
    samples = samples_of(PUBLISHED)
    samples.append(
        TimedBuild("cargo-slicer", 0.2, 0.1, Outcome.FAILED, SampleKind.COLD, 3, len(samples), exit_code=101)
    )
    mode = report_of(samples).arms[1]
    assert mode.cold is not None
    assert mode.cold.value == 82.0
    assert mode.pass_rate == 0.75
    assert mode.kpis.seconds_per_valid_sample == pytest.approx(82.0 / 0.75)
    assert mode.outcomes == {"ok": 3, "failed": 1, "timeout": 0, "killed": 0}


def test_a_mode_that_never_builds_has_no_valid_sample() -> None:
    samples = [sample for sample in samples_of(PUBLISHED) if sample.arm == "baseline"]
    samples.append(TimedBuild("cargo-slicer", 60.0, 60.0, Outcome.TIMEOUT, SampleKind.COLD, 0, 99, exit_code=-9))
    report = report_of(samples)
    assert report.arms[1].kpis.seconds_per_valid_sample is None
    assert verdict_words(report.comparisons[0].cold_speedup) == "no valid sample"
    assert "no valid sample" in to_text(report)


def test_a_corpus_pass_rate_replaces_that_of_the_timed_builds_and_says_so() -> None:
    arms = [ArmInput("baseline", "", {}, corpus_pass_rate=0.4)]
    report = report_of(samples_of({("baseline", SampleKind.COLD): (10.0, 10.0, 10.0)}), arms=arms)
    assert report.baseline.kpis.seconds_per_valid_sample == 25.0
    assert "corpus of candidate patches" in to_text(report)


@pytest.mark.parametrize(
    ("estimate", "words", "text"),
    [
        (Estimate(1.26, Interval(1.21, 1.31), runs=5), "faster", "1.26× [1.21, 1.31] faster"),
        (
            Estimate(1.02, Interval(0.97, 1.07), runs=5),
            "no difference shown",
            "no difference shown (1.02× [0.97, 1.07])",
        ),
        (Estimate(0.80, Interval(0.70, 0.90), runs=5), "slower", "0.80× [0.70, 0.90] slower"),
        (Estimate(5.1, None, runs=2), "too few runs to tell", "5.10× (2 runs: too few runs to tell)"),
        (None, "no valid sample", "no valid sample"),
    ],
)
def test_verdicts_and_their_words(estimate: Estimate | None, words: str, text: str) -> None:
    assert verdict_words(estimate) == words
    assert times(estimate) == text


def test_three_runs_say_that_their_interval_covers_less_than_95_percent(published: BenchReport) -> None:
    # All three on one side of the true median: 2 / 2**3.
    assert "103.0 s [102.1, 104.4] (75%)" in to_text(published)
    data = json.loads(to_json(published))
    assert data["arms"][0]["cold"] == {"value": 103.0, "low": 102.1, "high": 104.4, "level": 0.75, "runs": 3}
    assert data["comparisons"][0]["cold_verdict"] == "faster"
    assert set(data["comparisons"][0]["cold_speedup"]) == {"value", "low", "high", "level", "runs"}


def test_dollars_are_a_column_only_where_a_price_is_set(published: BenchReport) -> None:
    priced = report_of(samples_of(PUBLISHED), settings=KpiSettings(price_usd_per_hour=3.6))
    headers = {table.title: table.header for table in tables(priced)}
    assert "dollars" in headers["KPI 3: compute cost per valid sample"]
    assert "0.103000" in to_text(priced)
    assert "dollars" not in to_text(published)


def test_html_escapes_names(published: BenchReport) -> None:
    page = to_html(report_of(samples_of(PUBLISHED), project="<script>"))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_what_a_candidate_printed_is_shown_and_not_acted_on() -> None:
    samples = samples_of(PUBLISHED)
    evil = "\x1b]0;owned\x07<script>alert(1)</script> | \u202eabc"
    bad = TimedBuild("baseline", 1.0, 1.0, Outcome.FAILED, SampleKind.COLD, 3, 99, evil, 1)
    report = report_of([*samples, bad], project="\x1b[31mred<b>")
    for text in (to_text(report), to_markdown(report), to_html(report)):
        assert "alert(1)" in text
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "<script>" not in to_markdown(report) + to_html(report)
    assert "<b>" not in to_markdown(report) + to_html(report)


def test_the_gain_of_the_loop_has_the_interval_of_the_speedup(published: BenchReport) -> None:
    (comparison,) = published.comparisons
    assert comparison.training_loop_gain_interval is not None
    assert comparison.cold_speedup is not None
    assert comparison.cold_speedup.interval is not None
    for gain, speedup in (
        (comparison.training_loop_gain_interval.low, comparison.cold_speedup.interval.low),
        (comparison.training_loop_gain_interval.high, comparison.cold_speedup.interval.high),
    ):
        assert gain == pytest.approx(1 / (0.2 + 0.8 / speedup))
    assert "1.19× [1.1" in to_text(published)


def test_cold_builds_far_below_incremental_checks_are_no_kpi_and_a_loud_warning() -> None:
    arms = [ArmInput("baseline", "as it is", {})]
    warm = {("baseline", SampleKind.COLD): (0.0126,) * 3, ("baseline", SampleKind.INCREMENTAL): (49.0,) * 3}
    report = report_of(samples_of(warm), arms=arms)
    assert report.baseline.not_cold
    assert report.baseline.kpis.samples_per_hour is None
    assert report.baseline.kpis.rollout_bound_samples_per_cluster_hour is None
    assert not report.measured
    text = to_text(report)
    assert "NOT COLD" in text
    assert "285" not in text


def test_a_cold_build_below_the_check_is_no_kpi_whoever_did_the_work() -> None:
    """A compiler that works in a daemon, or one that sleeps, uses no CPU time in the process tree."""
    arms = [ArmInput("baseline", "as it is", {})]
    times = {("baseline", SampleKind.COLD): (0.004,) * 3, ("baseline", SampleKind.INCREMENTAL): (1.01,) * 3}
    samples = [dataclasses.replace(each, cpu_seconds=0.003) for each in samples_of(times)]
    report = report_of(samples, arms=arms)
    assert report.baseline.not_cold
    assert not report.measured
    assert "891,506" not in to_text(report)


def test_an_edit_that_waited_for_a_core_does_not_make_a_cold_build_warm() -> None:
    arms = [ArmInput("baseline", "as it is", {})]
    times = {("baseline", SampleKind.COLD): (0.2,) * 3, ("baseline", SampleKind.INCREMENTAL): (30.0, 0.25, 40.0)}
    report = report_of(samples_of(times), arms=arms)
    assert not report.baseline.not_cold
    assert report.measured


def test_a_warm_snapshot_has_a_table_of_its_own() -> None:
    arms = [ArmInput("baseline", "as it is", {}), ArmInput("warm-snapshot", "restored", {"warm_snapshot": "yes"})]
    times_by_arm = {(arm.name, SampleKind.COLD): (10.0, 10.1, 10.2) for arm in arms}
    found = tables(report_of(samples_of(times_by_arm), arms=arms))
    cold, warm = (table for table in found if table.title.startswith("KPI 1"))
    assert "warm-snapshot" not in cold.text()
    assert "cold build" not in warm.text()
    assert "warm-snapshot" in warm.text()
