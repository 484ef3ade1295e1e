"""`mileage bench` with times that are made up."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mileage.bench import suite as bench
from mileage.bench.machine import Reading
from mileage.bench.timing import MockExecutor
from mileage.cli.app import app
from mileage.cli.bench import shown_command

runner = CliRunner()


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock will say a job takes; change it to make the machine slower."""
    now = [1e-6]
    run = bench.run

    def played(*args: Any, **options: Any) -> bench.BenchReport:
        executor = MockExecutor({"mileage": itertools.repeat(now[0])})
        reading = Reading(0.1, 0.0, None, None, None, 1e-3, 0.0)
        return run(*args, **options, executor=executor, read=lambda: reading)

    monkeypatch.setattr(bench, "run", played)
    return now


def test_list_names_primitives_and_libraries() -> None:
    result = runner.invoke(app, ["bench", "--list"], env={"COLUMNS": "160"})
    assert result.exit_code == 0
    for word in ("gae", "V-trace 256×2048", "torchrl", "phase-event", "envpool"):
        assert word in result.stdout


def test_table_and_export(seconds: list[float], tmp_path: Path) -> None:
    output = tmp_path / "new" / "bench.md"
    formats = ["--export", "md", "--export", "csv"]
    command = ["bench", "phase-event", "groups", "--quick", *formats, "--output", str(output)]
    result = runner.invoke(app, command, env={"COLUMNS": "160"})
    assert result.exit_code == 0
    assert "1.00 µs" in result.stdout
    assert "512 M answers/s" in result.stdout
    assert "no regression" not in result.stdout
    assert "| ledger phase event | **1.00 µs** | 0% | 1.00 M events/s |" in output.read_text()
    assert output.with_suffix(".csv").read_text().count("\n") == 3
    assert "[2/2] ledger phase event" in result.stderr


def test_json_is_all_that_is_printed(seconds: list[float]) -> None:
    result = runner.invoke(app, ["bench", "phase-event", "--quick", "--json"])
    record = json.loads(result.stdout)
    assert [case["title"] for case in record["cases"]] == ["ledger phase event"]
    assert len(record["cases"][0]["arms"][0]["samples"]) == 5


def test_baseline_of_this_machine(seconds: list[float], tmp_path: Path) -> None:
    file = str(tmp_path / "baseline.json")
    assert runner.invoke(app, ["bench", "phase-event", "--quick", "--save-baseline", file]).exit_code == 0
    same = runner.invoke(app, ["bench", "phase-event", "--quick", "--baseline", file])
    assert (same.exit_code, same.stdout.splitlines()[-1]) == (0, "no regression")
    seconds[0] = 2e-6
    slower = runner.invoke(app, ["bench", "phase-event", "--quick", "--baseline", file])
    assert slower.exit_code == 1
    assert slower.stdout.splitlines()[-2:] == [
        "slower: ledger phase event, 1.00 µs → 2.00 µs (2.00×)",
        "1 of 1 cases slower than the baseline",
    ]
    patient = runner.invoke(app, ["bench", "phase-event", "--quick", "--baseline", file, "--tolerance", "1.5"])
    assert patient.exit_code == 0


def test_baseline_of_another_machine_is_one_sentence_and_two(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "b.json").write_text(json.dumps({"format": 1, "hardware_id": "elsewhere", "cases": []}))
    command = [sys.executable, "-m", "mileage", "bench", "phase-event", "--baseline", str(tmp_path / "b.json")]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": _source()})
    assert result.returncode == 2
    assert result.stdout == ""
    assert "was measured on another machine (elsewhere, this is" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def _source() -> str:
    return str(Path(bench.__file__).resolve().parents[2])


def test_unknown_primitive_and_unwritable_output_are_refused(seconds: list[float]) -> None:
    assert "did you mean 'gae'" in str(runner.invoke(app, ["bench", "gea"]).exception)
    command = ["bench", "phase-event", "--quick", "--export", "csv", "--output", "/proc/nowhere/x.csv"]
    assert "cannot write '/proc/nowhere/x.csv'" in str(runner.invoke(app, command).exception)


def test_the_command_is_shown_without_local_paths() -> None:
    assert shown_command(["bench", "--peer-python", "/home/me/peers/bin/python", "gae"]) == (
        "mileage bench --peer-python peers/bin/python gae"
    )
