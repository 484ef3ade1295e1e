"""`mileage bench` with times that are made up."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mileage
from mileage.cli import bench as cli_bench
from mileage.cli.app import app
from mileage.cli.bench import shown_command
from mileage.errors import MileageError
from mileage.measure import MockExecutor
from mileage.measure.surroundings import Reading
from mileage.profiling.bench import peers, suite
from mileage.profiling.bench import suite as bench

PRIMITIVES = Path(__file__).resolve().parents[2] / "benchmarks" / "primitives"
runner = CliRunner()


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock will say a job takes; change it to make the machine slower."""
    now = [1e-6]
    run = bench.run

    def played(*args: Any, **options: Any) -> bench.PrimitivesReport:
        times = {"mileage": now[0], suite.ONE: 1e-3, suite.ALL: 1e-3}
        executor = MockExecutor({arm: itertools.repeat(time) for arm, time in times.items()})
        reading = Reading(0.1, 0.0, None, None, None, 1e-3, 0.0)
        return run(*args, **options, executor=executor, read=lambda: reading)

    def again(names: Sequence[str], *, quick: bool, rounds: int) -> Any:
        """Measured again by the same clock; a process of its own would have another."""
        done = runner.invoke(app, ["bench", *names, "--json", "--quick"], env={cli_bench._CONTROLS: "1"})
        return json.loads(done.stdout)

    monkeypatch.setattr(bench, "run", played)
    monkeypatch.setattr(cli_bench, "_again", again)
    return now


def test_list_names_primitives_and_libraries() -> None:
    result = runner.invoke(app, ["bench", "--list", "--peers-from", str(PRIMITIVES)], env={"COLUMNS": "160"})
    assert result.exit_code == 0
    for word in ("gae", "V-trace 256×2048", "torchrl", "phase-event", "envpool"):
        assert word in result.stdout


def test_without_a_clone_peers_are_one_sentence_and_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_BESIDE", tmp_path)
    refused = runner.invoke(app, ["bench", "phase-event", "--peers"])
    assert isinstance(refused.exception, MileageError)
    assert str(refused.exception) == (
        "the code that drives other libraries comes with a clone of the repository: "
        "clone it and add --peers-from CLONE/benchmarks/primitives"
    )
    named = runner.invoke(app, ["bench", "phase-event", "--peers", "--peers-from", str(tmp_path)])
    assert "holds no peers: name the folder benchmarks/primitives" in str(named.exception)
    listed = runner.invoke(app, ["bench", "--list"], env={"COLUMNS": "160"})
    assert listed.exit_code == 0
    assert "gae" in listed.stdout
    assert "also by" not in listed.stdout


def test_peers_of_a_clone_are_measured(seconds: list[float]) -> None:
    folder = str(Path(__file__).resolve().parents[2] / "benchmarks" / "primitives")
    result = runner.invoke(app, ["bench", "phase-event", "--quick", "--peers", "--json"], env={"MILEAGE_PEERS": folder})
    record = json.loads(result.stdout)
    assert "NumPy" in record["versions"]
    assert [arm["arm"] for arm in record["cases"][0]["arms"]] == ["mileage"]


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
        "slower: ledger phase event, 1.00 µs → 2.00 µs (at least 2.00× against its control, measured 3 times)",
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
    return str(Path(mileage.__file__).resolve().parents[1])


def test_unknown_primitive_and_unwritable_output_are_refused(seconds: list[float]) -> None:
    assert "did you mean 'gae'" in str(runner.invoke(app, ["bench", "gea"]).exception)
    command = ["bench", "phase-event", "--quick", "--export", "csv", "--output", "/proc/nowhere/x.csv"]
    assert "--output /proc/nowhere/x.csv cannot be written" in str(runner.invoke(app, command).exception)


def test_the_command_is_shown_without_local_paths() -> None:
    assert shown_command(["bench", "--peer-python", "/home/me/peers/bin/python", "gae"]) == (
        "mileage bench --peer-python peers/bin/python gae"
    )
