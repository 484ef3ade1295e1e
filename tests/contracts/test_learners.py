"""Every algorithm, on every kind of environment and every back end: trained, saved, closed, resumed and asked.

Where environments can be saved too, none of that may change a bit of what is learned.
"""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mileage
from mileage.algorithms.registry import BUILT_IN, Algorithm
from mileage.contracts import Learner, LearnerConfig, Policy, Saved, VectorEnv
from mileage.errors import CheckpointError, UsageError

SMALL: dict[str, Any] = {"preset": "none", "seed": 3, "threads": 2, "hidden": (8,), "n_envs": 2}
ON_POLICY: dict[str, Any] = {"n_steps": 8}
REPLAY: dict[str, Any] = {"batch": 8, "capacity": 64, "learning_starts": 16, "train_every": 2}
# Enough for several updates, and for some of the replay buffer to be forgotten.
STEPS = 48


@dataclasses.dataclass(frozen=True)
class Place:
    """A kind of environment: one with discrete actions, one with continuous ones, and what to make it with."""

    discrete: str
    continuous: str
    remembers: bool
    """Whether the environments' own state can be saved."""
    options: tuple[tuple[str, dict[str, Any]], ...] = ()

    def arguments(self, env: str) -> dict[str, Any]:
        return {"env_kwargs": dict(self.options).get(env, {})}


PLACES = {
    "native": Place("CartPole-v1", "Pendulum-v1", True),
    "mujoco": Place("", "InvertedPendulum-v5", True),
    # Options make a native environment one of Gymnasium's.
    "gymnasium": Place(
        "CartPole-v1",
        "Pendulum-v1",
        False,
        (("CartPole-v1", {"sutton_barto_reward": False}), ("Pendulum-v1", {"g": 10.0})),
    ),
}
CONTINUOUS = ("rpo", "sac", "td3")


@dataclasses.dataclass(frozen=True)
class Case:
    algorithm: Algorithm
    place: str
    backend: str
    env: str

    def __str__(self) -> str:
        return f"{self.algorithm.name}-{self.place}-{self.backend}"

    @property
    def remembers(self) -> bool:
        return PLACES[self.place].remembers

    def agent(self, **changes: Any) -> Any:
        own = ON_POLICY if self.algorithm.on_policy else REPLAY
        # What collectors do depends on timing unless they are told to keep in step.
        step = {"mode": "lockstep", "lag": 1} if self.algorithm.name == "impala" else {}
        arguments = SMALL | own | step | PLACES[self.place].arguments(self.env) | {"backend": self.backend} | changes
        return mileage.agent_class(self.algorithm.name)(self.env, **arguments)


def cases() -> list[Case]:
    found = []
    for algorithm in BUILT_IN:
        for name, place in PLACES.items():
            env = place.continuous if algorithm.name in CONTINUOUS else place.discrete
            # MuJoCo's tasks are continuous: what can do both learns there, too.
            env = env or (place.continuous if algorithm.name != "dqn" else "")
            backends = ("native", "torch") if algorithm.torch_home else ("native",)
            found += [Case(algorithm, name, backend, env) for backend in backends if env]
    return found


@pytest.fixture(params=cases(), ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    if found.backend == "torch":
        pytest.importorskip("torch")
    if found.place == "mujoco":
        pytest.importorskip("mujoco")
    return found


def learn(agent: Any) -> None:
    agent.learn(STEPS, eval_every=10**9, panel=agent.default_panel(episodes=1))


def state(agent: Any) -> dict[str, Any]:
    """Everything that decides how training goes on, but for how far collectors on threads of their own have come."""
    saved = agent.learner.saved()
    ahead = ("rollout_", "env_", "action_rng", "episode") if agent.learner.own_threads else ()
    kept = {name: array.tobytes() for name, array in saved.arrays.items() if not name.startswith(ahead)}
    return kept | dict(saved.counters)


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name, value in one.items() if other[name] != value]


def test_learn_save_close_learn_load_resume_predict(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    with case.agent() as agent:
        learn(agent)
        assert agent.steps >= STEPS
        half = agent.steps
        agent.save(path)
        policy = {name: array.copy() for name, array in agent.policy.live_arrays().items()}
    with case.agent() as whole:
        learn(whole)
        learn(whole)
        wanted = state(whole)
    assert not [each.name for each in threading.enumerate() if each.name.startswith("collector")]
    # The agent was closed at the end of its `with`, and goes on.
    learn(agent)
    resumed = mileage.load(path, threads=1)
    assert (agent.steps, resumed.steps) == (whole.steps, half)
    for name, array in resumed.policy.live_arrays().items():
        np.testing.assert_array_equal(array, policy[name], err_msg=name)
    learn(resumed)
    assert differing(state(resumed), state(agent)) == []
    if case.remembers:
        assert differing(state(agent), wanted) == []
    obs = np.linspace(-0.2, 0.2, 2 * agent.policy.obs_size, dtype=np.float32).reshape(2, -1)
    chosen, memory = resumed.predict(obs)
    assert memory is None
    np.testing.assert_array_equal(chosen, agent.predict(obs)[0])
    np.testing.assert_array_equal(chosen[1], resumed.predict(obs[1])[0])
    if agent.policy.n_actions:
        assert set(chosen.tolist()) <= set(range(agent.policy.n_actions))
    else:
        assert ((chosen >= agent.policy.low) & (chosen <= agent.policy.high)).all()
    for each in (agent, resumed):
        each.close()


def test_what_is_built_keeps_to_the_contracts(case: Case) -> None:
    with case.agent() as agent:
        learner = agent.learner
        assert isinstance(learner, Learner)
        assert isinstance(learner.env, VectorEnv)
        assert isinstance(learner.policy, Policy)
        assert learner.policy is agent.policy
        config: LearnerConfig = learner.config
        assert isinstance(config, type(learner).Config)
        assert agent.batch_size == config.batch_size
        assert learner.steps == 0
        saved = learner.saved()
        assert isinstance(saved, Saved)
        assert all(isinstance(count, int) for count in saved.counters.values())
        assert bool([name for name in saved.arrays if name.startswith("env_")]) is case.remembers


def test_something_else_is_refused(case: Case) -> None:
    with case.agent() as agent, case.agent(hidden=(4,)) as other:
        with pytest.raises(UsageError, match=r"^array '.*' (is missing|is .* of shape)"):
            agent.learner.restore(other.learner.saved())
        saved = agent.learner.saved()
        with pytest.raises(UsageError, match=r"^counters cannot be"):
            agent.learner.restore(Saved(saved.arrays, {"steps": 1}))


def test_a_checkpoint_without_the_state_of_its_environments_starts_new_episodes(tmp_path: Path) -> None:
    """As those of environments that could not be saved when it was written."""
    path = tmp_path / "x"
    with mileage.SAC("Pendulum-v1", **SMALL, **REPLAY) as agent:
        learn(agent)
        saved = agent.learner.saved()
        arrays = {name: array for name, array in saved.arrays.items() if not name.startswith("env_")}
        learner = agent.learner
        learner.restore(Saved(arrays, saved.counters))
        assert learner.steps == agent.steps == 48
        agent.save(path)
    with mileage.load(path) as again:
        learn(again)


def test_dqn_refuses_continuous_actions() -> None:
    with pytest.raises(UsageError, match=r"^dqn needs discrete actions: use sac, td3 or ppo for continuous ones$"):
        mileage.DQN("Pendulum-v1")


def test_a_replay_buffer_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    from mileage.training import checkpoints

    path = tmp_path / "x"
    with mileage.DQN("CartPole-v1", **SMALL, **REPLAY) as agent:
        learn(agent)
        agent.save(path)
    arrays, metadata = checkpoints.read(path)
    for broken in ({"replay_records": None}, {"replay_records": arrays["replay_records"][:16]}):
        kept = {name: array for name, array in (arrays | broken).items() if array is not None}
        checkpoints.write(path, kept, metadata)
        with mileage.load(path) as again, pytest.raises(CheckpointError, match="the replay buffer is not whole"):
            learn(again)
