from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sample_rows import make_checkpoint, make_end, make_phases, make_run
from typer.testing import CliRunner

import extras
from mileage._errors import LedgerError, MileageError, UnmatchedError, UsageError
from mileage.cli.ledger import FORMATS, app
from mileage.ledger.rows import Run
from mileage.ledger.store import Store

FORMATS_OF_EXTRAS = {"parquet": extras.PARQUET, "tensorboard": extras.TENSORBOARD}
EVIL = "\x1b[31m[bold]<b>'; DROP TABLE ledger_run; --\x07"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mileage.db"
    monkeypatch.setenv("MILEAGE_DB", str(path))
    return path


@pytest.fixture
def runs(ledger: Path) -> list[Run]:
    """Three cheap runs, three dear ones, and one whose name is an attack."""
    made = []
    with Store(ledger) as store:
        for i, name in enumerate(["cheap"] * 3 + ["dear"] * 3 + [EVIL]):
            wall = (10.0 if name == "cheap" else 30.0) + 0.1 * i
            run = make_run(name=name, seed=i, launched_at=1000.0 + i, price_usd_per_hour=3600.0)
            end = make_end(
                run, wall_seconds=wall, train_seconds=wall - 1, eval_seconds=1.0, cost_usd=wall, cost_to_target=wall,
                wall_to_target=wall, billable_seconds=wall,
            )  # fmt: skip
            checkpoints = [make_checkpoint(run, seq, path=f"{EVIL}.safetensors") for seq in range(1, 21)]
            store.deliver([run, *checkpoints, *make_phases(run, 30, learn=wall - 1.0, eval=1.0), end])
            made.append(run)
    return made


def run_cli(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def run_json(*arguments: str) -> Any:
    return json.loads(run_cli(*arguments, "--json"))


def test_list_is_newest_first_filtered_and_limited(runs: list[Run]) -> None:
    assert [row["seed"] for row in run_json("list")] == [6, 5, 4, 3, 2, 1, 0]
    assert [row["seed"] for row in run_json("list", "--limit", "2")] == [6, 5]
    assert [row["seed"] for row in run_json("list", "cheap")] == [2, 1, 0]
    assert [row["seed"] for row in run_json("list", "name=dear,seed=4", "--state", "reached")] == [4]
    assert run_json("list", "--state", "crashed") == []
    lines = run_cli("list").splitlines()
    assert lines[0].replace("to target", "to-target").split()[3:7] == ["state", "steps", "wall", "to-target"]
    assert lines[-1].split()[1:4] == ["cheap", "0", "reached"]
    assert lines[-1].split()[-1] == "$10.00"


def test_show_prints_the_six_lines_the_phases_and_a_spread_of_checkpoints(runs: list[Run]) -> None:
    output = run_cli("show", runs[0].run_id, "--checkpoints", "4")
    assert "total compute cost: $10.00" in output
    assert "target reached: True" in output
    assert any(line.split()[:3] == ["learn", "9.000", "90.0"] for line in output.splitlines())
    steps = [line.split()[0] for line in output.splitlines() if line.strip().endswith(".safetensors")]
    assert steps == ["5,000", "10,000", "15,000", "20,000"]
    content = run_json("show", runs[0].run_id)
    assert content["report"]["cost_usd"] == 10.0
    assert len(content["checkpoints"]) == 20


def test_compare_ends_in_a_verdict(runs: list[Run]) -> None:
    output = run_cli("compare", "cheap", "dear")
    # Three runs in each arm are too few to decide a factor of three: (10.0 + 10.1 + 10.2) / (30.3 + 30.4 + 30.5).
    assert output.splitlines()[-1].startswith("verdict: undecided: A costs 0.332 times what B costs")
    content = run_json("compare", "cheap", "dear", "--sequential")
    assert (content["verdict"], content["label"]) == ("undecided", None)
    assert content["a"]["expected_cost_to_target"] == pytest.approx(10.1)


def test_compare_refuses_other_exams_unless_told_and_labels_it(runs: list[Run], ledger: Path) -> None:
    other = make_run(name="other exam", panel_id="q", price_usd_per_hour=3600.0)
    with Store(ledger) as store:
        store.deliver([other, make_end(other)])
    with pytest.raises(UnmatchedError, match="panel_id"):
        run_cli("compare", "cheap", "other exam")
    assert run_cli("compare", "cheap", "other exam", "--allow-unmatched", "panel_id").startswith("UNMATCHED: panel_id")


def test_no_command_prints_an_attack_raw(runs: list[Run], tmp_path: Path) -> None:
    outputs = [
        run_cli("list"),
        run_cli("list", "--json"),
        run_cli("show", runs[6].run_id),
        run_cli("show", runs[6].run_id, "--json"),
        run_cli("compare", runs[6].run_id, "cheap"),
        run_cli("export", "-f", "markdown"),
        run_cli("export", "-f", "json"),
        run_cli("doctor"),
    ]
    for output in outputs:
        assert "\x1b" not in output
        assert "\x07" not in output
    assert "[bold]" in outputs[0]  # shown as text, not taken as markup
    assert "<b>" not in outputs[5]
    assert len(run_json("list")) == 7


@pytest.mark.parametrize("format_", [pytest.param(name, marks=FORMATS_OF_EXTRAS.get(name, ())) for name in FORMATS])
def test_every_format_is_written(runs: list[Run], tmp_path: Path, format_: str) -> None:
    out = tmp_path / "out" / "file"
    if format_ in ("parquet", "tensorboard"):
        out.parent.mkdir()
        with pytest.raises(UsageError, match="needs --out"):
            run_cli("export", "-f", format_)
    assert run_json("export", "cheap", "-f", format_, "-o", str(out)) == {
        "runs": 3,
        "format": format_,
        "out": str(out),
    }
    assert out.exists()


def test_an_export_can_be_imported_elsewhere_and_twice(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cli("export", "-o", str(tmp_path / "all.json"))
    monkeypatch.setenv("MILEAGE_DB", str(tmp_path / "elsewhere.db"))
    for _ in range(2):
        assert len(run_json("import", str(tmp_path / "all.json"))["runs"]) == 7
    assert [row["run_id"] for row in run_json("list")] == [run.run_id for run in reversed(runs)]


def test_foreign_files_are_imported_with_what_they_do_not_say(ledger: Path, tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_text("frames,secs,eval/mean_reward\n100,10,480\n")
    (run_id,) = run_json(
        "import", str(tmp_path / "progress.csv"), "--name", "sb3", "--target", "mean_return>=475", "--price", "3600",
        "--column", "step=frames", "--column", "wall_seconds=secs", "--seed", "7",
    )["runs"]  # fmt: skip
    (row,) = run_json("list")
    assert (row["run_id"], row["name"], row["state"], row["cost_usd"], row["seed"]) == (
        run_id,
        "sb3",
        "reached",
        10.0,
        7,
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["list"], LedgerError, "there is no ledger"),
        (["import", "missing.csv"], UsageError, "cannot be read"),
        (["import", "x.csv", "--column", "speed=fast"], MileageError, "unknown figure 'speed'"),
        (["import", "x.csv", "--column", "speed"], UsageError, "write OURS=THEIRS"),
        (["import", "x.csv", "--state", "happy"], UsageError, "not an end state"),
        (["export", "-f", "xml"], UsageError, "not known"),
        (["list", "--limit", "-1"], UsageError, "--limit"),
        (["list", "--state", "happy"], UsageError, "not known"),
    ],
)
def test_mistakes_are_one_sentence(ledger: Path, arguments: list[str], error: type, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        run_cli(*arguments)
    assert "\n" not in str(caught.value)


def test_doctor_finds_a_healthy_ledger(runs: list[Run]) -> None:
    content = run_json("doctor")
    assert content["ok"]
    assert {check["name"]: check["found"] for check in content["checks"]}["integrity"] == "ok"


def test_every_command_has_help() -> None:
    for command in ("list", "show", "compare", "export", "import", "doctor"):
        assert "--db" in run_cli(command, "--help")
        assert "--json" in run_cli(command, "--help")
