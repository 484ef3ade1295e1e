"""`mileage profile --try` as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mileage

BASELINE = (
    "profile", "ppo", "CartPole-v1", "--preset", "none", "--set", "n_envs=1", "--set", "n_steps=64",
    "--set", "minibatch=8", "--eval-every", "64", "--steps", "20000", "--episodes", "20",
)  # fmt: skip


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mileage", *args]
    return subprocess.run(command, cwd=cwd, env=os.environ, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--try",), "--try needs a target"),
        (("--try", "--target", "mean_return>=40", "--budget", "0"), "--budget must be above 0"),
        (("--try", "--target", "mean_return>=40", "--without", "presets"), "did you mean 'preset'"),
        (("--try", "--target", "mean_return>=40", "--set", "minibatch=0"), "minibatch must be at least 1"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_is_trained(
    args: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = run(*BASELINE, *args, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_recorded_run_cannot_be_trained_again(tmp_path: Path) -> None:
    done = run("profile", "--run", "x", "--try", cwd=tmp_path)
    assert done.returncode == 2
    assert "--try trains" in done.stderr


def test_a_search_ends_with_a_verdict_and_what_it_verified_can_be_passed_back(tmp_path: Path) -> None:
    more = ("--target", "mean_return>=30", "--try", "--budget", "4", "--json", "--preset-out", "best.toml")
    done = run(*BASELINE, *more, "--export", "md", "-o", "report.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tried = found["tried"]
    assert tried["target"] == "mean_return>=30.0"
    assert tried["baseline"]["setup"]["config"]["minibatch"] == 8
    assert tried["baseline"]["runs"][0]["run_id"]
    assert {fix["name"] for fix in tried["fixes"]} >= {"preset", "learning_rate"}
    report = (tmp_path / "report.md").read_text()
    assert found["verdict"].split(";")[0] in report.replace("&lt;", "<")
    assert "## What the fixes bought" in report
    # Which fix wins in four seconds depends on the machine; a preset is there if and only if one was verified.
    preset = tmp_path / "best.toml"
    assert preset.exists() == tried["verified"]
    if tried["verified"]:
        agent = mileage.PPO("CartPole-v1", preset=str(preset))
        assert agent.config.minibatch == tried["best"]["setup"]["config"]["minibatch"]
