"""Rows of a run in other trackers: there, in time, and never in the way."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

import extras
from mileage.errors import MileageError
from mileage.ledger import trackers
from mileage.ledger.recorder import Ledger
from mileage.ledger.rows import End, Run


class Kept:
    """A tracker that keeps what it is told, after a pause."""

    def __init__(self, pause: float = 0.0, fails: bool = False) -> None:
        self.pause, self.fails = pause, fails
        self.told: list[tuple[int, dict[str, float]]] = []
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.release = threading.Event()

    def begin(self, run: Run) -> None:
        self.begun.append(run.run_id)

    def log(self, at: float, step: int, values: Mapping[str, float]) -> None:
        if self.fails:
            raise RuntimeError("no such server")
        if self.pause:
            self.release.wait(self.pause)
        self.told.append((step, dict(values)))

    def end(self, end: End) -> None:
        self.ended.append(end.state)


def train(ledger: Ledger, checkpoints: int = 3) -> str:
    with ledger.run("mine", config={"rate": 0.1}, resources=False) as run:
        for step in range(checkpoints):
            run.checkpoint(100 * step, claimed={"loss": 1.0 / (1 + step)})
        return run.run_id


def test_a_mirror_is_told_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    monkeypatch.setitem(trackers.MIRRORS, "json", lambda: kept)
    run_id = train(Ledger(tmp_path / "l.db", mirrors=["json"]))
    assert kept.begun == [run_id]
    assert [(step, values["claimed/loss"]) for step, values in kept.told] == [(0, 1.0), (100, 0.5), (200, 1 / 3)]
    assert kept.ended == ["finished"]


def test_a_slow_tracker_holds_nobody_up_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(pause=600.0)
    monkeypatch.setitem(trackers.MIRRORS, "json", lambda: kept)
    monkeypatch.setattr(trackers, "QUEUE_LENGTH", 5)
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.2)
    with pytest.warns(UserWarning, match="the mirror in json is not complete"):
        train(Ledger(tmp_path / "l.db", mirrors=["json"]), checkpoints=200)
    kept.release.set()
    (run,) = Ledger(tmp_path / "l.db").records()
    assert run.end is not None
    assert run.end.checkpoints == 200, "the ledger has them all"
    assert run.wall_seconds < 600


def test_a_tracker_that_fails_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers.MIRRORS, "json", lambda: Kept(fails=True))
    with pytest.warns(UserWarning, match="RuntimeError: no such server; the ledger is"):
        train(Ledger(tmp_path / "l.db", mirrors=["json"]))
    assert [run.state for run in Ledger(tmp_path / "l.db").records()] == ["finished"]


def test_the_environment_names_mirrors_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    monkeypatch.setitem(trackers.MIRRORS, "json", lambda: kept)
    monkeypatch.setenv(trackers.VARIABLE, "json, json")
    train(Ledger(tmp_path / "l.db"))
    assert len(kept.begun) == 1
    train(Ledger(tmp_path / "l.db", mirrors=[]))
    assert len(kept.begun) == 1


def test_a_mirror_that_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MileageError, match="unknown mirror 'wanb': did you mean 'wandb'"):
        train(Ledger(tmp_path / "l.db", mirrors=["wanb"]))
    monkeypatch.setitem(trackers.MIRRORS, "no_such_module", Kept)
    with pytest.raises(MileageError, match=r"pip install .*\[no_such_module\]'$"):
        train(Ledger(tmp_path / "l.db", mirrors=["no_such_module"]))
    assert not (tmp_path / "l.db").exists()


@extras.TENSORBOARD
def test_tensorboard_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mileage.ledger.importing import tracker_runs

    monkeypatch.setenv("MILEAGE_TENSORBOARD", str(tmp_path / "board"))
    run_id = train(Ledger(tmp_path / "l.db", mirrors=["tensorboard"]))
    records = tracker_runs(tmp_path / "board")[run_id]
    assert [record["step"] for record in records] == [0, 100, 200]
    assert [record["claimed/loss"] for record in records] == pytest.approx([1.0, 0.5, 1 / 3])


@extras.WANDB
def test_wandb_offline_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mileage.ledger.importing import tracker_runs

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 120.0)
    train(Ledger(tmp_path / "l.db", mirrors=["wandb"]))
    (records,) = tracker_runs(tmp_path / "wandb").values()
    assert [record["step"] for record in records] == [0, 100, 200]
    assert [record["claimed/loss"] for record in records] == pytest.approx([1.0, 0.5, 1 / 3])


@extras.MLFLOW
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 120.0)
    run_id = train(Ledger(tmp_path / "l.db", mirrors=["mlflow"]))
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("mileage")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["mileage.run_id"] == run_id
    assert run.data.params["rate"] == "0.1"
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "claimed/loss")] == [1.0, 0.5, 1 / 3]
    assert run.info.status == "FINISHED"


@extras.TRACKIO
def test_trackio_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mileage.ledger.importing import tracker_runs

    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 120.0)
    run_id = train(Ledger(tmp_path / "l.db", mirrors=["trackio"]))
    found = {name: records for name, records in tracker_runs(tmp_path / "trackio").items() if run_id in name}
    (records,) = found.values()
    assert [record["step"] for record in records] == [0, 100, 200]
    assert [record["claimed/loss"] for record in records] == pytest.approx([1.0, 0.5, 1 / 3])


def test_a_trackio_database_is_read_as_it_is_laid_out(tmp_path: Path) -> None:
    from mileage.ledger.importing import tracker_runs

    with sqlite3.connect(tmp_path / "project.db") as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        rows = [
            ("2026-01-01T00:00:00", "a", 1, {"loss": 2.0}),
            ("2026-01-01T00:00:09", "a", 5, {"loss": 1.0, "x": "y"}),
        ]
        for when, run, step, metrics in rows:
            database.execute(
                "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)",
                (when, run, step, json.dumps(metrics)),
            )
    assert tracker_runs(tmp_path / "project.db") == {
        "project/a": [{"step": 1, "wall_seconds": 0.0, "loss": 2.0}, {"step": 5, "wall_seconds": 9.0, "loss": 1.0}]
    }


@extras.PARQUET
def test_neptunes_export_becomes_claimed_runs(tmp_path: Path) -> None:
    import datetime
    import subprocess
    import sys

    import pyarrow
    from pyarrow import parquet

    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    rows = [
        {"run_id": "RUN-1", "attribute_path": "eval/mean_reward", "step": step, "timestamp": start + datetime.timedelta(
            seconds=step), "float_value": value} for step, value in ((100, 10.0), (200, 480.0))
    ]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "export.parquet")
    words = [
        "ledger",
        "import",
        str(tmp_path / "export.parquet"),
        "--db",
        str(tmp_path / "l.db"),
        "--env",
        "CartPole-v1",
    ]
    words += ["--column", "mean_return=eval/mean_reward", "--target", "mean_return>=475"]
    subprocess.run([sys.executable, "-m", "mileage", *words], check=True, capture_output=True)
    (run,) = Ledger(tmp_path / "l.db").records()
    assert run.run.name == "RUN-1"
    assert run.state == "claimed", "it says so, and nobody has examined it"
    assert not run.reached
    assert run.wall_seconds == 100.0
    words = ["ledger", "import", str(tmp_path / "l.db"), "--db", str(tmp_path / "l.db")]
    refused = subprocess.run([sys.executable, "-m", "mileage", *words], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "holds no figures of a tracker" in refused.stderr
