"""How environments are found."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from mileage.envs import GymnasiumEnv, NativeEnv, VecEnv, env, is_native, known, native, registered, resolve
from mileage.errors import UnknownNameError, UsageError

SOURCE = """
import gymnasium
from mileage.envs import env

@env(state_size=1, actions=2, max_steps=9)
class Counter:
    def reset(state, rng):
        state[0] = 0.0

    def step(state, action, rng):
        state[0] = state[0] + action
        return action, state[0] >= 3.0

def cart_pole(**kwargs):
    return gymnasium.make("CartPole-v1", **kwargs)

number = 3
"""


@pytest.fixture(name="file")
def file_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "my_envs.py"
    path.write_text(SOURCE)
    return path


def test_built_ins_are_listed_and_native() -> None:
    names = {"Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"}
    assert names <= set(registered())
    assert all(is_native(name) for name in names)
    assert not is_native("FrozenLake-v1")
    assert native("Pendulum-v1").id == "Pendulum-v1"
    assert resolve("Pendulum-v1") is native("Pendulum-v1")


def test_a_file_names_its_environment(file: Path) -> None:
    spec = resolve(f"{file}:Counter")
    assert isinstance(spec, NativeEnv)
    assert spec.max_steps == 9
    assert resolve(f"{file}:Counter") is spec
    vec = VecEnv(f"{file}:Counter", 1)
    vec.reset()
    rewards = [vec.step(np.array([1]))[1][0] for _ in range(3)]
    assert rewards == [1.0, 1.0, 1.0]
    assert vec.terminated[0]


def test_a_file_may_hold_a_gymnasium_environment(file: Path) -> None:
    spec = resolve(f"{file}:cart_pole", max_episode_steps=12)
    assert isinstance(spec, GymnasiumEnv)
    assert (spec.n_actions, spec.obs_size, spec.max_steps) == (2, 4, 12)


def test_two_files_of_one_name_are_two_modules(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / file.name
    other.parent.mkdir()
    other.write_text(SOURCE.replace("max_steps=9", "max_steps=5"))
    assert resolve(f"{file}:Counter").max_steps == 9
    assert resolve(f"{other}:Counter").max_steps == 5
    assert resolve(f"{other}:Counter") is resolve(f"{other}:Counter")


def test_what_a_file_lacks_is_said(file: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'Counter'"):
        resolve(f"{file}:Conter")
    with pytest.raises(UsageError, match=r"has no environment 'number'.*@mileage.env"):
        resolve(f"{file}:number")
    with pytest.raises(UsageError, match="does not exist"):
        resolve(f"{file}x.py:Counter")
    with pytest.raises(UsageError, match="module 'no_such_module' cannot be found"):
        resolve("no_such_module:Counter")


def test_modules_name_environments_too() -> None:
    assert resolve("mileage.envs.classic.cartpole:CartPole") is native("CartPole-v1")


def test_unknown_names_suggest_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'CartPole-v1'"):
        resolve("CartPole-v9")
    with pytest.raises(UnknownNameError, match="unknown native environment"):
        native("FrozenLake-v1")


def test_built_in_ids_cannot_be_taken() -> None:
    class Fake:
        @staticmethod
        def reset(state: object, rng: object) -> None: ...

        @staticmethod
        def step(state: object, action: int, rng: object) -> tuple[float, bool]:
            return 0.0, False

    with pytest.raises(UsageError, match="is built in"):
        env("CartPole-v1", state_size=1, actions=2)(Fake)
    first = env("Again", state_size=1, actions=2)(Fake)
    second = env("Again", state_size=1, actions=3)(Fake)
    assert native("Again") is second
    assert first.n_actions == 2


def test_gymnasium_is_there_for_the_rest() -> None:
    spec = resolve("FrozenLake-v1", is_slippery=False)
    assert isinstance(spec, GymnasiumEnv)
    assert spec.n_actions == gymnasium.make("FrozenLake-v1").action_space.n


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="versions are digests of bytecode, which Python changes")
def test_versions_of_built_ins_are_those_of_runs_recorded_before() -> None:
    assert {name: native(name).version for name in registered() if name in known.BUILT_IN} == {
        "Acrobot-v1": "1c6b704c1ece6c8c",
        "CartPole-v1": "01a5353563d73924",
        "MountainCar-v0": "76cba695c1872413",
        "MountainCarContinuous-v0": "b518d2429b3590a5",
        "Pendulum-v1": "42eb075637a82b15",
    }
