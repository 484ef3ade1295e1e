"""A run recorded from Python and one recorded by the command line are the same kind of run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mileage
from mileage.errors import UsageError
from mileage.ledger import queries
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.measure import PhaseClock
from mileage.report.compare import compare_selections

STEPS, EVERY, TARGET = 2048, 1024, "mean_return>=100000"


def train_by_command(db: Path, out: Path) -> None:
    command = [
        sys.executable, "-m", "mileage", "train", "ppo", "CartPole-v1", "--steps", str(STEPS), "--seed", "3",
        "--threads", "1", "--eval-every", str(EVERY), "--episodes", "5", "--target", TARGET, "--price", "3.60",
        "--name", "command", "--db", str(db), "--out", str(out), "--quiet",
    ]  # fmt: skip
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def train_in_python(db: Path, out: Path, **options: object) -> RecordedRun:
    with mileage.PPO("CartPole-v1", seed=3, threads=1) as agent:
        panel = agent.default_panel(mileage.Target.parse(TARGET), 5)
        return agent.learn(
            STEPS, target=TARGET, panel=panel, eval_every=EVERY, checkpoint=out, ledger=db, name="python",
            price_usd_per_hour="3.60", clock=PhaseClock(), **options,  # type: ignore[arg-type]
        )  # fmt: skip


def filled(*rows: Any) -> list[list[str]]:
    """The columns of every row that hold something."""
    return [[name for name, value in row._asdict().items() if value is not None] for row in rows]


def test_python_records_what_the_command_line_does(tmp_path: Path) -> None:
    db = tmp_path / "ledger.db"
    train_by_command(db, tmp_path / "out")
    returned = train_in_python(db, tmp_path / "python.safetensors")
    with Store(db) as store:
        command, python = store.read(queries.complete_runs, None)
        comparison = compare_selections(store, "command", "python")
    assert (command.run.name, python.run.name) == ("command", "python")
    assert comparison.matching.label is None
    assert filled(python.run, python.end) == filled(command.run, command.end)
    assert filled(*python.checkpoints) == filled(*command.checkpoints)
    assert filled(*python.episodes) == filled(*command.episodes)
    assert filled(*python.profiles) == filled(*command.profiles)
    # What others burn beside a run is on a busy machine alone.
    named = [{row.phase for row in run.phase_rows} - {"others/cpu"} for run in (python, command)]
    assert named[0] == named[1]
    different = {name for name in command.run._fields if getattr(command.run, name) != getattr(python.run, name)}
    own = {"run_id", "name", "launched_at", "started_at", "pid", "process_token", "command", "price", "machine"}
    assert different == own
    before = {"cpu_seconds_before_clock": 0.0}
    assert json.loads(python.run.machine) | before == json.loads(command.run.machine) | before
    assert json.loads(python.run.price) | {"frozen_at": 0} == json.loads(command.run.price) | {"frozen_at": 0}
    # The same seed learns the same, whoever asks.
    assert [row.mean_return for row in python.checkpoints] == [row.mean_return for row in command.checkpoints]
    # What is returned is what is in the ledger.
    assert (returned.run, returned.end, returned.checkpoints) == (python.run, python.end, python.checkpoints)
    assert sorted(returned.phase_rows) == sorted(python.phase_rows)
    assert (returned.episodes, returned.profiles) == (python.episodes, python.profiles)


def test_nothing_is_written_where_no_ledger_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEAGE_DB", str(tmp_path / "usual.db"))
    with mileage.PPO("CartPole-v1", n_envs=2, n_steps=8, minibatch=16, hidden=(8,), preset="none") as agent:
        panel = agent.default_panel(episodes=1)
        for nothing in (None, False):
            run = agent.learn(16, panel=panel, ledger=nothing)
            assert not run.in_ledger
            assert agent.run_id is None
        assert list(tmp_path.iterdir()) == []
        first = agent.learn(16, panel=panel, ledger=True, clock=PhaseClock())
        second = agent.learn(16, panel=panel, ledger=mileage.Ledger(), clock=PhaseClock())
    assert [record.run_id for record in mileage.Ledger().records()] == [second.run_id, first.run_id]
    assert (first.steps_before, first.steps, second.steps) == (32, 48, 64)
    assert (first.run.step_budget, second.run.parent_run_id) == (16, first.run_id)


def test_a_run_that_raises_is_recorded_as_failed(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no more")

    db = tmp_path / "ledger.db"
    with (
        mileage.PPO("CartPole-v1", n_envs=2, n_steps=8, minibatch=16, hidden=(8,), preset="none") as agent,
        pytest.raises(RuntimeError, match="no more"),
    ):
        agent.learn(64, panel=agent.default_panel(episodes=1), callback=fail, ledger=db)
    (record,) = mileage.Ledger(db).records()
    assert (record.state, record.reason) == ("failed", "RuntimeError: no more")
    assert record.run_id == agent.run_id


def test_a_price_and_a_name_need_no_ledger_to_be_checked() -> None:
    with (
        mileage.PPO("CartPole-v1", n_envs=2, n_steps=8, minibatch=16, hidden=(8,), preset="none") as agent,
        pytest.raises(UsageError, match="price"),
    ):
        agent.learn(16, price_usd_per_hour="cheap")


def test_a_run_says_what_it_is_and_nothing_that_it_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    agent = mileage.PPO("CartPole-v1", seed=3, n_envs=4, n_steps=64)
    agent.learn(256, eval_every=0)
    run = agent.learn(256, target="mean_return>=501", eval_every=256)
    assert "target mean_return>=501.0 cannot be reached: no episode of CartPole-v1 returns more than 500" in (
        capsys.readouterr().err
    )
    assert "256 steps after 256 before, " in repr(run)  # the seconds are those of this call
    assert "at the end of 1 evaluation>" in repr(run)
    bare = dataclasses.replace(run, run=run.run._replace(seed=None, target=None))
    assert "None" not in repr(bare)
    html = run._repr_html_()
    assert not re.search(r"\d s</td><td[^>]*>s<", html)
    assert "env steps / training s" in html
