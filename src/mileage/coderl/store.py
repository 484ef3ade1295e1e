"""The SQLite database of rl-bench: runs, every finished sample as soon as it is there, and the `rl_kpi` table.

`rl_kpi` has the columns that queries written for other tools' databases use; `slicer_*` holds the figures of the
accelerated mode whatever it is, and `mode` names it. A table that is already there only gains columns.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mileage._errors import LedgerError
from mileage.coderl.measure import BuildSample
from mileage.coderl.report import BenchReport, verdict_words

KPI_COLUMNS: Mapping[str, str] = {
    "project": "TEXT",
    "mode": "TEXT",
    "baseline_cold_secs": "REAL",
    "slicer_cold_secs": "REAL",
    "speedup": "REAL",
    "speedup_low": "REAL",
    "speedup_high": "REAL",
    "verdict": "TEXT",
    "baseline_throughput_per_hr": "REAL",
    "slicer_throughput_per_hr": "REAL",
    "baseline_incr_secs": "REAL",
    "slicer_incr_secs": "REAL",
    "incr_speedup": "REAL",
    "pass_rate": "REAL",
    "pass_rate_source": "TEXT",
    "secs_per_valid_sample": "REAL",
    "usd_per_valid_sample": "REAL",
    "gpus": "INTEGER",
    "rollout_fraction": "REAL",
    "rollout_bound_per_cluster_hr": "REAL",
    "training_loop_per_cluster_hr": "REAL",
    "training_loop_gain": "REAL",
    "revision": "TEXT",
    "run_id": "TEXT",
    "ts": "TEXT",
}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS rl_run (
    run_id TEXT PRIMARY KEY, project TEXT NOT NULL, revision TEXT NOT NULL, status TEXT NOT NULL,
    started_at TEXT NOT NULL, ended_at TEXT, setup TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS rl_sample (
    run_id TEXT NOT NULL REFERENCES rl_run, arm TEXT NOT NULL, kind TEXT NOT NULL, round INTEGER NOT NULL,
    "order" INTEGER NOT NULL, outcome TEXT NOT NULL, exit_code INTEGER NOT NULL, wall_seconds REAL NOT NULL,
    cpu_seconds REAL NOT NULL, peak_rss_bytes INTEGER NOT NULL, diagnostic TEXT NOT NULL, ts TEXT NOT NULL,
    PRIMARY KEY (run_id, "order")
);
CREATE TABLE IF NOT EXISTS rl_kpi (id INTEGER PRIMARY KEY);
"""


@dataclass(frozen=True)
class KpiRecord:
    """One row of `rl_kpi`: a mode against its baseline, as plain values for any other store."""

    values: Mapping[str, Any]


def now() -> str:
    """Return the time in UTC, to the second, sortable."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class KpiStore:
    """An open database; samples are committed one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locks: dict[str, int] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, timeout=30)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(_SCHEMA)
            self._add_columns()
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"the database {path} cannot be opened: {error}") from None

    def _add_columns(self) -> None:
        have = {row[1] for row in self._db.execute("PRAGMA table_info(rl_kpi)")}
        for name, kind in KPI_COLUMNS.items():
            if name not in have:
                # Names and kinds are the constants above, never input.
                self._db.execute(f"ALTER TABLE rl_kpi ADD COLUMN {name} {kind}")

    def start_run(self, project: str, revision: str, setup: Mapping[str, Any]) -> str:
        """Open a run and return its id; runs whose process has died are closed as `crashed` first."""
        self.close_crashed()
        run_id = uuid.uuid4().hex
        self._locks[run_id] = _lock(self._lock_path(run_id))
        self._db.execute(
            "INSERT INTO rl_run VALUES (?, ?, ?, 'running', ?, NULL, ?)",
            (run_id, project, revision, now(), json.dumps(setup, sort_keys=True)),
        )
        return run_id

    def _lock_path(self, run_id: str) -> Path:
        return self.path.with_name(f".{self.path.name}.{run_id}.lock")

    def close_crashed(self) -> int:
        """Mark runs that are open but whose process is gone; return how many."""
        closed = 0
        for (run_id,) in self._db.execute("SELECT run_id FROM rl_run WHERE status = 'running'").fetchall():
            if run_id in self._locks:
                continue
            try:
                lock = _lock(self._lock_path(run_id))
            except BlockingIOError:
                continue
            self._db.execute("UPDATE rl_run SET status = 'crashed', ended_at = ? WHERE run_id = ?", (now(), run_id))
            self._lock_path(run_id).unlink(missing_ok=True)
            os.close(lock)
            closed += 1
        return closed

    def add_sample(self, run_id: str, sample: BuildSample) -> None:
        """Commit one finished sample."""
        self._db.execute(
            "INSERT INTO rl_sample VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run_id,
                sample.arm,
                str(sample.kind),
                sample.round,
                sample.order,
                str(sample.outcome),
                sample.exit_code,
                sample.wall_seconds,
                sample.cpu_seconds,
                sample.peak_rss_bytes,
                sample.diagnostic,
                now(),
            ),
        )

    def finish_run(self, run_id: str, report: BenchReport | None) -> None:
        """Close a run; with a report, write its KPI rows in the same transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for record in kpi_records(report, run_id) if report else ():
                names = ", ".join(record.values)
                marks = ", ".join("?" * len(record.values))
                self._db.execute(f"INSERT INTO rl_kpi ({names}) VALUES ({marks})", tuple(record.values.values()))
            status = "finished" if report else "failed"
            self._db.execute("UPDATE rl_run SET status = ?, ended_at = ? WHERE run_id = ?", (status, now(), run_id))
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        self._lock_path(run_id).unlink(missing_ok=True)
        os.close(self._locks.pop(run_id))

    def close(self) -> None:
        """Close the database."""
        self._db.close()


def _lock(path: Path) -> int:
    """Take the lock that the kernel drops when this process dies; BlockingIOError if another process has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def kpi_records(report: BenchReport, run_id: str) -> tuple[KpiRecord, ...]:
    """Return one record per mode; a run without modes gives one for the baseline alone."""
    base = report.baseline
    arms = report.arms[1:] or report.arms
    comparisons = {comparison.mode: comparison for comparison in report.comparisons}
    records = []
    for arm in arms:
        against = comparisons.get(arm.name)
        cold = against.cold_speedup if against else None
        quick = against.incremental_speedup if against else None
        values: dict[str, Any] = {
            "project": report.project,
            "mode": arm.name,
            "baseline_cold_secs": base.cold.value if base.cold else None,
            "slicer_cold_secs": arm.cold.value if arm.cold else None,
            "speedup": cold.value if cold else None,
            "speedup_low": cold.interval.low if cold and cold.interval else None,
            "speedup_high": cold.interval.high if cold and cold.interval else None,
            "verdict": verdict_words(cold) if against else None,
            "baseline_throughput_per_hr": base.kpis.samples_per_hour,
            "slicer_throughput_per_hr": arm.kpis.samples_per_hour,
            "baseline_incr_secs": base.incremental.value if base.incremental else None,
            "slicer_incr_secs": arm.incremental.value if arm.incremental else None,
            "incr_speedup": quick.value if quick else None,
            "pass_rate": arm.pass_rate,
            "pass_rate_source": str(arm.pass_rate_source),
            "secs_per_valid_sample": arm.kpis.seconds_per_valid_sample,
            "usd_per_valid_sample": arm.kpis.usd_per_valid_sample,
            "gpus": report.settings.gpus,
            "rollout_fraction": report.settings.rollout_fraction,
            "rollout_bound_per_cluster_hr": arm.kpis.rollout_bound_samples_per_cluster_hour,
            "training_loop_per_cluster_hr": arm.kpis.training_loop_samples_per_cluster_hour,
            "training_loop_gain": against.training_loop_gain if against else None,
            "revision": report.revision,
            "run_id": run_id,
            "ts": report.started_at,
        }
        records.append(KpiRecord(values))
    return tuple(records)
