"""What earlier versions trained, wrote and recorded: the same seeds give the same parameters, old files still open."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from safetensors.numpy import load_file

import mileage
from golden.make_golden import CASES, Case, arithmetic, fresh, policy_arrays, train
from mileage.coderl.store import KpiStore

FOLDER = Path(__file__).with_name("before")
SAME_ARITHMETIC = json.loads((FOLDER / "machine.json").read_text())["arithmetic"] == arithmetic()


def _check(case: Case, found: dict[str, np.ndarray[Any, Any]], expected: dict[str, np.ndarray[Any, Any]]) -> None:
    # Torch is told by none of what tells the compiler.
    same = SAME_ARITHMETIC and (case.backend == "native" or numba.config.CPU_NAME is None)
    for name, array in found.items():
        if same:
            assert np.array_equal(array, expected[name]), name
        else:
            # Another processor adds in another order; over so few steps the difference stays small.
            np.testing.assert_allclose(array, expected[name], rtol=0.05, atol=0.02, err_msg=name)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    if found.backend == "torch":
        pytest.importorskip("torch", reason="the torch extra is not installed")
    return found


def test_the_same_seed_gives_the_same_parameters(case: Case) -> None:
    with fresh(case) as agent:
        _check(case, train(agent, case.steps), load_file(FOLDER / f"{case.name}.checkpoint.safetensors"))


def test_an_old_checkpoint_opens_and_goes_on_where_it_stopped(case: Case) -> None:
    saved = FOLDER / f"{case.name}.checkpoint.safetensors"
    with mileage.load(saved, threads=2) as agent:
        _check(case, policy_arrays(agent), load_file(saved))
        _check(case, train(agent, case.steps), load_file(FOLDER / f"{case.name}.end.safetensors"))


def test_an_old_ledger_opens_with_every_run(tmp_path: Path) -> None:
    db = tmp_path / "ledger.db"
    shutil.copy(FOLDER / "ledger.db", db)
    with sqlite3.connect(db) as connection:
        expected = dict(connection.execute("SELECT run_id, state FROM ledger_run JOIN ledger_end USING (run_id)"))
    found = {record.run.run_id: record.state for record in mileage.Ledger(db).records()}
    assert found == expected
    assert len(found) == 5


def test_an_old_rl_bench_database_becomes_a_ledger_with_every_row(tmp_path: Path) -> None:
    db = tmp_path / "rl-bench.db"
    shutil.copy(FOLDER / "rl-bench.db", db)
    kpi_columns = (
        "id, project, mode, baseline_cold_secs, slicer_cold_secs, speedup, slicer_throughput_per_hr, run_id, ts"
    )
    queries = (
        "SELECT run_id, project, revision, status, started_at, ended_at FROM rl_run",
        'SELECT * FROM rl_sample ORDER BY "order"',
        f"SELECT {kpi_columns} FROM rl_kpi",
    )

    def rows() -> list[list[Any]]:
        with sqlite3.connect(db) as connection:
            return [connection.execute(query).fetchall() for query in queries]

    expected = rows()
    assert [len(each) for each in expected] == [1, 12, 1]
    (record,) = mileage.Ledger(db).records()
    assert rows() == expected
    assert (record.run_id, record.run.name, record.state) == (expected[0][0][0], "rl-bench proj", "not_reached")
    assert record.wall_seconds == 2.0
    with KpiStore(db) as store:  # and it takes new ones
        run_id = store.start_run("proj", "rev", {})
        store.finish_run(run_id, None)
    assert [len(each) for each in rows()] == [2, 12, 1]
