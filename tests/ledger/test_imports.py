from __future__ import annotations

import json
from pathlib import Path

import pytest

from mileage.errors import UsageError
from mileage.ledger import queries
from mileage.ledger.importing import ImportSettings, read_rows
from mileage.ledger.panels import Panel
from mileage.ledger.rows import Checkpoint, End, EndState, Run
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.ledger.targets import Target
from mileage.report.cost import CostReport


def take_in(path: Path, **settings: object) -> tuple[Run, list[Checkpoint], End]:
    run, *checkpoints, end = read_rows(path, ImportSettings(**({"name": "foreign"} | settings)))  # type: ignore[arg-type]
    assert isinstance(run, Run)
    assert isinstance(end, End)
    return run, checkpoints, end  # type: ignore[return-value]


def test_the_cost_ledger_row_of_the_worked_example_becomes_its_report(tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    row = {
        "checkpoint": 320,
        "env_steps": 1_200_000_000,
        "train_minutes": 42.0,
        "eval_minutes": 6.0,
        "peak_gpu_gb": 18.4,
        "heldout_success": 0.92,
        "billable_cost_usd": 1.76,
    }
    path.write_text(json.dumps(row))
    run, (checkpoint,), end = take_in(path, target=Target.parse("success_rate>=0.9"), price=2.2)
    assert json.loads(checkpoint.claimed or "") == row
    assert end.state == "claimed"
    assert (end.wall_to_target, end.cost_to_target, checkpoint.target_met) == (None, None, None)
    assert CostReport(RecordedRun(run, end)).headline() == [
        "train throughput: 476,190 env steps/s (steady 476,190)",
        "total wall-clock: 48.0 min",
        "held-out success: 0.92",
        "target reached: claimed, with no episodes to show for it",
        "total compute cost: $1.76",
        "cost per billion steps: $1.47",
    ]
    assert end.peak_gpu_gb == 18.4


def test_a_progress_file_of_stable_baselines(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    path.write_text(
        "time/total_timesteps,time/time_elapsed,rollout/ep_rew_mean,eval/mean_reward\n"
        "2048,1.5,22.0,\n4096,3.25,80.5,200.0\n6144,5.0,190.0,480.0\n"
    )
    run, checkpoints, end = take_in(path, framework="sb3", target=Target.parse("mean_return>=475"))
    assert [c.step for c in checkpoints] == [2048, 4096, 6144]
    # What was logged about training episodes is a claim, not a held-out return.
    assert [c.mean_return for c in checkpoints] == [None, 200.0, 480.0]
    assert [c.target_met for c in checkpoints] == [None, None, None]
    assert (end.state, end.wall_to_target, end.steps_to_target, end.wall_seconds) == ("claimed", None, None, 5.0)
    assert json.loads(checkpoints[0].claimed or "")["rollout/ep_rew_mean"] == "22.0"
    assert (run.framework, run.accounting_window) == ("sb3", "as imported")


def test_json_lines_with_mapped_columns_and_a_given_state(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"frames": 10, "secs": 1}\n{"frames": 30, "secs": 3, "note": null}\n')
    _, checkpoints, end = take_in(
        path, columns={"step": "frames", "wall_seconds": "secs"}, state=EndState.FAILED, price="1800+1800"
    )
    assert [(c.step, c.wall_seconds, c.cost_usd) for c in checkpoints] == [(10, 1.0, 1.0), (30, 3.0, 3.0)]
    assert (end.state, end.cost_usd, end.env_steps) == ("failed", 3.0, 30)


def test_an_imported_run_lives_in_the_ledger_and_is_not_taken_for_dead(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("step,wall_seconds\n5,1\n")
    panel = Panel.default("CartPole-v1", 3)
    with Store(tmp_path / "mileage.db") as store:
        store.deliver(read_rows(path, ImportSettings("x", panel=panel)))
        assert store.recover() == []
        (record,) = store.read(queries.records)
    assert (record.state, record.run.panel_id, record.run.env_id) == ("finished", panel.panel_id, "CartPole-v1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "", "has no rows"),
        ("x.csv", "a,b\n1,2\n", "no time column"),
        ("x.csv", "wall_seconds\n1\n", "no column with env steps"),
        ("x.csv", "step,wall_seconds\nten,1\n", "step of the file is 'ten'"),
        ("x.csv", "step,wall_seconds\n-1,1\n", "negative or impossible"),
        ("x.csv", "step,wall_seconds,eval_seconds\n1,1,2\n", "negative or impossible"),
        ("x.csv", "step,wall_seconds\n1e300,1\n", "negative or impossible"),
        ("x.csv", "step,wall_seconds\nnan,1\n", "no column with env steps"),
        ("x.csv", "step,wall_seconds,junk\n1,1," + "x" * 2_000_000 + "\n", "not CSV|characters of JSON"),
        ("x.json", "{", "is not JSON"),
        ("x.json", "[]", "one object or a list of objects"),
        ("x.json", "3", "one object or a list of objects"),
        ("x.json", "[" * 100_000, "is not JSON"),
        ("x.json", '{"step": 1, "wall_seconds": 1, "junk": "' + "x" * 2_000_000 + '"}', "characters of JSON"),
        ("x.json", '{"step": {"a": 1}, "wall_seconds": 1}', "not a number"),
    ],
)
def test_what_is_not_a_run_is_refused_in_one_sentence(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message) as caught:
        take_in(tmp_path / name)
    assert len(str(caught.value)) < 1000


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "x.csv", tmp_path / "missing.json", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            take_in(path)
