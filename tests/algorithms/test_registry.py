"""The one list of algorithms: what derives from it, and how others join it."""

from __future__ import annotations

import ast
import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mileage
import third_party
from mileage.algorithms import registry
from mileage.algorithms.registry import BUILT_IN, Algorithm, find_algorithm
from mileage.contracts import Learner
from mileage.errors import CheckpointError, UnknownNameError, UsageError
from mileage.training import agents

SOURCE = Path(mileage.__file__).parent


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = dict(registry._algorithms)
    yield
    registry._algorithms.clear()
    registry._algorithms.update(before)


@pytest.mark.parametrize("algorithm", BUILT_IN, ids=lambda each: each.name)
def test_every_algorithm_is_a_learner_with_an_agent(algorithm: Algorithm) -> None:
    learner = algorithm.learner()
    assert issubclass(learner, Learner)
    assert learner.__name__ == algorithm.class_name
    assert learner.Config.__name__ == f"{algorithm.class_name}Config"
    assert learner.Config.__module__ == algorithm.module
    agent = getattr(mileage, algorithm.class_name)
    assert agent is mileage.agent_class(algorithm.name) is getattr(agents, algorithm.class_name)
    assert (agent.name, agent.algorithm, agent.__name__) == (algorithm.name, algorithm, algorithm.class_name)
    assert inspect.getdoc(agent) == (
        f"{algorithm.title}; hyperparameters are the fields of `{algorithm.module}.{algorithm.class_name}Config`."
    )


@pytest.mark.parametrize("algorithm", [each for each in BUILT_IN if each.torch_home], ids=lambda each: each.name)
def test_learners_on_torch_are_configured_as_native_ones(algorithm: Algorithm) -> None:
    pytest.importorskip("torch")
    from mileage.algorithms.torch import TorchLearner

    learner = algorithm.learner("torch")
    assert issubclass(learner, TorchLearner)
    assert learner.Native is algorithm.learner()
    assert learner.Config is algorithm.learner().Config


def names_for_type_checkers(file: str) -> list[str]:
    """What a module defines or exports under TYPE_CHECKING."""
    found: list[str] = []
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            found += [each.name for each in node.body if isinstance(each, ast.ClassDef)]
            names = (name.asname for each in node.body if isinstance(each, ast.ImportFrom) for name in each.names)
            found += [name for name in names if name is not None]
    return found


def test_type_checkers_know_the_same_names() -> None:
    assert names_for_type_checkers("training/agents.py") == [each.class_name for each in BUILT_IN]
    assert sorted({*names_for_type_checkers("__init__.py"), "__version__"}) == sorted(mileage.__all__)


def test_the_command_line_names_them_all() -> None:
    assert registry.names_in_words() == "ppo, rpo, a2c, impala, sac, td3 or dqn"
    assert [each.name for each in BUILT_IN] == ["ppo", "rpo", "a2c", "impala", "sac", "td3", "dqn"]


def test_names_are_found_in_any_case_and_guessed_at() -> None:
    assert find_algorithm("PPO") is find_algorithm("ppo") is BUILT_IN[0]
    with pytest.raises(UnknownNameError, match=r"^unknown algorithm 'ppq': did you mean 'ppo'\?$"):
        find_algorithm("ppq")


HOME = "third_party:Search"


def test_an_algorithm_of_ones_own_is_trained_saved_and_loaded(tmp_path: Path) -> None:
    mileage.register_algorithm("search", HOME, title="Random search")
    kind = mileage.agent_class("search")
    assert (kind.__name__, kind.name) == ("Search", "search")
    path = tmp_path / "x"
    with kind("CartPole-v1", seed=2, spread=1.0) as agent:
        assert isinstance(agent.learner, third_party.Search)
        run = agent.learn(320, panel=agent.default_panel(episodes=2), eval_every=160, checkpoint=path)
        assert (run.algorithm, run.steps) == ("search", 320)
        assert agent.policy.weights.any()  # type: ignore[attr-defined]
    with mileage.load(path) as again:
        assert again.steps == 320
        for each in (agent, again):
            each.learn(320, panel=agent.default_panel(episodes=2))
        for name, array in agent.policy.live_arrays().items():
            np.testing.assert_array_equal(again.policy.live_arrays()[name], array)
        agent.close()


@pytest.mark.parametrize("place", ["third_party:Search", "third_party.py:Search"])
def test_it_is_named_by_its_home_on_the_command_line(tmp_path: Path, place: str) -> None:
    shutil.copy(third_party.__file__, tmp_path)
    options = ["--steps", "320", "--episodes", "2", "--set", "spread=1.0", "--json"]
    command = [sys.executable, "-m", "mileage", "train", place, "CartPole-v1", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert Path(tmp_path, run["checkpoint"]).is_file()


def test_a_checkpoint_imports_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    mileage.register_algorithm("search", HOME)
    with mileage.agent_class("search")("CartPole-v1") as agent:
        agent.save(path)
    del registry._algorithms["search"]
    with pytest.raises(CheckpointError, match="of algorithm 'search', which this version does not have"):
        mileage.load(path)


def test_what_cannot_be_registered() -> None:
    with pytest.raises(UsageError, match=r"^algorithm 'ppo' is built in: choose another name$"):
        mileage.register_algorithm("ppo", HOME)
    for name in ("Search", "", "a:b"):
        with pytest.raises(UsageError, match="name must be in small letters and without a colon"):
            mileage.register_algorithm(name, HOME)
    for home in ("third_party", "third_party:", ":Search"):
        with pytest.raises(UsageError, match=r"^home must be 'package\.module:Class'"):
            mileage.register_algorithm("search", home)
    with pytest.raises(UsageError, match="'third_party' has no class 'Serch'"):
        mileage.agent_class("third_party:Serch")("CartPole-v1")
    with pytest.raises(UsageError, match="module 'no_such_module' cannot be found"):
        mileage.agent_class("no_such_module:Search")("CartPole-v1")
    with pytest.raises(UsageError, match="search has no torch back end"):
        mileage.agent_class(HOME)("CartPole-v1", backend="torch")
