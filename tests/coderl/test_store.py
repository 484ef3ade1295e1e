from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sample_rows import make_kpi, make_run

from mileage.coderl.arms import SampleKind, TimedBuild
from mileage.coderl.store import KPI_COLUMNS, KpiStore
from mileage.errors import LedgerError
from mileage.ledger import queries
from mileage.ledger.store import Store

SAMPLE = TimedBuild("baseline", 1.5, 2.5, kind=SampleKind.COLD, peak_rss_bytes=1 << 20)


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
    # One lock for all, with which the ledger is migrated, and none of a run's own.
    assert [file.name for file in tmp_path.iterdir() if "lock" in file.name] == ["kpi.db.lock"]


def test_a_running_run_is_not_taken_for_a_crashed_one(tmp_path: Path) -> None:
    first, second = KpiStore(tmp_path / "kpi.db"), KpiStore(tmp_path / "kpi.db")
    run = first.start_run("p", "rev", {})
    assert Store(tmp_path / "kpi.db").recover() == []
    other = second.start_run("p", "rev", {})
    assert rows(tmp_path / "kpi.db", "SELECT DISTINCT status FROM rl_run") == [("running",)]
    second.finish_run(other, None)
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


def test_a_table_of_another_tool_stays_its_own_and_takes_our_rows_once(tmp_path: Path) -> None:
    path = tmp_path / "bench-results.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE rl_kpi (project TEXT, speedup REAL, ts TEXT)")
    with Store(path) as store:
        run = make_run()
        store.deliver([make_kpi(run, 1), make_kpi(run, 1)])
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO rl_kpi (project, speedup, ts) VALUES ('theirs', 2.0, '2025')")
        database.execute("UPDATE rl_kpi SET speedup = 3.0 WHERE project = 'theirs'")
    assert rows(path, "SELECT project, speedup FROM rl_kpi ORDER BY ts DESC") == [("x", 1.5), ("theirs", 3.0)]


def test_the_run_is_a_run_of_the_ledger_with_its_samples_and_its_price(tmp_path: Path) -> None:
    store = KpiStore(tmp_path / "kpi.db", price_usd_per_hour=3600.0)
    run_id = store.start_run("p", "rev", {"runs": 1})
    store.add_sample(run_id, SAMPLE)
    store.finish_run(run_id, None)
    store.close()
    with Store(tmp_path / "kpi.db") as ledger:
        (recorded,) = ledger.read(queries.complete_runs, None)
    assert (recorded.run.name, recorded.state, recorded.run.env_id) == ("rl-bench p", "failed", "p")
    assert recorded.config == {"revision": "rev", "runs": 1}
    assert recorded.cost_usd == pytest.approx(recorded.wall_seconds)
    assert [(row.arm, row.wall_seconds, row.order) for row in recorded.samples] == [("baseline", 1.5, 0)]
