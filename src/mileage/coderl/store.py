"""What rl-bench leaves in the ledger: its run, every sample as soon as it is there, and a row of `rl_kpi` per mode.

`rl_kpi` has the columns that queries written for other tools' databases use; `slicer_*` holds the figures of the
accelerated mode whatever it is, and `mode` names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime

from mileage.coderl.arms import TimedBuild
from mileage.coderl.report import BenchReport, verdict_words
from mileage.errors import LedgerError
from mileage.ledger.address import DbAddress
from mileage.ledger.recorder import Ledger, RunRecorder
from mileage.ledger.rows import BuildKpi, BuildSample, EndState, Row
from mileage.ledger.store import Store
from mileage.records import ReadRecord

KPI_COLUMNS = tuple(name for name in BuildKpi._fields if name != "seq")


def now() -> str:
    """The time in UTC, to the second, sortable."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class KpiStore:
    """An open ledger that a benchmark writes to; runs whose process has died are closed when it is opened."""

    def __init__(self, db: DbAddress = None, *, price_usd_per_hour: float | str | None = None) -> None:
        """Open the ledger at `db`, by default the usual one; the machine that builds costs `price_usd_per_hour`."""
        self._ledger = Ledger(db)
        self._price = price_usd_per_hour
        self._store = Store(self._ledger.url)
        self._runs: dict[str, tuple[RunRecorder, ExitStack]] = {}

    def __enter__(self) -> KpiStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_run(self, project: str, revision: str, setup: ReadRecord) -> str:
        """Launch the run of a benchmark; its id."""
        self._store.recover()
        recorder = self._ledger.run(
            f"rl-bench {project}", algorithm="rl-bench", env_id=project, config={"revision": revision, **setup},
            price_usd_per_hour=self._price, step_rule="timed builds",
        )  # fmt: skip
        stack = ExitStack()
        stack.enter_context(recorder.phase("env_step"))
        self._runs[recorder.run_id] = recorder, stack
        self._deliver([recorder.row])
        return recorder.run_id

    def add_sample(self, run_id: str, sample: TimedBuild) -> None:
        """Commit one finished sample."""
        recorder, _ = self._runs[run_id]
        row = BuildSample(
            run_id, sample.arm, str(sample.kind), sample.round, sample.order, str(sample.outcome), sample.exit_code,
            sample.wall_seconds, sample.cpu_seconds, sample.peak_rss_bytes, sample.diagnostic, ts=now(),
        )  # fmt: skip
        recorder.record([row])
        self._deliver([row])

    def finish_run(self, run_id: str, report: BenchReport | None) -> None:
        """Close a run with its report; without one it has failed."""
        recorder, stack = self._runs.pop(run_id)
        kpis = kpi_rows(report, run_id) if report else ()
        recorder.record(kpis)
        if report is not None:
            recorder.checkpoint(len(report.samples))
            recorder.profile({"rl_kpi": [row._asdict() for row in kpis]})
        stack.close()
        ended = recorder.end() if report else recorder.end(EndState.FAILED, "the benchmark was not finished")
        assert ended.end is not None
        self._deliver([*kpis, *ended.phase_rows, *ended.profiles, ended.end])

    def _deliver(self, rows: Sequence[Row]) -> None:
        """Bring rows into the database now. They are on disk already, and the recorder says what keeps them there."""
        with suppress(LedgerError):
            self._store.deliver(rows)

    def close(self) -> None:
        """Close the database."""
        self._store.close()


def kpi_rows(report: BenchReport, run_id: str) -> tuple[BuildKpi, ...]:
    """One row per mode; a run without modes gives one for the baseline alone."""
    base = report.baseline
    comparisons = {comparison.mode: comparison for comparison in report.comparisons}
    rows = []
    for seq, arm in enumerate(report.arms[1:] or report.arms, 1):
        against = comparisons.get(arm.name)
        cold = against.cold_speedup if against else None
        quick = against.incremental_speedup if against else None
        rows.append(BuildKpi(
            run_id=run_id, seq=seq, project=report.project, mode=arm.name,
            baseline_cold_secs=base.cold.value if base.cold and not base.not_cold else None,
            slicer_cold_secs=arm.cold.value if arm.cold and not arm.not_cold else None,
            speedup=cold.value if cold else None,
            speedup_low=cold.interval.low if cold and cold.interval else None,
            speedup_high=cold.interval.high if cold and cold.interval else None,
            verdict=verdict_words(cold) if against else None, baseline_throughput_per_hr=base.kpis.samples_per_hour,
            slicer_throughput_per_hr=arm.kpis.samples_per_hour,
            baseline_incr_secs=base.incremental.value if base.incremental else None,
            slicer_incr_secs=arm.incremental.value if arm.incremental else None,
            incr_speedup=quick.value if quick else None, pass_rate=arm.pass_rate,
            pass_rate_source=str(arm.pass_rate_source), secs_per_valid_sample=arm.kpis.seconds_per_valid_sample,
            usd_per_valid_sample=arm.kpis.usd_per_valid_sample, gpus=report.settings.gpus,
            rollout_fraction=report.settings.rollout_fraction,
            rollout_bound_per_cluster_hr=arm.kpis.rollout_bound_samples_per_cluster_hour,
            training_loop_per_cluster_hr=arm.kpis.training_loop_samples_per_cluster_hour,
            training_loop_gain=against.training_loop_gain if against else None, revision=report.revision,
            ts=report.started_at,
        ))  # fmt: skip
    return tuple(rows)
