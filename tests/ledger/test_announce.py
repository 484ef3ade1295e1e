"""A run is in the ledger before anything is imported or built."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mileage
from mileage.ledger import queries, spool
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from waiting import until

SLOW = """
import time
import gymnasium as gym

class Slow(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        time.sleep({seconds})
        raise RuntimeError("the simulator has no licence")
"""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(mileage.__file__).parent.parent)}


def _train(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mileage", "train", *arguments, "--db", "x.db", "--price", "3600", "--threads", "1"],
        env=_environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def _records(tmp_path: Path) -> list[RecordedRun]:
    with Store(tmp_path / "x.db") as store:
        return store.read(queries.records)


def _wait_for_announcement(tmp_path: Path) -> None:
    until(lambda: spool.waiting(tmp_path / "x.db.spool"))


def test_a_process_killed_while_it_imports_is_a_crashed_run_with_its_cost(tmp_path: Path) -> None:
    process = _train(tmp_path, "ppo", "CartPole-v1", "--name", "early", "--seed", "7")
    _wait_for_announcement(tmp_path)
    process.kill()
    process.communicate()
    (recorded,) = _records(tmp_path)
    assert (recorded.state, recorded.run.name, recorded.algorithm) == ("crashed", "early", "ppo")
    assert (recorded.env, recorded.seed) == ("CartPole-v1", 7)
    assert recorded.end is not None
    assert recorded.end.wall_seconds > 0.0
    assert recorded.end.cost_usd == pytest.approx(recorded.end.wall_seconds)  # at a dollar a second


def test_an_environment_that_fails_while_it_is_built_is_a_failed_run_with_its_cost(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.format(seconds=1.0))
    process = _train(tmp_path, "ppo", "slow.py:Slow", "--set", "n_envs=1")
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    (recorded,) = _records(tmp_path)
    assert recorded.state == "failed", output
    assert "the simulator has no licence" in recorded.reason
    assert recorded.end is not None
    assert recorded.end.wall_seconds >= 1.0
    assert recorded.end.init_seconds > 0.0


def test_sigterm_before_training_stops_the_run(tmp_path: Path) -> None:
    process = _train(tmp_path, "ppo", "CartPole-v1")
    _wait_for_announcement(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    (recorded,) = _records(tmp_path)
    assert recorded.state in ("stopped", "crashed")
    assert recorded.end is not None
    assert recorded.end.wall_seconds > 0.0


@pytest.mark.parametrize(
    "arguments", [("ppo", "CartPole-v1", "--help"), ("nosuch", "CartPole-v1"), ("ppo",), ("ppo", "CartPole-v1", "--x")]
)
def test_a_command_that_does_not_train_leaves_no_run(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    process = _train(tmp_path, *arguments)
    process.communicate(timeout=120)
    assert process.returncode in (0, 2)
    assert spool.waiting(tmp_path / "x.db.spool") == []
    assert not (tmp_path / "x.db").exists()


def test_every_seed_of_a_command_is_one_run_and_has_what_the_announcement_did_not(tmp_path: Path) -> None:
    process = _train(tmp_path, "ppo", "CartPole-v1", "--steps", "2048", "--episodes", "2", "--seeds", "2", "-q")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    records = _records(tmp_path)
    assert [record.seed for record in records] == [1, 0]
    assert all(record.run.panel_id and record.run.machine_id and record.config for record in records)
    assert spool.waiting(tmp_path / "x.db.spool") == []
    # The second is billed from when its turn came, not from the start of the process.
    assert records[0].run.started_at >= records[1].run.started_at + records[1].wall_seconds - 0.5


def test_the_row_that_is_written_last_is_the_one_that_counts(tmp_path: Path) -> None:
    from sample_rows import make_checkpoint, make_run

    run = make_run(config="{}")
    file = spool.Spool(tmp_path, run.run_id)
    file.append([run])
    file.append([run._replace(config='{"lr":1}'), make_checkpoint(run, 1)])
    file.close(remove=False)
    content = spool.read(file.path)
    assert content is not None
    assert [type(row).__name__ for row in content.rows] == ["Run", "Checkpoint"]
    assert content.run is not None
    assert content.run.config == '{"lr":1}'


def test_a_run_is_announced_before_numpy_is_there() -> None:
    heavy = "{'numpy', 'numba', 'sqlalchemy', 'rich'}"
    code = f"import sys, mileage.ledger.announce; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip() == "[]"
