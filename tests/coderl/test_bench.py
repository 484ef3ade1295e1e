from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from coderl.fakes import FakeExecutor, fake_result
from mileage.coderl.arms import SampleKind
from mileage.coderl.bench import BenchConfig, Progress, describe, run_bench
from mileage.coderl.kpi import KpiSettings, PassRateSource
from mileage.coderl.patching import PatchSample
from mileage.coderl.projects.detection import detect
from mileage.coderl.sandbox.executor import BuildJob, BuildResult, StepOutcome
from mileage.coderl.store import KpiStore
from mileage.errors import BuildError, UsageError
from mileage.measure import Outcome


def state(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return everything about a tree that a benchmark could disturb."""
    found = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (info.st_mode, info.st_mtime_ns, data)
    return found


def fake(cold: dict[str, float], check: dict[str, float]) -> FakeExecutor:
    """Answer builds and checks with fixed times by arm."""

    def answer(job: BuildJob) -> BuildResult:
        table = check if "check" in job.steps[0] else cold
        return fake_result(table[job.label])

    return FakeExecutor(answer)


def test_kpis_of_a_benchmark_without_a_clock(cargo_project: Path, work: Path, tmp_path: Path) -> None:
    executor = fake({"baseline": 103.0, "no-debuginfo": 82.0}, {"baseline": 12.4, "no-debuginfo": 4.1})
    store = KpiStore(tmp_path / "kpi.db")
    events: list[Progress] = []
    config = BenchConfig(runs=3, modes=("no-debuginfo",), jobs=2, settings=KpiSettings(price_usd_per_hour=1.0))
    report = run_bench(
        detect(cargo_project), config, store=store, executor=executor, work_base=work, on_progress=events.append
    )
    store.close()
    base, mode = report.arms
    assert base.kpis.samples_per_hour == pytest.approx(3600 / 103)
    assert mode.kpis.feedback_loops_per_hour == pytest.approx(3600 / 4.1)
    assert report.comparisons[0].cold_speedup is not None
    assert report.comparisons[0].cold_speedup.value == pytest.approx(103 / 82)
    assert base.pass_rate_source is PassRateSource.TIMED_BUILDS
    assert [event.done for event in events] == list(range(13))
    with sqlite3.connect(tmp_path / "kpi.db") as database:
        assert database.execute("SELECT count(*) FROM rl_sample").fetchone() == (12,)
        assert database.execute("SELECT mode, slicer_cold_secs FROM rl_kpi").fetchall() == [("no-debuginfo", 82.0)]
        assert database.execute("SELECT status FROM rl_run").fetchall() == [("finished",)]


def test_cold_builds_find_no_output_and_checks_find_a_new_line_each_time(cargo_project: Path, work: Path) -> None:
    texts: list[bytes] = []

    def answer(job: BuildJob) -> BuildResult:
        tree = Path(job.cwd)
        (tree / "target").mkdir(exist_ok=True)
        (tree / "target" / "made").touch()
        texts.append((tree / "core/src/lib.rs").read_bytes())
        return fake_result(1.0)

    def answer_cold(job: BuildJob) -> BuildResult:
        if "build" in job.steps[0]:
            assert not (Path(job.cwd) / "target").exists()
        return answer(job)

    run_bench(detect(cargo_project), BenchConfig(runs=3, jobs=1), executor=FakeExecutor(answer_cold), work_base=work)
    original = (cargo_project / "core/src/lib.rs").read_bytes()
    # Three cold builds, one check that is not counted, three checks of edits.
    assert texts[:4] == [original] * 4
    assert len(set(texts[4:])) == 3
    for text in texts[4:]:
        assert text.startswith(original)
        assert len(text.splitlines()) == len(original.splitlines()) + 1


def test_the_users_tree_is_untouched_and_the_work_area_is_gone(cargo_project: Path, work: Path) -> None:
    (cargo_project / "target").mkdir()
    (cargo_project / "target" / "of-the-user").write_text("kept")
    before = state(cargo_project)
    report = run_bench(detect(cargo_project), BenchConfig(runs=1, jobs=1, modes=("no-debuginfo",)), work_base=work)
    assert {sample.outcome for sample in report.samples} == {Outcome.OK}
    assert state(cargo_project) == before
    assert list(work.iterdir()) == []


def test_a_warm_snapshot_against_cold_builds(cargo_project: Path, work: Path, isolation: None) -> None:
    report = run_bench(detect(cargo_project), BenchConfig(runs=1, jobs=1, modes=("warm-snapshot",)), work_base=work)
    assert {sample.outcome for sample in report.samples} == {Outcome.OK}
    assert any("restoring the built tree (overlay)" in note for note in report.notes)
    assert all(sample.cpu_seconds > 0 and sample.peak_rss_bytes > 1 << 20 for sample in report.samples)


def test_failed_and_late_builds_are_results(cargo_project: Path, work: Path) -> None:
    outcomes = iter(
        [fake_result(9.0), fake_result(0.1, 101, output="error: no\n"), fake_result(60.0, -9, StepOutcome.TIMEOUT)]
    )
    executor = FakeExecutor(lambda job: next(outcomes) if "build" in job.steps[0] else fake_result(1.0))
    report = run_bench(detect(cargo_project), BenchConfig(runs=3, jobs=1), executor=executor, work_base=work)
    cold = [sample for sample in report.samples if sample.kind is SampleKind.COLD]
    assert [sample.outcome for sample in cold] == [Outcome.OK, Outcome.FAILED, Outcome.TIMEOUT]
    assert cold[1].diagnostic == "error: no"
    assert report.baseline.kpis.seconds_per_valid_sample == pytest.approx(27.0)


def test_a_real_build_that_hangs_is_a_timeout(tmp_path: Path, work: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    (root / "rl-bench.toml").write_text('[rl-bench]\nbuild = "sleep 30"\noutputs = ["out"]\n')
    report = run_bench(detect(root), BenchConfig(runs=1, timeout_seconds=0.3), work_base=work)
    assert [sample.outcome for sample in report.samples] == [Outcome.TIMEOUT]


def test_a_project_without_outputs_is_copied_again_for_each_cold_build(make_project: Path, work: Path) -> None:
    stale: list[bool] = []

    def answer(job: BuildJob) -> BuildResult:
        stale.append((Path(job.cwd) / "app").exists())
        (Path(job.cwd) / "app").touch()
        return fake_result(1.0)

    run_bench(detect(make_project), BenchConfig(runs=2, jobs=1), executor=FakeExecutor(answer), work_base=work)
    assert stale[:2] == [False, False]


def test_an_edit_command_is_undone(tmp_path: Path, work: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    (root / "a").write_text("0\n")
    (root / "rl-bench.toml").write_text(
        '[rl-bench]\nbuild = "true"\ncheck = "cat a >> seen"\nedit = "echo $MILEAGE_EDIT_NUMBER >> a"\nclean = "true"\n'
    )
    contents: list[str] = []

    class Spy(FakeExecutor):
        def run(self, job: BuildJob) -> BuildResult:
            from mileage.coderl.sandbox.executor import LocalExecutor

            if "seen" in job.steps[0][-1]:
                contents.append((Path(job.cwd) / "a").read_text())
            return LocalExecutor().run(job)

    run_bench(detect(root), BenchConfig(runs=2), executor=Spy(lambda job: fake_result(1.0)), work_base=work)
    assert contents == ["0\n", "0\n3\n", "0\n4\n"]
    assert (root / "a").read_text() == "0\n"


def test_a_corpus_gives_the_pass_rate(make_project: Path, work: Path) -> None:
    corpus = (
        PatchSample("good", path="part.c", content='#include "part.h"\nint part(int x) { return x + 1 + 0; }\n'),
        PatchSample("bad", path="part.c", content="int part(int x) { return y; }\n"),
        PatchSample("outside", path="../x", content=""),
        PatchSample("also-bad", path="main.c", content="int main(void) { return part(; }\n"),
    )
    config = BenchConfig(runs=1, jobs=1, corpus=corpus)
    report = run_bench(detect(make_project), config, work_base=work)
    assert report.baseline.pass_rate == 0.25
    assert report.baseline.pass_rate_source is PassRateSource.CORPUS
    assert report.corpus == {"baseline": {"pass": 1, "compile-error": 2, "does-not-apply": 1}}
    assert report.baseline.cold is not None
    assert report.baseline.kpis.seconds_per_valid_sample == pytest.approx(report.baseline.cold.value * 4)


def test_a_compiler_cache_starts_empty_and_is_filled_before_it_counts(
    cargo_project: Path, work: Path, need: Callable[..., None]
) -> None:
    need("sccache")
    executor = FakeExecutor(lambda job: fake_result(1.0))
    run_bench(detect(cargo_project), BenchConfig(runs=1, jobs=1, modes=("sccache",)), executor=executor, work_base=work)
    builds = [job for job in executor.jobs if "build" in job.steps[0]]
    filled = [job for job in builds if job.env.get("RUSTC_WRAPPER") == "sccache"]
    assert len(filled) == 2
    assert len(builds) == 3
    assert all(str(work) in job.env["SCCACHE_DIR"] for job in builds)


def test_a_dry_run_says_what_would_run_and_runs_nothing(cargo_project: Path) -> None:
    before = state(cargo_project)
    lines = "\n".join(describe(detect(cargo_project), BenchConfig(runs=3, modes=("no-debuginfo",), jobs=2)))
    assert "cargo build --workspace --profile dev --jobs 2" in lines
    assert "one new line in core/src/lib.rs" in lines
    assert "with CARGO_PROFILE_DEV_DEBUG=0" in lines
    assert "12 samples in random order" in lines
    assert state(cargo_project) == before


def test_a_broken_project_cannot_have_a_warm_snapshot(cargo_project: Path, work: Path, isolation: None) -> None:
    (cargo_project / "app/src/main.rs").write_text("fn main() { nothing }\n")
    with pytest.raises(BuildError, match=r"cannot be built: error\[E0425\]"):
        run_bench(detect(cargo_project), BenchConfig(runs=1, jobs=1, modes=("warm-snapshot",)), work_base=work)
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "named"),
    [({"runs": 0}, "runs"), ({"timeout_seconds": 0.0}, "timeout"), ({"modes": ("mold", "mold")}, "modes")],
)
def test_impossible_configurations_are_refused(values: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        BenchConfig(**values)  # type: ignore[arg-type]


def test_the_environment_of_the_process_is_not_changed(cargo_project: Path, work: Path) -> None:
    before = dict(os.environ)
    executor = FakeExecutor(lambda job: fake_result(1.0))
    run_bench(detect(cargo_project), BenchConfig(runs=1, jobs=1), executor=executor, work_base=work)
    assert dict(os.environ) == before
