from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from sample_rows import make_checkpoint, make_end, make_phases, make_run
from typer.testing import CliRunner

import extras
from mileage.cli.ledger import FORMATS, app
from mileage.errors import LedgerError, MileageError, UnmatchedError, UsageError
from mileage.ledger.panels import Panel
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
    panel = Panel.default("CartPole-v1", 3, success="return>=475")
    exam = {"panel": panel.to_json(), "panel_id": panel.panel_id, "success": panel.success}
    with Store(ledger) as store:
        for i, name in enumerate(["cheap"] * 3 + ["dear"] * 3 + [EVIL]):
            wall = (10.0 if name == "cheap" else 30.0) + 0.1 * i
            run = make_run(name=name, seed=i, launched_at=1000.0 + i, price_usd_per_hour=3600.0, **exam)
            end = make_end(
                run, wall_seconds=wall, train_seconds=wall - 1, eval_seconds=1.0, cost_usd=wall, cost_to_target=wall,
                wall_to_target=wall, billable_seconds=wall,
            )  # fmt: skip
            checkpoints = [
                make_checkpoint(
                    run, seq, path=f"{EVIL}.safetensors", wall_seconds=wall * seq / 20, train_seconds=wall * seq / 25,
                    eval_seconds=wall * seq / 100,
                )
                for seq in range(1, 21)
            ]  # fmt: skip
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
    assert lines[0].replace("to target", "to-target").split()[2:9] == [
        "env",
        "by",
        "seed",
        "state",
        "steps",
        "wall",
        "to-target",
    ]
    assert lines[-1].split()[1:6] == ["cheap", "CartPole-v1", "ppo", "0", "reached"]
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
    # Runs that scatter by 1 % decide a factor of three, (10.0 + 10.1 + 10.2) / (30.3 + 30.4 + 30.5), and three runs say
    # little about failures.
    verdict = output.splitlines()[-1]
    assert verdict.startswith("verdict: A cheaper: A costs 0.332 times what B costs")
    assert "none of 3 and 3 runs failed, so at most 71 % and 71 % do" in verdict
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
        "claimed",
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


# What is said about runs afterwards


def test_a_voided_run_stays_and_is_labelled_everywhere(runs: list[Run], tmp_path: Path) -> None:
    run_cli("void", runs[0].run_id, "--reason", "wrong simulator")
    run_cli("annotate", runs[0].run_id, "the licence had run out")
    line = next(line for line in run_cli("list").splitlines() if runs[0].run_id in line)
    assert "reached, void" in line
    shown = run_cli("show", runs[0].run_id)
    assert "void: wrong simulator" in shown
    assert "annotation: the licence had run out" in shown
    assert [row["voided"] for row in run_json("list", runs[0].run_id)] == [True]
    assert len(run_json("list")) == 7
    run_cli("export", "--out", str(tmp_path / "all.json"))
    document = json.loads((tmp_path / "all.json").read_text())
    assert [note["kind"] for note in document["runs"][0]["notes"]] == ["void", "annotation"]


def test_a_voided_run_is_left_out_of_comparisons(runs: list[Run]) -> None:
    run_cli("void", runs[0].run_id)
    assert run_json("compare", "cheap", "dear")["a"]["runs"] == 2
    for run in runs[1:3]:
        run_cli("void", run.run_id)
    with pytest.raises(UsageError, match="all 3 runs of 'cheap' are void"):
        run_cli("compare", "cheap", "dear")


def test_redact_takes_a_field_out_and_says_so(runs: list[Run]) -> None:
    assert run_cli("redact", runs[0].run_id, "command", "-r", "a key").startswith("redacted command")
    shown = run_cli("show", runs[0].run_id)
    assert "command: ***" in shown
    assert "redaction of command: a key" in shown


def test_backup_is_a_ledger(runs: list[Run], tmp_path: Path) -> None:
    run_cli("backup", str(tmp_path / "copy.db"))
    assert len(run_json("list", "--db", str(tmp_path / "copy.db"))) == 7
    with pytest.raises(UsageError, match="is there already"):
        run_cli("backup", str(tmp_path / "copy.db"))


def test_a_run_that_goes_on_has_a_cost_so_far(ledger: Path) -> None:
    run = make_run(price_usd_per_hour=3600.0)
    with Store(ledger) as store:
        store.deliver([run, make_checkpoint(run, 1), make_checkpoint(run, 2, wall_seconds=20.0)])
        store.beat(run.run_id, 33.0)
    (row,) = run_json("list")
    assert (row["state"], row["cost_usd"], row["env_steps"], row["mean_return"]) == ("running", 33.0, 2000, 200.0)
    assert run_cli("list").splitlines()[1].split()[-1] == "$33.00"
    shown = run_cli("show", run.run_id)
    assert "state: running, 2,000 steps in 33.00 s" in shown
    assert "$33.00 so far" in shown
    assert run_json("show", run.run_id)["so_far"]["cost_usd"] == 33.0


def test_one_row_has_success_policy_and_hash(runs: list[Run], tmp_path: Path) -> None:
    run_cli("export", runs[0].run_id, "--format", "csv", "--out", str(tmp_path / "runs.csv"))
    (row,) = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert (row["success_rate"], row["policy_sha256"], row["policy_step"]) == ("1.0", "ff", "20000")
    assert row["policy_success_rate"] == "0.5"
    assert row["policy_path"].endswith(".safetensors")
    assert run_json("show", runs[0].run_id)["policy"]["policy_sha256"] == "ff"


# Taking in


def test_an_import_is_all_or_nothing_and_says_what_it_did(runs: list[Run], tmp_path: Path) -> None:
    run_cli("export", "cheap", "--out", str(tmp_path / "all.json"))
    other = str(tmp_path / "other.db")
    said = run_cli("import", str(tmp_path / "all.json"), "--db", other)
    assert said.startswith("imported 3 runs with 60 checkpoint rows, 6 phase rows, 3 end rows")
    assert "imported 0 runs; 3 runs were there already" in run_cli("import", str(tmp_path / "all.json"), "--db", other)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        run_cli("import", str(tmp_path / "all.json"), str(tmp_path / "bad.json"), "--db", str(tmp_path / "third.db"))
    assert run_json("list", "--db", str(tmp_path / "third.db")) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: run["end"].update(state="won"), "state must be one of"),
        (lambda run: run["end"].update(wall_seconds=-1.0), "wall_seconds of an end row must be 0 or more"),
        (lambda run: run["checkpoints"][0].update(cost_usd=float("inf")), "must be a finite number"),
        (lambda run: run["checkpoints"][0].update(seq=2), "two different checkpoint rows"),
        (lambda run: run["run"].update(target="mean_return>=1.0"), "is in the ledger already with target"),
    ],
)
def test_an_import_that_contradicts_itself_or_the_ledger_is_refused(
    runs: list[Run], tmp_path: Path, damage: Any, message: str
) -> None:
    run_cli("export", runs[0].run_id, "--out", str(tmp_path / "one.json"))
    document = json.loads((tmp_path / "one.json").read_text())
    damage(document["runs"][0])
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=message):
        run_cli("import", str(tmp_path / "bad.json"))


def test_the_row_of_a_cost_ledger_without_steps_can_be_imported(ledger: Path, tmp_path: Path) -> None:
    row = {
        "checkpoint": 320, "train_minutes": 42.0, "eval_minutes": 6.0, "peak_gpu_gb": 18.4, "heldout_success": 0.92,
        "billable_cost_usd": 1.76,
    }  # fmt: skip
    (tmp_path / "row.json").write_text(json.dumps(row))
    said = run_cli("import", str(tmp_path / "row.json"), "--target", "success_rate>=0.9")
    assert said.strip().endswith("; 1 only claim to have reached their target")
    (listed,) = run_json("list")
    assert (listed["success_rate"], listed["env_steps"], listed["peak_gpu_gb"]) == (0.92, 0, 18.4)
    assert listed["cost_usd"] == pytest.approx(1.76)
    assert "total compute cost: $1.76" in run_cli("show", listed["run_id"])


# What comes out


def test_no_json_has_a_number_that_json_has_not(ledger: Path) -> None:
    run = make_run(config='{"clip":Infinity,"x":[NaN]}')  # as an earlier version wrote it
    with Store(ledger) as store:
        store.deliver([run, make_checkpoint(run, 1, claimed='{"loss":NaN}'), make_end(run)])

    def refuse(name: str) -> None:
        raise AssertionError(name)

    for arguments in (("list", "--json"), ("show", run.run_id, "--json"), ("export",), ("export", "-f", "mllog")):
        for line in run_cli(*arguments).splitlines() if "mllog" in arguments else [run_cli(*arguments)]:
            json.loads(line.removeprefix(":::MLLOG "), parse_constant=refuse)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_terminal_cuts_a_cost(
    runs: list[Run], ledger: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from mileage.cli import ledger_tables

    run = make_run(name="a name that is long enough to fill a terminal by itself", price_usd_per_hour=3600.0)
    with Store(ledger) as store:
        wall = 1_234_567.89
        end = make_end(
            run, wall_seconds=wall, cost_usd=wall, cost_to_target=wall, wall_to_target=wall, eval_seconds=1.0
        )
        store.deliver([run, make_checkpoint(run, 1, cost_usd=wall, path="a/long/path/" * 6), end])
    console = Console(highlight=False, soft_wrap=True, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(ledger_tables, "_console", lambda: console)
    for arguments in (("list",), ("show", run.run_id), ("compare", "cheap", "dear")):
        output = CliRunner().invoke(app, list(arguments), catch_exceptions=False).output + capsys.readouterr().out
        assert "…" not in output
        if arguments == ("list",):  # what a run is can be seen on any terminal
            assert all(word in output for word in (" env ", " by ", " seed ", "CartPole-v1", "ppo"))
        if arguments[0] != "compare":
            assert "$1,234,567.89" in output
