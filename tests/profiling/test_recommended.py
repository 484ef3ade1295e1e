"""Usual recommendations are held against what was measured of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mileage.description import Layer
from mileage.profiling.calibration import Calibration
from mileage.profiling.costs import LayerTable, PhaseCost
from mileage.profiling.recommended import Recommendation, recommended
from mileage.profiling.what_if import WhatIf
from profiling.test_diagnosis import calibrated, run

# What an iteration of SAC took as measured, native and on torch, and one of PPO.
SAC = {"learn": 9.4, "env_step": 0.2, "inference": 0.2, "store": 0.1, "other": 0.1}
PPO = {"rollout": 4.0, "learn": 5.0, "advantage": 1.0}
STEPPED = {"inference": 3.0, "env_step": 1.0, "learn": 6.0}


def costs(phases: dict[str, float], python: float = 0.2, torch: float = 0.0) -> Calibration:
    """Phases of an iteration, and which part of either half is Python and torch."""
    rollout = sum(seconds for phase, seconds in phases.items() if phase != "learn")
    halves = [
        {Layer.PYTHON: python * half, Layer.TORCH: torch * half, Layer.NATIVE: (1.0 - python - torch) * half}
        for half in (rollout, phases["learn"])
    ]
    each = tuple(PhaseCost(phase, "", 1.0, seconds, 0.0, 0.0) for phase, seconds in phases.items())
    layers = LayerTable(*({str(layer): value for layer, value in half.items()} for half in halves), 0.0, 0.0)
    return calibrated(costs=each, layers=layers)


def of(phases: dict[str, float], found: Calibration, **workload: Any) -> dict[str, Recommendation]:
    entries = dict.fromkeys(phases, 10)
    made = recommended(run(phases, entries), {"algorithm": "x", "backend": "native", "machine": {}} | workload, found)
    ranks = [each.rank for each in made]
    assert ranks == sorted(ranks, key=("high", "medium", "low").index)
    assert len(made) == 11
    # An estimate, or a reason; nothing is promised that was not measured.
    assert all(each.why and (each.gain is None or each.gain_interval or each.gain <= 1.0) for each in made)
    return {
        each.what.partition(" ")[0] if each.what != "torch.compile for learning" else "learning": each for each in made
    }


def test_of_native_ppo_only_environments_are_open() -> None:
    config = {"epochs": 4, "n_envs": 8}
    found = of(PPO, costs(PPO), config=config)
    assert {name for name, each in found.items() if each.gain} == {"more"}
    assert (found["more"].estimate, found["more"].rank) == ("at most −40 % wall", "high")
    assert found["many"].why == "done: a whole rollout"
    assert found["targets"].why == "no target networks"
    change = WhatIf("n_envs", "--set n_envs=32", {"rollout": 0.8}, None, {"rollout": (0.7, 0.9)})
    measured = of(PPO, dataclasses.replace(costs(PPO), what_ifs=(change,)), config=config)["more"]
    assert (measured.estimate, measured.rank) == ("est. −8 % wall, 4 to 12", "high")
    noise = WhatIf("n_envs", "--set n_envs=32", {"rollout": 0.9}, None, {"rollout": (0.7, 1.1)})
    measured = of(PPO, dataclasses.replace(costs(PPO), what_ifs=(noise,)), config=config)["more"]
    assert (measured.estimate, measured.rank) == ("below the noise", "low")


def test_of_native_sac_collecting_is_open() -> None:
    found = of(SAC, costs(SAC), config={"train_every": 1, "n_envs": 1, "capacity": 1000, "tau": 0.005})
    assert {name for name, each in found.items() if each.gain} == {"many", "collect"}
    # A fifth of what is not learning is Python; three quarters of collecting is shared out.
    assert found["many"].gain == pytest.approx(0.2 * 0.06)
    assert found["collect"].gain == pytest.approx(0.75 * 0.05)
    assert found["a"].estimate == "not measured"
    assert found["allocate"].why == "done: arrays of fixed size"
    assert of(SAC, costs(SAC), config={"train_every": 1, "n_envs": 4, "capacity": 9})["collect"].why == "done: 4"


def test_on_torch_what_is_no_matrix_product_is_open() -> None:
    options = {"backend": "torch", "config": {"epochs": 4, "n_envs": 8}, "machine": {"gpus": ["A"]}}
    found = of(STEPPED, costs(STEPPED, 0.3, 0.4), **options)
    assert found["torch.compile"].gain == pytest.approx(0.7 * 0.4)
    assert found["learning"].gain == found["gradient"].gain == pytest.approx(0.7 * 0.6)
    assert found["a"].gain == pytest.approx(0.9)
    native = WhatIf("backend_native", "--backend native", {"learn": 0.5}, None, {"learn": (0.4, 0.6)})
    again = dataclasses.replace(costs(STEPPED, 0.3, 0.4), what_ifs=(native,))
    found = of(STEPPED, again, **options, compile=True)
    assert (found["learning"].why, found["gradient"].estimate) == ("done: --compile", "est. −30 % wall, 24 to 36")


def test_what_there_was_no_time_to_measure_is_not_nothing() -> None:
    found = of(STEPPED, calibrated(costs=()), backend="torch", config={"epochs": 4, "n_envs": 8})
    assert {found[name].estimate for name in ("many", "torch.compile", "learning", "gradient")} == {"not measured"}


def test_other_learners_get_none() -> None:
    workload = {"algorithm": "my.module:Mine", "backend": "native", "config": {"epochs": 4}}
    assert recommended(run(PPO), workload, costs(PPO)) == ()
    assert recommended(run(PPO), workload | {"algorithm": "x", "config": {}}, costs(PPO)) == ()
