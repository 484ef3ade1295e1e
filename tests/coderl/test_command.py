from __future__ import annotations

import errno
import json
import os
import sqlite3
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mileage.cli import main
from mileage.cli.rl_bench import rl_bench
from mileage.errors import UsageError
from mileage.ledger.recorder import Ledger

APP = typer.Typer()
APP.command()(rl_bench)


@pytest.fixture
def project(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILEAGE_WORK", str(work))
    monkeypatch.setenv("MILEAGE_DB", str(tmp_path / "ledger.db"))
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_text("x = 1\n")
    (root / "rl-bench.toml").write_text(
        '[rl-bench]\nname = "tiny"\nbuild = "python3 -m py_compile a.py"\noutputs = ["__pycache__"]\ncheck = "true"\n'
        'edit_file = "a.py"\n'
        '[rl-bench.modes.optimised]\ndifference = "env.PYTHONOPTIMIZE"\nenv = { PYTHONOPTIMIZE = "2" }\n'
    )
    return root


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_a_benchmark_from_the_command_line(project: Path, tmp_path: Path) -> None:
    database, page = tmp_path / "kpi.db", tmp_path / "report.html"
    code, output = invoke(
        "--project", project, "--runs", 3, "--mode", "optimised", "--gpus", 16, "--rollout-fraction", 0.85,
        "--price", 2, "--db", database, "--export", "html", "--output", page,
    )  # fmt: skip
    assert code == 0
    for text in ("rl-bench: tiny", "KPI 1", "KPI 2", "KPI 3", "16 GPUs, 85% rollout fraction", "dollars", "optimised"):
        assert text in output
    assert page.read_text().startswith("<!doctype html>")
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT project, mode, gpus FROM rl_kpi").fetchall() == [("tiny", "optimised", 16)]
        assert connection.execute("SELECT count(*) FROM rl_sample").fetchone() == (12,)


def test_the_benchmark_is_a_run_of_the_ledger(project: Path, tmp_path: Path) -> None:
    invoke("--project", project, "--runs", 1, "--mode", "optimised", "--price", 2, "--db", tmp_path / "kpi.db")
    (record,) = Ledger(tmp_path / "kpi.db").records()
    assert record.run.name == "rl-bench tiny"
    assert record.end is not None
    assert record.end.cost_usd == pytest.approx(record.end.wall_seconds / 3600 * 2, rel=1e-3)
    with sqlite3.connect(tmp_path / "kpi.db") as connection:
        (table,) = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if "profile" in name
        ]
        row = connection.execute(f"SELECT * FROM {table}").fetchone()
    summary = next(json.loads(value) for value in row if isinstance(value, str) and value.startswith("{"))
    assert summary["rl_kpi"][0]["mode"] == "optimised"


def test_the_ledger_can_be_left_out(project: Path, tmp_path: Path) -> None:
    invoke("--project", project, "--runs", 1, "--no-ledger", "--db", tmp_path / "kpi.db")
    assert not (tmp_path / "ledger.db").exists()
    assert not (tmp_path / "kpi.db").exists()


def test_without_a_name_it_is_the_usual_ledger(project: Path, tmp_path: Path) -> None:
    invoke("--project", project, "--runs", 1)
    (record,) = Ledger().records()
    assert Ledger().url.endswith("/ledger.db")
    assert (record.run.name, record.state) == ("rl-bench tiny", "finished")


def test_a_mode_is_compared_though_none_is_named(project: Path) -> None:
    def modes(*named: str) -> list[str]:
        _, output = invoke("--project", project, "--dry-run", *named)
        return [line.split(":")[0] for line in output.splitlines() if line.startswith("arm ")]

    assert modes() == ["arm baseline", "arm optimised"]
    assert modes("--mode", "baseline") == ["arm baseline"]
    table = project / "rl-bench.toml"
    table.write_text(table.read_text().partition("[rl-bench.modes")[0])
    assert modes() == ["arm baseline", "arm warm-snapshot"]
    table.write_text(table.read_text().replace('edit_file = "a.py"\n', ""))
    assert modes() == ["arm baseline"]


def test_json_is_the_only_thing_on_standard_output(project: Path, tmp_path: Path) -> None:
    code, output = invoke("--project", project, "--runs", 1, "--json", "--db", tmp_path / "kpi.db")
    assert code == 0
    assert json.loads(output)["project"] == "tiny"


def test_candidates_from_the_command_line(project: Path, tmp_path: Path) -> None:
    rows = [{"id": "ok", "path": "a.py", "content": "x = 2\n"}, {"id": "bad", "path": "a.py", "content": "x = (\n"}]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, rows)))
    code, output = invoke(
        "--project", project, "--runs", 1, "--samples", corpus, "--json", "--db", tmp_path / "kpi.db"
    )  # fmt: skip
    assert code == 0
    verdicts = {"compile-error": 1, "pass": 1}
    assert json.loads(output)["corpus"] == {"baseline": verdicts, "optimised": verdicts}


def test_a_dry_run_measures_nothing(project: Path, work: Path, tmp_path: Path) -> None:
    code, output = invoke("--project", project, "--dry-run", "--mode", "optimised", "--db", tmp_path / "kpi.db")
    assert code == 0
    assert "python3 -m py_compile a.py" in output
    assert "with PYTHONOPTIMIZE=2" in output
    assert not (tmp_path / "kpi.db").exists()
    assert list(work.iterdir()) == []


def test_bad_input_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        invoke("--project", tmp_path / "absent")


def test_every_option_has_help() -> None:
    command = typer.main.get_command(APP)
    assert [p.name for p in command.params if not getattr(p, "help", None) and p.name != "help"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "0"), "jobs must be at least 1, not 0"),
        (("--step", "fly"), "step 'fly' is not known"),
        (("--output", "x.md"), "needs a format"),
        (("--export", "md", "--output", "/proc/nowhere/x.md"), "cannot be written"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured(
    project: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        invoke("--project", project, "--db", tmp_path / "kpi.db", *arguments)
    assert not (tmp_path / "kpi.db").exists()


def test_a_corpus_that_must_pass_tests_needs_a_test_command(project: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "a", "path": "a.py", "content": "x = 2\n"}))
    with pytest.raises(UsageError, match="names no test command"):
        invoke("--project", project, "--db", tmp_path / "kpi.db", "--samples", corpus, "--step", "test")


def test_no_valid_sample_is_exit_code_1(project: Path, tmp_path: Path) -> None:
    (project / "rl-bench.toml").write_text('[rl-bench]\nbuild = "false"\ncheck = "true"\nedit_file = "a.py"\n')
    code, output = invoke("--project", project, "--runs", 1, "--mode", "baseline", "--db", tmp_path / "kpi.db")
    assert code == 1
    assert "no valid sample" in output


def test_nothing_is_written_into_the_project(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILEAGE_DB")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(project)
    before = sorted(project.rglob("*"))
    code, _ = invoke("--runs", 1)
    assert code == 0
    assert sorted(project.rglob("*")) == before
    assert len(Ledger(tmp_path / "data" / "mileage" / "mileage.db").records()) == 1
    # A ledger that is there already is the user's choice.
    (project / "runs").mkdir()
    (project / "runs" / "mileage.db").touch()
    invoke("--runs", 1)
    assert len(Ledger(project / "runs" / "mileage.db").records()) == 1


def test_a_full_disk_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/disk/tree/a.o")

    monkeypatch.setattr("mileage.cli.app.app", full)
    monkeypatch.setattr("sys.argv", ["mileage", "rl-bench"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "mileage: No space left on device (/disk/tree/a.o): make room, or set MILEAGE_WORK to another disk\n"
    )
