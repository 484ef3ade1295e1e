"""`mileage profile` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mileage.cli.app import app
from mileage.errors import MileageError

SMALL = ["-s", "n_envs=4", "-s", "n_steps=16", "-s", "hidden=[8,8]", "--preset", "none", "--episodes", "2"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["profile", *arguments])


def test_the_verdict_comes_first_and_the_run_can_be_read_back(tmp_path: Path) -> None:
    db, out = tmp_path / "ledger.db", tmp_path / "profile.md"
    first = run("ppo", "CartPole-v1", "--steps", "256", *SMALL, "--db", str(db), "--export", "md", "-o", str(out))
    assert first.exit_code == 0, first.output
    verdict = first.stdout.splitlines()[0]
    assert "all tables: --full" in first.stdout
    assert "Phases" not in first.stdout
    assert "\n4. " not in first.stdout
    text = out.read_text()
    assert text.splitlines()[0].startswith("# Profile: ppo on CartPole-v1")
    assert verdict.split(":")[0] in text
    run_id = first.output.split("saved in the ledger under ")[1].split()[0]
    again = run("--run", run_id, "--db", str(db), "--json")
    assert again.exit_code == 0, again.output
    data = json.loads(again.output)
    assert data["run"]["run_id"] == run_id
    whole = run("--run", run_id, "--db", str(db), "--full").stdout
    assert "Phases" in whole
    assert "Single operations" not in whole  # there are none of a recorded run, nor a title without rows
    assert data["workload"]["algorithm"] == "ppo"


def test_quiet_is_the_verdict_alone() -> None:
    found = run("ppo", "CartPole-v1", "--steps", "128", *SMALL, "--no-ledger", "--quiet")
    assert found.exit_code == 0, found.output
    assert len(found.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ppo"], "name an algorithm and an environment"),
        (["ppo", "CartPole-v1", "--export", "pdf"], "--export 'pdf' is not known"),
        (["ppo", "CartPole-v1", "--out", "x.md"], "--out is the file for --export"),
        (["ppo", "CartPole-v1", "--run", "abc"], "drop the algorithm"),
        (["nonsense", "CartPole-v1", "--no-ledger"], "nonsense"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: list[str], sentence: str) -> None:
    found = run(*arguments)
    assert isinstance(found.exception, MileageError)
    assert sentence in str(found.exception)


def test_two_profiles_compare_by_run_and_by_file(tmp_path: Path) -> None:
    db, file = tmp_path / "ledger.db", tmp_path / "a.json"
    first = run("ppo", "CartPole-v1", "--steps", "256", *SMALL, "--db", str(db), "--no-replay", "--json")
    file.write_text(first.stdout)
    run_id = json.loads(first.stdout)["run"]["run_id"]
    shown = run("compare", str(file), run_id, "--db", str(db))
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("A and B take the same, within 2%")
    assert "rollout" in shown.stdout
    found = json.loads(run("compare", str(file), run_id, "--db", str(db), "--json").stdout)
    assert found["totals"][0] == found["totals"][1]
    for wrong in (["compare"], ["compare", str(file)], ["compare", str(file), run_id, "--steps", "3"]):
        with pytest.raises(MileageError):
            CliRunner().invoke(app, ["profile", *wrong], catch_exceptions=False)


def test_the_start_of_the_process_is_part_of_starting_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mileage.measure.clock._process_start_claimed", 0)
    found = run("ppo", "CartPole-v1", "--steps", "128", *SMALL, "--no-ledger", "--no-replay", "--json")
    phases = json.loads(found.stdout)["run"]["phases"]
    assert phases["other"] < 0.1 * phases["init"]
