"""Results of benchmarks on disk."""

from __future__ import annotations

import json
from pathlib import Path

from _harness import FORMAT, Kept, Report, markdown_table, shown_command, timing_table
from mileage.measure import Arm, MockExecutor
from mileage.measure.timing import Work, compare


def test_report_keeps_data_command_and_machine(tmp_path: Path) -> None:
    json_path, markdown_path = Report("speed", "Speed", ["| a |"], [1.5, {"x": 2}]).write(tmp_path, "python speed.py")
    record = json.loads(json_path.read_text())
    assert record["format"] == FORMAT
    assert record["data"] == [1.5, {"x": 2}]
    assert record["command"] == "python speed.py"
    assert "numpy" in record["machine"]["packages"]
    text = markdown_path.read_text()
    assert text.startswith("# Speed\n\n`python speed.py`\n\n")
    assert record["machine"]["cpu"] in text
    assert text.endswith("\n\n| a |\n")


def test_runs_that_are_kept_are_there_the_next_time(tmp_path: Path) -> None:
    first = Kept(tmp_path / "runs.jsonl", "arm", "seed")
    first["a", 0] = {"arm": "a", "seed": 0, "return": 475.0}
    first["a", 1] = {"arm": "a", "seed": 1, "return": 500.0}
    again = Kept(tmp_path / "runs.jsonl", "arm", "seed")
    assert {key: run["return"] for key, run in again.items()} == {("a", 0): 475.0, ("a", 1): 500.0}
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2
    assert not Kept(None, "arm", "seed")


def test_command_is_shown_without_local_paths() -> None:
    got = shown_command(["/home/me/clone/benchmarks/kernels.py", "--only", "token KL", "--with", "/somewhere/python"])
    assert got == "PYTHONPATH=src python benchmarks/kernels.py --only 'token KL' --with python"


def test_numbers_are_right_aligned() -> None:
    got = markdown_table(["name", "n", "ratio"], [["a", 1, "2.0×"], ["b", "1,200.5", "–"]])
    assert got.splitlines() == [
        "| name | n | ratio |",
        "| --- | ---: | ---: |",
        "| a | 1 | 2.0× |",
        "| b | 1,200.5 | – |",
    ]


def test_timing_table_shows_medians_and_ratios() -> None:
    arms = [Arm(name, Work(lambda: None)) for name in ("ours", "theirs")]
    one = compare("first", arms, rounds=2, warmups=1, executor=MockExecutor({"ours": [1e-6] * 3, "theirs": [5e-6] * 3}))
    two = compare("second", arms[:1], rounds=2, warmups=1, executor=MockExecutor({"ours": [2e-6] * 3}))
    assert timing_table([one, two], "ours").splitlines()[2:] == [
        "| first | **1.0** | 5.0 (5.0×) |",
        "| second | **2.0** | – |",
    ]
