from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mileage.errors import UsageError
from mileage.ledger import queries, recorder
from mileage.ledger.launch import git_revision
from mileage.ledger.panels import Panel
from mileage.ledger.recorder import Ledger, RunRecorder
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.ledger.targets import Evaluation
from mileage.measure import clock as clock_module
from mileage.measure.clock import PhaseClock
from mileage.measure.machine import OTHERS, Counters
from mileage.report.cost import CostReport
from mileage.seeding import HELD_OUT_START


class Hand:
    """A clock moved by hand, in place of the system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000
        monkeypatch.setattr(clock_module, "_now", lambda: self.now)

    def minutes(self, amount: float) -> None:
        self.now += round(amount * 60e9)


def evaluation(panel: Panel, successes: int, value: float = 1.0) -> Evaluation:
    n = len(panel.seeds)
    success = np.arange(n) < successes
    return Evaluation.of(panel.seeds, np.where(success, 500.0, value), [10] * n, success)


@pytest.fixture
def panel() -> Panel:
    return Panel.default("CartPole-v1", 100, success="return>=475")


def launch(tmp_path: Path, **arguments: object) -> RunRecorder:
    given = {"clock": PhaseClock(), "resources": False, **arguments}
    return Ledger(tmp_path / "mileage.db").run(str(given.pop("name", "arm")), **given)  # type: ignore[arg-type]


def test_worked_example_comes_out_of_a_recorded_run_to_the_printed_digit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, panel: Panel
) -> None:
    hand = Hand(monkeypatch)
    with launch(tmp_path, panel=panel, target="success_rate>=0.90", price_usd_per_hour=2.20) as run:
        with run.phase("rollout"):
            hand.minutes(30.0)
        with run.phase("learn"):
            hand.minutes(12.0)
        with run.phase("eval"):
            hand.minutes(6.0)
        row = run.checkpoint(1_200_000_000, evaluation(panel, 92))
    assert (row.train_seconds, row.eval_seconds) == (42 * 60, 6 * 60)
    assert row.success_rate == 0.92
    assert round(row.cost_usd, 2) == 1.76

    with Store(tmp_path / "mileage.db") as store:
        report = CostReport(store.read(queries.complete, store.read(queries.only_record, run.run_id)))
    assert report.headline() == [
        "train throughput: 476,190 env steps/s (steady 476,190)",
        "total wall-clock: 48.0 min",
        "held-out success: 0.92",
        "target reached: True",
        "total compute cost: $1.76",
        "cost per billion steps: $1.47",
    ]
    assert report.phase_table()[:3] == [
        ("rollout", "1800.000", "62.5 %", "1"),
        ("learn", "720.000", "25.0 %", "1"),
        ("eval", "360.000", "12.5 %", "1"),
    ]
    assert sum(phase.seconds for phase in report.phases) == report.recorded.wall_seconds == 48 * 60
    assert report.recorded.metric("eval_overhead") == 0.125


def stored(tmp_path: Path, run: RunRecorder) -> RecordedRun:
    with Store(tmp_path / "mileage.db") as store:
        record: RecordedRun = store.read(queries.only_record, run.run_id)
        return record


def test_the_first_checkpoint_that_meets_the_target_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, panel: Panel
) -> None:
    hand = Hand(monkeypatch)
    with launch(tmp_path, panel=panel, target="success_rate>=0.90", price_usd_per_hour=60.0, instances=2) as run:
        rows = []
        for step, successes in ((100, 50), (200, 95), (300, 80)):
            hand.minutes(1.0)
            rows.append(run.checkpoint(step, evaluation(panel, successes)))
            assert rows[-1].target_met == (successes == 95)
            assert run.reached == (step >= 200)
        assert run.cost_usd == 6.0  # three minutes on two instances at a dollar a minute
    end = stored(tmp_path, run).end
    assert end is not None
    assert (end.state, end.env_steps, end.checkpoints) == ("reached", 300, 3)
    assert (end.steps_to_target, end.wall_to_target, end.cost_to_target) == (200, 120.0, 4.0)
    assert end.target_seq == rows[1].seq
    assert (end.wall_seconds, end.billable_seconds, end.cost_usd) == (180.0, 360.0, 6.0)
    assert end.success_rate == 0.95
    assert run.result is not None
    assert run.result.end == end


def test_the_run_is_on_disk_before_training_starts(tmp_path: Path, panel: Panel) -> None:
    run = launch(tmp_path, panel=panel, target="mean_return>=475", config={"lr": 3e-4}, seed=7, batch_size=64)
    (file,) = (tmp_path / "mileage.db.spool").iterdir()
    assert run.run_id in file.name
    assert file.stat().st_size > 0
    run.end("stopped", "enough")
    row = stored(tmp_path, run).run
    assert (row.seed, row.batch_size, row.target, row.panel_id) == (7, 64, "mean_return>=475.0", panel.panel_id)
    assert json.loads(row.config) == {"lr": 3e-4}
    assert Panel.from_json(row.panel or "") == panel
    assert row.pid == os.getpid()
    assert json.loads(row.machine)["cores"] >= 1


class BoomError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (BoomError("it broke \x1b[31m"), "failed", "BoomError: it broke"),
        (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
        (SystemExit(3), "stopped", "SystemExit"),
    ],
)
def test_an_error_is_recorded_and_goes_on(tmp_path: Path, error: BaseException, state: str, reason: str) -> None:
    run = launch(tmp_path)
    run.checkpoint(10)
    with pytest.raises(type(error)), run:
        raise error
    end = stored(tmp_path, run).end
    assert end is not None
    assert end.state == state
    assert end.reason.startswith(reason)
    assert end.env_steps == 10


@pytest.mark.parametrize(
    ("target", "state", "reason"),
    [("mean_return>=475", "not_reached", "the budget was used up"), (None, "finished", "no target was set")],
)
def test_a_run_that_ends_by_itself_says_how(tmp_path: Path, target: str | None, state: str, reason: str) -> None:
    with launch(tmp_path, target=target, panel=Panel.default("CartPole-v1", 1)) as run:
        pass
    end = stored(tmp_path, run).end
    assert end is not None
    assert (end.state, end.reason) == (state, reason)


def test_a_target_has_a_panel_and_is_reached_by_a_checkpoint_or_claimed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"target mean_return>=475.0 needs the panel"):
        launch(tmp_path, target="mean_return>=475")
    with launch(tmp_path, target="mean_return>=475", panel=Panel.default("CartPole-v1", 1)) as run:
        assert run.end("reached").state == "claimed"
    assert (stored(tmp_path, run).state, stored(tmp_path, run).reached) == ("claimed", False)


@pytest.mark.parametrize("step", [-1, 3.5, float("nan"), 2**63, "many", None])
def test_a_step_that_no_database_can_hold_is_refused_before_it_costs_the_run_its_end(
    tmp_path: Path, step: object
) -> None:
    with launch(tmp_path) as run:
        run.checkpoint(np.int32(3))
        with pytest.raises(UsageError, match="step must be a whole number"):
            run.checkpoint(step)  # type: ignore[arg-type]
    end = stored(tmp_path, run).end
    assert end is not None
    assert end.env_steps == 3


def test_an_evaluation_is_one_and_speaks_only_of_its_episodes(tmp_path: Path) -> None:
    class Flattering(Evaluation):
        @property
        def mean_return(self) -> float:
            return 500.0

    panel = Panel.default("CartPole-v1", 2, success="return>=475")
    with launch(tmp_path, target="success_rate>=0.5", panel=panel) as run:
        with pytest.raises(UsageError, match=r"must be a mileage.ledger.Evaluation, not Flattering"):
            run.checkpoint(1, Flattering.of(panel.seeds, [1.0, 1.0], [1, 1]))
        with pytest.raises(UsageError, match="whole numbers"):
            Evaluation.of([seed + 0.4 for seed in panel.seeds], [500.0] * 2, [500] * 2)
        with pytest.raises(UsageError, match="must not be negative"):
            run.checkpoint(1, Evaluation.of(panel.seeds, [500.0] * 2, [-1, 1]))
        assert run.checkpoint(1, Evaluation.of(panel.seeds, [float("inf")] * 2, [1, 1])).target_met is False
        with pytest.raises(UsageError, match="cannot hold a checkpoint row"):
            run.record([run.checkpoint(2)._replace(seq=99, target_met=True, mean_return=500.0)])


def test_the_first_end_counts_and_nothing_follows_it(tmp_path: Path) -> None:
    with launch(tmp_path) as run:
        first = run.end("failed", "diverged")
        assert run.end("reached") is first
        with pytest.raises(UsageError, match="has ended"):
            run.checkpoint(1)
    end = stored(tmp_path, run).end
    assert end is not None
    assert (end.state, end.reason) == ("failed", "diverged")
    with launch(tmp_path) as other, pytest.raises(UsageError, match="not an end state"):
        other.end("great")


def test_everything_about_a_checkpoint_is_kept(tmp_path: Path, panel: Panel) -> None:
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(b"weights")
    returns = np.arange(100.0)
    returns[3] = np.nan
    returns[50:] += 500.0
    episodes = Evaluation.of(panel.seeds, returns, np.arange(100), np.arange(100) >= 50)
    with launch(tmp_path, panel=panel) as run:
        run.checkpoint(
            5, episodes, path=policy, reset_reasons={"fell": 2, "time": 1}, claimed={"fps": 12.5, "note": "theirs"}
        )
        run.checkpoint(6, path=tmp_path / "gone")
        run.profile({"rollout": 0.61})
    with Store(tmp_path / "mileage.db") as store:
        first, second = store.read(queries.checkpoints, run.run_id)
        played = store.read(queries.episodes, run.run_id, first.seq)
        (profile,) = store.read(queries.profiles, run.run_id)
    assert first.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert json.loads(first.reset_reasons or "") == {"fell": 2, "time": 1}
    assert json.loads(first.claimed or "") == {"fps": 12.5, "note": "theirs"}
    assert (first.success_rate, first.mean_return) == (0.5, None)  # a return that is no number is absent
    assert (second.sha256, second.success_rate) == (None, None)
    assert [episode.seed for episode in played] == list(panel.seeds)
    assert [episode.length for episode in played] == list(range(100))
    assert [episode.episode_return for episode in played] == [*range(3), None, *range(4, 50), *range(550, 600)]
    assert json.loads(profile.summary) == {"rollout": 0.61}


def test_busy_time_of_other_threads_is_kept_beside_the_wall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(monkeypatch)
    with launch(tmp_path) as run:
        with run.phase("learn"):
            hand.minutes(1.0)
        run.clock.add_beside("collector 1", {"env_step": 55.0})
    assert run.result is not None
    wall = {phase.phase: phase.seconds for phase in run.result.phase_rows if not phase.beside}
    assert sum(wall.values()) == run.result.end.wall_seconds == 60.0
    assert [(p.phase, p.seconds) for p in run.result.phase_rows if p.beside] == [("collector 1/env_step", 55.0)]
    report = CostReport(run.result)
    assert report.phase_table()[-1] == ("collector 1/env_step", "55.000", "beside", "0")
    assert report.headline()[0] == "train throughput: no steps were counted"


def test_a_disabled_ledger_measures_and_writes_nothing(tmp_path: Path, panel: Panel) -> None:
    ledger = Ledger(tmp_path / "mileage.db", enabled=False)
    with ledger.run("x", panel=panel, target="success_rate>=0.9", resources=False) as run:
        run.checkpoint(5, evaluation(panel, 95))
        run.profile({})
    assert run.result is not None
    assert run.result.end.state == "reached"
    assert list(tmp_path.iterdir()) == []


def test_memory_is_measured(tmp_path: Path) -> None:
    with launch(tmp_path, resources=True) as run:
        row = run.checkpoint(1)
    assert row.peak_rss_gb is not None
    assert 0.01 < row.peak_rss_gb < 100
    end = stored(tmp_path, run).end
    assert end is not None
    assert end.peak_rss_gb is not None
    assert end.peak_rss_gb >= row.peak_rss_gb


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": HELD_OUT_START}, "reserved for held-out panels"),
        ({"target": "nonsense"}, "cannot be read"),
        ({"target": "success_rate>=0.9", "panel": Panel.default("x", 1)}, "needs a panel with a success definition"),
        ({"price": 1.0, "price_usd_per_hour": 1.0}, "former name"),
        ({"config": {"x": "y" * 10_000_000}}, "config is 10,000,"),
        ({"name": "x" * 10_000_000}, "name is 10,000,000 characters"),
        ({"parent_run_id": "../../../etc/passwd"}, "run id"),
    ],
)
def test_what_cannot_be_launched_is_refused_and_leaves_nothing(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        launch(tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_the_records_of_a_ledger_can_be_read(tmp_path: Path) -> None:
    for seed in (1, 2):
        with launch(tmp_path, name="arm", seed=seed):
            pass
    ledger = Ledger(tmp_path / "mileage.db")
    assert [record.run.seed for record in ledger.records()] == [2, 1]
    assert [record.run.seed for record in ledger.records("seed=1")] == [1]


def test_the_revision_of_a_repository_says_whether_it_was_changed(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert git_revision(tmp_path) is None
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    revision = git("rev-parse", "HEAD")
    assert git_revision(tmp_path) == revision
    (tmp_path / "file").write_text("2")
    assert git_revision(tmp_path) == revision + "+dirty"


def test_what_others_used_of_the_cores_is_kept_beside_the_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([Counters(0.0, 5.0, 0.0, 1.0, 0.0, 0.0), Counters(10.0, 25.0, 0.0, 11.0, 0.0, 0.0)])
    monkeypatch.setattr(recorder, "counters", lambda: next(readings))
    with Ledger(tmp_path / "l.db").run("x", resources=False) as run:
        pass
    assert run.result is not None
    assert [(row.phase, row.seconds) for row in run.result.phase_rows if row.beside] == [(OTHERS, pytest.approx(10.0))]
    assert OTHERS not in run.result.phases
