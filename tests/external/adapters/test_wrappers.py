"""A policy is examined as it was trained: through the wrappers of its environments, in every adapter that sees them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import mileage
import wrapped_envs
from extras import TORCH
from mileage.errors import UsageError
from mileage.external.adapters.wrappers import View
from mileage.external.exam import find_panel
from wrapped_envs import Gain, Odd, bare, rescaled, trained, wrapped

ENVS = Path(wrapped_envs.__file__)
PANEL = find_panel(f"{ENVS}:bare", 6)


def own_play(envs: Any, act: Callable[[Any], Any]) -> list[float]:
    """What the framework would see: its own environment, the panel's episodes, nothing learned on the way."""
    env = envs.envs[0]
    returns, each = [], env
    while each is not each.unwrapped:
        vars(each)["_update_running_mean"] = False
        each = each.env
    for seed in PANEL.seeds:
        (obs, _), over = env.reset(seed=seed), False
        while not over:
            obs, _, terminated, truncated, _ = env.step(act(np.asarray(obs)[None])[0])
            over = terminated or truncated
        returns.append(float(env.get_wrapper_attr("return_queue")[-1]))  # as rewards were before they were normalised
    return returns


def exam(act: Callable[[Any], Any]) -> list[float]:
    return list(mileage.external.exam.examine(act, PANEL).returns)


def test_observations_and_actions_pass_the_wrappers_of_training() -> None:
    envs = trained()
    found = exam(View(envs, PANEL).through(Gain()))
    assert found == pytest.approx(own_play(envs, Gain()), rel=1e-4)
    # Shown the bare environment, it is another policy.
    assert exam(Gain()) != pytest.approx(found, rel=0.05)


def test_an_exam_teaches_wrappers_nothing() -> None:
    envs = trained()
    before = envs.envs[0].get_wrapper_attr("obs_rms").mean.copy()
    exam(View(envs, PANEL).through(Gain()))
    assert np.array_equal(envs.envs[0].get_wrapper_attr("obs_rms").mean, before)


def test_statistics_of_several_environments_are_pooled() -> None:
    envs = trained(n=3)
    rows = np.random.default_rng(0).normal(size=(5, 3))
    parts = [env.get_wrapper_attr("obs_rms") for env in envs.envs]
    mean = np.mean([part.mean for part in parts], axis=0)
    square = np.mean([part.var + part.mean**2 for part in parts], axis=0)
    expected = np.clip((rows - mean) / np.sqrt(square - mean**2 + 1e-8), -1.2, 1.2)
    assert View(envs, PANEL).observations(rows) == pytest.approx(expected, rel=1e-5)


def test_wrappers_around_a_vector_count_too() -> None:
    envs = trained(bare, n=2)
    around = gymnasium.wrappers.vector.NormalizeObservation(envs)
    around.reset(seed=1)
    rows = np.ones((4, 3), np.float32)
    expected = (rows - around.obs_rms.mean) / np.sqrt(around.obs_rms.var + around.epsilon)
    assert View(around, PANEL).observations(rows) == pytest.approx(expected)


def test_the_panels_own_wrappers_are_not_applied_twice() -> None:
    panel = find_panel(f"{ENVS}:wrapped", 2)
    rows = np.ones((4, 3), np.float32)
    assert View(trained(), panel).observations(rows) is rows


def test_a_wrapper_that_cannot_be_applied_is_refused() -> None:
    with pytest.raises(UsageError, match="wrapper Odd stands between policy and environment"):
        View(trained(lambda: Odd(bare())), PANEL)
    envs = gymnasium.vector.AsyncVectorEnv([wrapped])
    with pytest.raises(UsageError, match="AsyncVectorEnv has its environments in other processes"):
        View(envs, PANEL)
    envs.close()


SCRIPT = """
import gymnasium, torch, numpy as np
from wrapped_envs import wrapped

class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.actor_mean = torch.nn.Sequential(torch.nn.Linear(3, 1, bias=False), torch.nn.Tanh())
        self.actor_mean[0].weight.data = torch.tensor([[0.3, -1.4, -0.9]])

envs = gymnasium.vector.SyncVectorEnv([wrapped])
agent = Agent()
obs, _ = envs.reset(seed=3)
envs.action_space.seed(3)
for _ in range(300):
    envs.step(envs.action_space.sample())
envs.close()
"""


@TORCH
def test_a_script_of_cleanrl_with_normalised_observations(tmp_path: Path) -> None:
    from mileage.external.adapters import cleanrl

    (tmp_path / "ppo.py").write_text(SCRIPT)
    db = tmp_path / "ledger.db"
    cleanrl.main(["--panel", PANEL.env_id, "--db", str(db), str(tmp_path / "ppo.py")])
    (run,) = mileage.Ledger(db).records()
    played = own_play(trained(), Gain())
    alike = run.evaluations[-1].evaluation.returns[: len(played)]
    assert alike == pytest.approx(played, rel=1e-3)


@pytest.mark.skipif(importlib.util.find_spec("stable_baselines3") is None, reason="stable-baselines3 is not installed")
def test_stable_baselines3_acts_through_wrappers_of_single_environments() -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    from mileage.external.adapters.stable_baselines3 import SB3Policy

    model = PPO("MlpPolicy", DummyVecEnv([rescaled]), n_steps=256, seed=1, device="cpu")
    model.learn(512)
    envs = model.get_env()
    policy = SB3Policy(model, True, View(envs, PANEL))
    found = list(mileage.external.exam.examine(policy, PANEL).returns)
    assert found == pytest.approx(own_play(envs, lambda obs: model.predict(obs, deterministic=True)[0]), rel=1e-4)


@TORCH
def test_a_script_whose_wrappers_cannot_be_applied_is_recorded_without_an_exam(tmp_path: Path) -> None:
    from mileage.external.adapters import cleanrl

    (tmp_path / "ppo.py").write_text(SCRIPT.replace("SyncVectorEnv([wrapped])", "AsyncVectorEnv([wrapped])"))
    with pytest.warns(UserWarning, match="no exam: AsyncVectorEnv"):
        cleanrl.main(["--panel", PANEL.env_id, "--db", str(tmp_path / "a.db"), str(tmp_path / "ppo.py")])
    (run,) = mileage.Ledger(tmp_path / "a.db").records()
    assert (str(run.state), run.final) == ("finished", None)


def test_a_panel_of_another_environment_does_not_fit() -> None:
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(UsageError, match="the observation_space of the panel's Acrobot-v1 is"):
        View(env, find_panel("Acrobot-v1"))
    env.close()
