"""Learning and held-out evaluation on MuJoCo environments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mileage
from mileage.envs import GymnasiumEnv
from mileage.kernels.machine.team import Team
from mileage.ledger.panels import Panel
from mileage.seeding import HELD_OUT_START
from mileage.training.evaluation import make_evaluator

SEEDS = tuple(range(HELD_OUT_START, HELD_OUT_START + 8))

pytest.importorskip("mujoco", reason="the mujoco extra is not installed")


def test_a_panel_gives_the_same_returns_as_through_gymnasium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo may log there
    agent = mileage.PPO("Hopper-v5", seed=0, preset="none")
    panel = Panel("Hopper-v5", seeds=SEEDS)
    ours, theirs = (
        make_evaluator(agent.policy, spec, panel, Team(1))() for spec in (agent.spec, GymnasiumEnv("Hopper-v5"))
    )
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    np.testing.assert_allclose(ours.returns, theirs.returns, rtol=1e-6)
    assert len(np.unique(ours.returns)) == 8


def test_ppo_learns_to_balance_a_pole() -> None:
    # A policy that has learned nothing drops the pole within about 6 steps.
    config = {"n_envs": 8, "n_steps": 64, "minibatch": 64, "epochs": 10, "learning_rate": 3e-3}
    with mileage.PPO("InvertedPendulum-v5", seed=0, preset="none", **config) as agent:
        panel = Panel("InvertedPendulum-v5", seeds=SEEDS)
        agent.learn(8192, eval_every=10**9, panel=panel)
        assert agent.evaluate(panel).mean_return >= 60.0
