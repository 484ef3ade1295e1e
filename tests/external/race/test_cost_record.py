"""Cost records: their form, what they must agree in, and runs that are repeated from them."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mileage.errors import UsageError
from mileage.external.race import RaceSpec, run_race
from mileage.external.race.cost_record import check_record, cost_record, episodes_digest, read_record, schema
from mileage.external.race.result import merge
from mileage.external.race.verify import repeat
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation
from tiny_race import tiny_race

PANEL = Panel.default("CartPole-v1", 3)


def a_record() -> dict[str, Any]:
    """A record of one run whose figures are easy to follow: 36 seconds at 100 dollars an hour."""
    run = {
        "seed": 0, "state": "reached", "reason": "", "machine": "m", "wall_seconds": 36.0, "wall_to_target": 30.0,
        "cost_usd": 1.0, "env_steps": 2000, "steps_to_target": 1000, "phases": {"learn": 26.0, "eval": 10.0},
        "peak_rss_gb": None,
        "evaluations": [{"step": 1000, "mean_return": 480.0, "episodes_sha256": "0" * 64}],
    }  # fmt: skip
    arm = {
        "name": "a", "kind": "command", "tuned_by": "us", "framework": "f", "version": "1", "threads": 1,
        "recipe": None, "command": ["x"], "revision": None, "packages": {}, "reached": 1, "runs": 1,
        "expected_seconds": 30.0, "runs_detail": [run],
    }  # fmt: skip
    return {
        "schema": "mileage/cost-record/1", "name": "n", "written_by": "w",
        "panel": {"panel_id": PANEL.panel_id, "definition": PANEL.as_dict()}, "target": "mean_return>=475.0",
        "price": {"usd_per_hour": 100.0, "source": "given"}, "machines": {"m": {}}, "arms": [arm], "verdicts": [],
        "caveats": [],
    }  # fmt: skip


def changed(**values: object) -> Callable[[dict[str, Any]], None]:
    return lambda record: record["arms"][0]["runs_detail"][0].update(values)


def test_the_hand_made_record_is_one() -> None:
    assert check_record(a_record()) == a_record()


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        (changed(cost_usd=0.9), "hours times the price"),
        (changed(wall_to_target=31.0), "expected_seconds"),
        (changed(wall_seconds=20.0, cost_usd=20 / 36, phases={}), "after its end"),
        (changed(phases={"learn": 1.0}), "add up to its wall_seconds"),
        (changed(steps_to_target=None), "both be there, or neither"),
        (changed(steps_to_target=900), "an evaluation at its steps_to_target"),
        (changed(evaluations=[{"step": 1000, "mean_return": 470.0, "episodes_sha256": "0" * 64}]), "does not show"),
        (changed(machine="other"), "not among the machines"),
        (changed(seed=-1), r"arms\[0\]\.runs_detail\[0\]\.seed must be at least 0, not -1"),
        (changed(seed=True), "must be integer, not True"),
        (changed(wall_seconds=float("nan")), "must be number, not nan"),
        (changed(state="won"), "must be one of"),
        (changed(extra=1), "has 'extra', which it must not have"),
        (lambda record: record.pop("panel"), "the record needs 'panel'"),
        (lambda record: record.update(schema="mileage/cost-record/2"), "schema must be 'mileage/cost-record/1'"),
        (lambda record: record["panel"]["definition"].update(aggregate="iqm_return"), "its panel hashes to"),
        (lambda record: record["arms"][0].update(reached=0, expected_seconds=None), "must be those that it lists"),
        (lambda record: record["arms"][0].update(tuned_by="them"), "tuned_by must be one of"),
        (lambda record: record["arms"][0].update(kind="recipe"), "a recipe exactly if it is one"),
        (lambda record: record.update(target="mean_return>=x"), "target must look like"),
        (lambda record: record.update(arms=[]), "arms must have at least 1 entries"),
        (lambda record: record["arms"][0]["runs_detail"].append({}), "needs 'seed'"),
    ],
)  # fmt: skip
def test_planted_lies_are_found(lie: Callable[[dict[str, Any]], None], says: str) -> None:
    record = a_record()
    lie(record)
    with pytest.raises(UsageError, match=says) as error:
        check_record(record)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("document", [None, 3, [], "x", {}, {"schema": {}}, json.loads("[" * 50 + "]" * 50)])
def test_what_is_no_record_at_all(document: object) -> None:
    with pytest.raises(UsageError, match="not a cost record"):
        check_record(document)


def test_files_that_hold_none(tmp_path: Path) -> None:
    for name, data in (("a", b"\xff"), ("b", b"[" * 100_000), ("c", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match="is not JSON"):
            read_record(tmp_path / name)
    with pytest.raises(UsageError, match="cannot be read"):
        read_record(tmp_path / "none")


def test_the_schema_is_one_that_others_can_use() -> None:
    """The validator here knows every word that it uses, and each name it refers to is defined."""
    text = json.dumps(schema())
    assert {word.split('"')[0] for word in text.split('"#/$defs/')[1:]} <= set(schema()["$defs"])
    check_record(a_record())


def test_the_digest_is_of_the_bytes() -> None:
    import hashlib

    one = Evaluation.of([5], [1.0], [7])
    # 5, 7 and the bits of 1.0, eight bytes each, lowest first.
    data = bytes([5] + [0] * 7 + [7] + [0] * 7 + [0] * 6 + [0xF0, 0x3F])
    assert episodes_digest(one) == hashlib.sha256(data).hexdigest()
    assert episodes_digest(Evaluation.of([5], [1.0 + 2**-52], [7])) != episodes_digest(one)


MIXED = """
[race]
name = "mixed"
env = "CartPole-v1"
target = "mean_return>=30"
episodes = 5
seeds = 2
price = 36

[[arm]]
name = "ours"
tuned_by = "us"
algorithm = "ppo"
threads = 1
steps = 8192
eval_every = 1024

[[arm]]
name = "theirs"
tuned_by = "us"
command = ["{python}", "program.py", "{seed}", "0.01", "1"]
"""


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("halves")
    tiny_race(folder)
    (folder / "mixed.toml").write_text(MIXED)
    spec = RaceSpec.read(folder / "mixed.toml")
    run_race(spec, folder / "first", seeds=[0])
    run_race(spec, folder / "second", seeds=[1])
    return folder


def test_halves_merge_to_the_whole(halves: Path, tmp_path: Path) -> None:
    race = merge([halves / "first", halves / "second"], tmp_path / "whole")
    assert sorted((a.arm, a.seed) for a in race.counted) == [(arm, s) for arm in ("ours", "theirs") for s in (0, 1)]
    assert race.missing == []
    assert all(run.reached for arm in race.arms for run in arm.runs)
    with pytest.raises(UsageError, match="is not empty"):
        merge([halves / "first"], tmp_path / "whole")
    with pytest.raises(UsageError, match="an attempt counts once"):
        merge([halves / "first", tmp_path / "whole"], tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_a_record_is_repeated_bit_for_bit_and_a_lie_is_not(halves: Path, tmp_path: Path) -> None:
    race = merge([halves / "first", halves / "second"], tmp_path / "whole")
    record = cost_record(race, tmp_path / "whole")
    assert json.loads(json.dumps(record)) == record
    (again,) = repeat(record)
    assert (again.arm, again.seed) == ("ours", 0)
    assert again.same
    assert again.evaluations >= 1
    assert again.usd_here == pytest.approx(again.here_seconds / 100)
    lie = copy.deepcopy(record)
    lie["arms"][0]["runs_detail"][0]["evaluations"][0]["episodes_sha256"] = "1" * 64
    (found,) = repeat(lie)
    assert found.differs_at == lie["arms"][0]["runs_detail"][0]["evaluations"][0]["step"]
    with pytest.raises(UsageError, match="seed 7 is not among those"):
        repeat(record, seeds=[7])
    with pytest.raises(UsageError, match="no recipe of ours"):
        repeat(record, arm="theirs")


def test_a_record_runs_no_code_that_it_names(halves: Path) -> None:
    from mileage.external.race import read_race

    record = cost_record(read_race(halves / "first"), halves / "first")
    record["arms"][0]["recipe"]["env"] = "evil.py:Env"
    with pytest.raises(UsageError, match="no reason to run it"):
        repeat(record)


def test_the_command_says_what_it_found(halves: Path, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    words = [sys.executable, "-m", "mileage", "race", "report", str(halves / "first"), "--record", str(path)]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 1, "half of it is missing"
    checked = subprocess.run(
        [sys.executable, "-m", "mileage", "verify", str(path), "--check"], capture_output=True, text=True, check=True
    )
    assert "a valid cost record of 2 arms and 2 runs" in checked.stdout
    path.write_text(path.read_text().replace('"reached": 1', '"reached": 2', 1))
    refused = subprocess.run(
        [sys.executable, "-m", "mileage", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert refused.stderr.startswith("mileage: runs and reached of arm")
