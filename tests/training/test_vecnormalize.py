"""Statistics of Stable-Baselines3's VecNormalize in an agent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import extras
import mileage
from mileage.errors import UsageError

MEAN, VAR = np.array([0.5, -1.0, 2.0]), np.array([4.0, 0.25, 1.0])
ARRAYS = {"obs_mean": MEAN, "obs_var": VAR, "obs_count": 100.0, "return_var": 9.0, "return_count": 100.0}


def vecnormalize() -> Any:
    """What a VecNormalize object has of statistics."""
    obs = SimpleNamespace(mean=MEAN, var=VAR, count=100.0)
    returns = SimpleNamespace(mean=np.float64(0.0), var=np.float64(9.0), count=100.0)
    return SimpleNamespace(obs_rms=obs, ret_rms=returns, clip_obs=10.0, epsilon=1e-8)


def agent_with(source: Any, **settings: Any) -> Any:
    agent = mileage.PPO("Pendulum-v1", preset="none", n_envs=2, n_steps=8, threads=1, **settings)
    agent.import_vecnormalize(source)
    return agent


@pytest.mark.parametrize("backend", ["native", pytest.param("torch", marks=extras.TORCH)])
@pytest.mark.parametrize("kind", ["object", "arrays", "file"])
def test_observations_are_normalised_as_before(backend: str, kind: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "statistics.npz", **ARRAYS)
    source = {"object": vecnormalize(), "arrays": ARRAYS, "file": tmp_path / "statistics.npz"}[kind]
    agent = agent_with(source, backend=backend)
    plain = mileage.PPO("Pendulum-v1", preset="none", n_envs=2, n_steps=8, threads=1)
    raw = np.random.default_rng(0).normal(0.0, 30.0, (20, 3)).astype(np.float32)
    normalised = np.clip((raw - MEAN) / np.sqrt(VAR + 1e-8), -10.0, 10.0)
    np.testing.assert_allclose(agent.predict(raw)[0], plain.predict(normalised)[0], rtol=1e-5, atol=1e-6)
    # In training too, and for good as nothing is learned of them.
    start = agent.learner.env.obs.copy()
    agent.learn(16, panel=agent.default_panel(episodes=1))
    seen = agent.learner.obs[:2]
    np.testing.assert_allclose(seen, np.clip((start - MEAN) / np.sqrt(VAR), -10.0, 10.0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(agent.policy.obs_mean, MEAN)


@pytest.mark.parametrize("backend", ["native", pytest.param("torch", marks=extras.TORCH)])
def test_statistics_go_on_from_what_they_were(backend: str) -> None:
    agent = agent_with(vecnormalize(), backend=backend, normalise_observations=True, normalise_rewards=True)
    engine = agent.learner
    assert list(engine.return_moments) == [100.0, 0.0, 900.0]
    first = agent.learner.env.obs.copy()
    agent.learn(16, panel=agent.default_panel(episodes=1))
    assert engine.obs_moments[0, 0] == 116.0
    raw = engine.raw_obs.astype(np.float64)
    np.testing.assert_allclose(raw[:2], first)
    np.testing.assert_allclose(agent.policy.obs_mean, (100.0 * MEAN + raw.sum(axis=0)) / 116.0, rtol=1e-5)


def test_what_cannot_be_taken_over_is_named(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        (tmp_path / "vecnormalize.pkl", "is a pickle, which is not loaded here: export it to .npz"),
        (tmp_path / "absent.npz", "cannot be read as an .npz file"),
        ({"obs_mean": MEAN}, "statistics have no 'obs_var'"),
        ({"obs_mean": np.zeros(4), "obs_var": np.ones(4)}, r"are for observations of shape \(4,\), not \(3,\)"),
        (SimpleNamespace(obs_rms={"a": 1}), "statistics of dict observations cannot be taken over"),
        (17, "must be a VecNormalize object, a mapping or an .npz file, not 17"),
    ]
    for source, message in cases:
        with pytest.raises(UsageError, match=message):
            agent_with(source)
    with pytest.raises(UsageError, match="clip_obs must be 10 where observations go on being normalised, not 5"):
        agent_with(ARRAYS | {"clip_obs": 5.0}, normalise_observations=True)
    with pytest.raises(UsageError, match="sac does not normalise observations"):
        mileage.SAC("Pendulum-v1", preset="none").import_vecnormalize(ARRAYS)
