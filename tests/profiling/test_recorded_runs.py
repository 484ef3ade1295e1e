"""Anyone's loop that records phases can be diagnosed, and its profile is kept under its own id."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mileage.errors import UsageError
from mileage.ledger import queries
from mileage.ledger.recorder import Ledger
from mileage.ledger.store import Store
from mileage.measure import PhaseClock
from mileage.profiling import profile_recorded, profile_run
from mileage.profiling.model import Bottleneck
from mileage.profiling.run import failed_share


def record(db: str, phase: str, seconds: float, **options: str) -> str:
    with Ledger(db).run("my-loop", algorithm="mine", env_id="Own-v0", resources=False, **options) as run:  # type: ignore[arg-type]
        with run.phase(phase):
            time.sleep(seconds)
        run.checkpoint(1000)
    return run.run_id


@pytest.mark.parametrize(
    ("phase", "bottleneck"),
    [("transfer", Bottleneck.TRANSFER_BOUND), ("sync", Bottleneck.SYNC_BOUND), ("learn", Bottleneck.LEARNER_BOUND)],
)
def test_a_loop_of_ones_own(phase: str, bottleneck: Bottleneck, tmp_path: Path) -> None:
    db = str(tmp_path / "ledger.db")
    # A run's clock may count from the start of this process: only what comes after the first run is the loop's own.
    record(db, phase, 0.0)
    run_id = record(db, phase, 0.3)
    found = profile_recorded(run_id, db=db)
    # What else took time, such as writing on a busy machine, may come before it.
    assert bottleneck in [each.bottleneck for each in found.findings]
    assert found.run.phases[phase] >= 0.3
    assert found.run.sum_error < 0.01
    assert found.run.env_steps == 1000
    assert found.calibration is None
    with Store(db) as store:
        rows = store.read(queries.profiles, run_id)
    assert [json.loads(row.summary)["verdict"] for row in rows] == [found.verdict]
    assert rows[0].run_id == run_id


def test_a_profiled_run_keeps_its_summary_under_its_id(tmp_path: Path) -> None:
    db = str(tmp_path / "ledger.db")
    options = {
        "preset": "none",
        "n_envs": 4,
        "n_steps": 16,
        "hidden": (8, 8),
        "episodes": 2,
        "effort": 0.05,
        "replay": 120.0,
    }
    found = profile_run("ppo", "CartPole-v1", steps=256, db=db, name="small", **options)
    assert found.run.run_id is not None
    with Store(db) as store:
        run = store.read(queries.only_record, "small")
        rows = store.read(queries.profiles, run.run.run_id)
        phases = store.read(queries.latest_phases, run.run.run_id)
    assert run.run.run_id == found.run.run_id
    summary = json.loads(rows[0].summary)
    assert summary["findings"][0]["bottleneck"] == found.findings[0].bottleneck.value
    assert summary["run"]["wall_seconds"] == found.run.wall_seconds
    # The replays after the run are no part of it.
    assert run.end is not None
    assert run.end.wall_seconds == pytest.approx(found.run.wall_seconds)
    assert sum(row.seconds for row in phases if not row.beside) == pytest.approx(found.run.wall_seconds)
    again = profile_recorded("small", db=db)
    assert again.run.phases == pytest.approx(dict(found.run.phases))
    with Store(db) as store:
        assert [row.seq for row in store.read(queries.profiles, run.run.run_id)] == [1, 2]


def test_only_failed_and_crashed_runs_count_as_failed(tmp_path: Path) -> None:
    db = str(tmp_path / "ledger.db")
    record(db, "learn", 0.0)
    assert failed_share(db, {"algorithm": "mine", "env": "Own-v0"}) == 0.0
    clock = PhaseClock(start_ns=time.perf_counter_ns() - 2 * 10**8)
    run = Ledger(db).run("other", algorithm="mine", env_id="Own-v0", resources=False, clock=clock)
    with pytest.raises(RuntimeError), run:
        raise RuntimeError("planted")
    assert 0.0 < failed_share(db, {"algorithm": "mine", "env": "Own-v0"}) < 1.0
    assert failed_share(db, {}, "other") == 1.0
    assert failed_share(str(tmp_path / "none.db"), {"algorithm": "mine", "env": "Own-v0"}) == 0.0


def test_an_unknown_run_is_a_sentence(tmp_path: Path) -> None:
    db = str(tmp_path / "ledger.db")
    record(db, "learn", 0.0)
    with pytest.raises(UsageError, match="no run matches"):
        profile_recorded("nothing-like-it", db=db)
