"""Real frameworks with something planted, each in the environment that has it.

MILEAGE_FRAMEWORKS names an interpreter with torch, Stable-Baselines3, rsl-rl-lib and tensorboard; without it, this one
is asked. CleanRL is run from a checkout that MILEAGE_CLEANRL names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import profile_programs

PYTHON = os.environ.get("MILEAGE_FRAMEWORKS", sys.executable)
CLEANRL = Path(os.environ["MILEAGE_CLEANRL"]) if "MILEAGE_CLEANRL" in os.environ else None
CASES = {case.name: case for case in profile_programs.cases(PYTHON, sys.executable, CLEANRL)}
NEEDS = {"sb3": "stable_baselines3", "rsl_rl": "rsl_rl", "jax": "jax", "cleanrl": "tyro"}


def needed(name: str) -> None:
    module = NEEDS[name.split()[0]]
    python = CASES[name].command[0]
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} has no {module}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plant"), [(name, plant) for name, case in CASES.items() for plant in case.plants])
def test_what_is_planted_in_a_framework_is_named(name: str, plant: str, tmp_path: Path) -> None:
    needed(name)
    case = CASES[name]
    command = (*case.command, *(case.batch if plant == "batch" else ()))
    found, _, code = profile_programs.profiled(command, profile_programs.environment(plant, CLEANRL), tmp_path)
    assert code == 0
    assert profile_programs.named(found, case, plant), found["findings"][:3]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_results_of_a_framework_are_the_same(name: str) -> None:
    needed(name)
    (row,) = profile_programs.unchanged([CASES[name]], CLEANRL)
    assert row["same_output"]
    assert row["exit_code"] == 0
