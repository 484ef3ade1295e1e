"""Generated parts of the documentation are what the code says now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import build_algorithms
import pytest

import readme_table
from mileage.algorithms.ppo import PPOConfig
from mileage.algorithms.registry import BUILT_IN

ROOT = Path(__file__).resolve().parents[2]


def test_tables_of_the_algorithms_are_up_to_date() -> None:
    assert build_algorithms.out_of_date() == []


def test_every_algorithm_has_a_page() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "algorithms").glob("*.md")}
    assert {each.name for each in BUILT_IN} <= pages


def test_fields_are_read_with_their_sentences() -> None:
    texts = build_algorithms.field_texts(PPOConfig)
    assert texts["gamma"] == "Discount."
    assert list(texts) == list(PPOConfig.__dataclass_fields__)


def test_the_table_says_what_the_configuration_says() -> None:
    rows = build_algorithms.hyperparameters("ppo").splitlines()
    assert rows[2] == "| `n_envs` | `8` | Environments stepped side by side. |"
    assert "| `hidden` | `[64, 64]` | Widths of the hidden layers of actor and critic. |" in rows
    assert "| `normalise_advantages` | `true` | Centre and scale the advantages of every minibatch. |" in rows


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_000_000, "1_000_000"), (64, "64"), (3e-4, "0.0003"), (0.99, "0.99"), (0.0, "0.0"), ((64, 64), "[64, 64]")],
)
def test_values_are_spelled_as_one_would_type_them(value: object, text: str) -> None:
    assert build_algorithms.spelled(value) == text


def test_a_page_without_its_region_is_refused() -> None:
    with pytest.raises(SystemExit, match="'presets' is missing"):
        build_algorithms.filled("# PPO", "presets", "")


@pytest.mark.parametrize("page", readme_table.PAGES)
def test_pages_show_the_committed_results(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text == readme_table.updated(page, text, ROOT / "benchmarks" / "results")


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 140


def write_result(directory: Path, name: str, data: object) -> None:
    machine = {"time": "2026-09-01 12:00 UTC", "cpu": "Abacus", "cores": 2, "load": 0.1}
    record = {"format": 1, "name": name, "command": f"python benchmarks/{name}.py", "machine": machine, "data": data}
    (directory / f"{name}.json").write_text(json.dumps(record))


def test_ppo_results_become_two_tables(tmp_path: Path) -> None:
    speeds = [("mileage", 100.0), ("theirs", 20.0)]
    matched = [
        {"mode": "matched", "arm": arm, "seed": 0, "steps_per_second": speed, "held_out_mean_return": 480.0}
        for arm, speed in speeds
    ]
    target = [
        {"mode": "target", "arm": "mileage", "seed": 0, "reached": True, "wall_to_target_s": 2.0, "steps": 4096},
        {"mode": "target", "arm": "theirs", "seed": 0, "reached": True, "wall_to_target_s": 9.0, "steps": 20480},
        {"mode": "target", "arm": "never", "seed": 0, "reached": False, "wall_to_target_s": None, "steps": 50000},
    ]
    write_result(tmp_path, "ppo_cartpole", matched + target)
    text = readme_table.region(tmp_path)
    assert "(2026-09-01 12:00 UTC, Abacus, 2 cores, load 0.1;" in text
    assert "`python benchmarks/ppo_cartpole.py`" in text
    assert "| theirs | 20 | 5.0× | 480 |" in text
    assert "| mileage | 1 of 1 | 2.00 | 1.0× | 4,096 |" in text
    assert "| theirs | 1 of 1 | 9.00 | 4.5× | 20,480 |" in text
    assert "| never | 0 of 1 | – | – | – |" in text


def test_a_figure_stands_beside_the_fastest_other_and_the_usual_reference(tmp_path: Path) -> None:
    # Ratios within rounds: 100 / 50 and 120 / 40 are 2 and 3, 2.5 at the median; 10 and 12 are 11.
    speeds = {"mileage": (100.0, 120.0), "quick": (50.0, 40.0), "Stable-Baselines3": (10.0, 10.0)}
    runs = [
        {"mode": "matched", "arm": arm, "seed": seed, "steps_per_second": speed, "held_out_mean_return": 1.0}
        for arm, found in speeds.items()
        for seed, speed in enumerate(found)
    ]
    write_result(tmp_path, "ppo_cartpole", runs)
    write_result(tmp_path, "ppo_cartpole_returns", [run | {"held_out_mean_return": 400.0} for run in runs])
    text = readme_table.figures(tmp_path)
    assert "| **110** | quick 45 (2.5×) | 10 (11.0×) |" in text
    assert "mean held-out return of 2 seeds, 95 % interval" in text
    assert "| **400 [400, 400]** |  | 400 [400, 400] |" in text
    assert "Measured on 2 cores of Abacus, 2026-09-01." in text


def test_bench_results_show_the_command_and_ratios_within_rounds(tmp_path: Path) -> None:
    # 10 µs and 20 µs of ours beside 30 µs and 40 µs of theirs: 3 and 2 times as long, 2.5 at the median.
    arms = [
        ("mileage", 15e-6, (1e-5, 2e-5)),
        ("rlox", 35e-6, (3e-5, 4e-5)),
        ("torch, 1 thread", 9.1e-4, (9.1e-4, 9.1e-4)),
    ]
    case = {
        "title": "GAE 64×128",
        "work": 8192,
        "unit": "steps",
        "arms": [
            {"arm": arm, "median": middle, "spread": 0.02, "samples": [{"wall": each} for each in walls]}
            for arm, middle, walls in arms
        ],
    }
    machine = {"cpu": "Abacus", "cores": 2, "python": "3.11", "versions": {"numpy": "2.0"}}
    record = {"command": "mileage bench --peers", "time": "2026-09-01 12:00 UTC", "machine": machine}
    record |= {"versions": {"rlox": "1.2"}, "readings": [{"load": 0.1}], "cases": [case]}
    (tmp_path / "bench.json").write_text(json.dumps(record))
    text = readme_table.region(tmp_path)
    assert "`mileage bench --peers`" in text
    assert "2026-09-01 12:00 UTC, 2 cores of Abacus, load 0.1, Python 3.11, numpy 2.0, rlox 1.2." in text
    assert "| GAE 64×128 | **15.0 µs** | 2% | 546 M steps/s | rlox: 35.0 µs (2.50×) | torch 68× |" in text


def test_other_results_are_linked_by_their_title(tmp_path: Path) -> None:
    (tmp_path / "replay.md").write_text("# Replay buffers\n")
    assert readme_table.region(tmp_path) == "More results: [Replay buffers](benchmarks/results/replay.md)."


def test_without_results_nothing_is_claimed(tmp_path: Path) -> None:
    assert readme_table.region(tmp_path) == "No result is committed yet."
    assert readme_table.figures(tmp_path) == "No result is committed yet."


def test_version_agrees_everywhere() -> None:
    import mileage

    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.*)"$', project, re.MULTILINE)[1] == mileage.__version__  # type: ignore[index]
    assert f"## [{mileage.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
