"""Presets: shipped ones, and files of the user's own."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import extras
import mileage
from mileage.errors import UsageError
from mileage.training.agents import agent_class
from mileage.training.preset_files import RUN_KEYS, load_preset

EXTRAS = {"LunarLander-v3": extras.BOX2D, "BipedalWalker-v3": extras.BOX2D} | {
    f"{name}-v5": extras.MUJOCO for name in ("HalfCheetah", "Hopper", "Walker2d", "Ant")
}


def shipped() -> list[Any]:
    folder = resources.files("mileage.training").joinpath("presets")
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    found = [(file.name.removesuffix(".toml"), env) for file in files for env in tomllib.loads(file.read_text())]
    return [pytest.param(*each, marks=EXTRAS.get(each[1], ())) for each in found]


@pytest.mark.parametrize(("algorithm", "env"), shipped())
def test_every_shipped_preset_makes_an_agent(algorithm: str, env: str) -> None:
    agent = agent_class(algorithm)(env)
    preset = load_preset(algorithm, env)
    assert preset
    for name, value in preset.items():
        if name in RUN_KEYS:
            assert agent.run_defaults[name] == value > 0
        else:
            got = getattr(agent.config, name)
            assert (list(got) if isinstance(got, tuple) else got) == value


def test_hyperparameters_override_the_preset() -> None:
    assert mileage.PPO("CartPole-v1", gamma=0.5).config.gamma == 0.5
    assert mileage.PPO("CartPole-v1").config.n_steps == load_preset("ppo", "CartPole-v1")["n_steps"]
    assert mileage.PPO("CartPole-v1", preset="none").config == mileage.PPO.algorithm.learner().Config()


def test_an_environment_without_a_preset_has_an_empty_one() -> None:
    assert load_preset("ppo", "FrozenLake-v1") == {}
    assert load_preset("nothing", "CartPole-v1") == {}
    assert load_preset("ppo", "CartPole-v1", "none") == {}


def test_a_file_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('["CartPole-v1"]\ngamma = 0.75\ntotal_steps = 300\nhidden = [5]\n')
    agent = mileage.PPO("CartPole-v1", preset=str(path))
    assert (agent.config.gamma, agent.config.hidden) == (0.75, (5,))
    assert agent.run_defaults == {"total_steps": 300}
    with pytest.raises(UsageError, match=r"has no table for 'Pendulum-v1': it has 'CartPole-v1'$"):
        mileage.PPO("Pendulum-v1", preset=str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[broken", "cannot be read: "),
        (b"\xff\xfe\x00", "cannot be read: "),
        (b"", "has no table for 'CartPole-v1': it has none"),
        (b'"CartPole-v1" = 3', "has no table for 'CartPole-v1'"),
        (b'["CartPole-v1"]\ngama = 1.0', "unknown hyperparameter of ppo 'gama': did you mean 'gamma'?"),
        (b'["CartPole-v1"]\ngamma = "high"', "gamma must be of type float, not 'high'"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        mileage.PPO("CartPole-v1", preset=str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist: use 'default', 'none' or a TOML file"):
        mileage.PPO("CartPole-v1", preset="defualt")
    with pytest.raises(UsageError, match="cannot be read"):
        mileage.PPO("CartPole-v1", preset=str(tmp_path))
