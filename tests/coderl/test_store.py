from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from mileage._errors import LedgerError
from mileage.coderl.measure import BuildSample, SampleKind
from mileage.coderl.store import KPI_COLUMNS, KpiStore

SAMPLE = BuildSample("baseline", 1.5, 2.5, kind=SampleKind.COLD, peak_rss_bytes=1 << 20)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as database:
        return database.execute(query).fetchall()


def test_a_sample_is_readable_by_others_as_soon_as_it_is_added(tmp_path: Path) -> None:
    path = tmp_path / "kpi.db"
    store = KpiStore(path)
    run = store.start_run("p", "rev", {"runs": 1})
    store.add_sample(run, SAMPLE)
    assert rows(path, "SELECT arm, wall_seconds, cpu_seconds, outcome FROM rl_sample") == [("baseline", 1.5, 2.5, "ok")]
    assert rows(path, "SELECT status FROM rl_run") == [("running",)]
    store.finish_run(run, None)
    assert rows(path, "SELECT status FROM rl_run") == [("failed",)]
    store.close()
    assert [file.name for file in tmp_path.iterdir() if "lock" in file.name] == []


def test_a_running_run_is_not_taken_for_a_crashed_one(tmp_path: Path) -> None:
    first, second = KpiStore(tmp_path / "kpi.db"), KpiStore(tmp_path / "kpi.db")
    run = first.start_run("p", "rev", {})
    assert second.close_crashed() == 0
    first.finish_run(run, None)
    first.close()
    second.close()


def test_a_table_that_is_already_there_gains_the_missing_columns(tmp_path: Path) -> None:
    path = tmp_path / "bench-results.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE rl_kpi (project TEXT, speedup REAL, own_column TEXT, ts TEXT)")
        database.execute("INSERT INTO rl_kpi VALUES ('old', 2.0, 'kept', '2025')")
    KpiStore(path).close()
    names = {row[1] for row in rows(path, "PRAGMA table_info(rl_kpi)")}
    assert names >= set(KPI_COLUMNS) | {"own_column"}
    assert rows(path, "SELECT project, speedup, own_column, mode FROM rl_kpi") == [("old", 2.0, "kept", None)]


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kpi.db"
    path.write_text("x" * 4096)
    with pytest.raises(LedgerError, match="cannot be opened"):
        KpiStore(path)
