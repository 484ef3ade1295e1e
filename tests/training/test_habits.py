"""Agents called the way users of other libraries call them."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import mileage
from mileage.buffers import PrioritizedReplay, ReplayBuffer
from mileage.envs import resolve
from mileage.errors import CheckpointError, UsageError
from mileage.ledger.panels import Panel
from mileage.training.evaluation import usual_episodes

SMALL: dict[str, Any] = {"threads": 1, "n_envs": 2, "n_steps": 16, "minibatch": 16, "epochs": 1, "hidden": (4,)}


class Corridor(gymnasium.Env[Any, Any]):
    """Go right four times."""

    observation_space = gymnasium.spaces.Box(-1.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.place = max(0, self.place + (1 if action else -1))
        return np.full(1, self.place, np.float32), -1.0, self.place >= 4, False, {}


def make_corridor() -> Corridor:
    return Corridor()


def tiny(env: Any = "CartPole-v1", *more: Any, **changes: Any) -> mileage.PPO:
    return mileage.PPO(env, *more, preset="none", **(SMALL | changes))


@pytest.mark.parametrize(
    ("env", "env_id"),
    [
        (lambda: gymnasium.make("CartPole-v1"), "CartPole-v1"),
        (lambda: gymnasium.wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1")), "CartPole-v1+TimeAware"),
        (Corridor, "Corridor"),
        (lambda: make_corridor, "Corridor"),
        (lambda: [make_corridor] * 3, "Corridor"),
        (lambda: gymnasium.vector.SyncVectorEnv([make_corridor] * 3), "Corridor"),
        (lambda: mileage.VecEnv("CartPole-v1", 3), "CartPole-v1"),
    ],
)
def test_environments_as_objects(env: Any, env_id: str) -> None:
    given = env()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with tiny(given) as agent:
            assert agent.env_id.startswith(env_id)
            assert agent.learn(64, eval_every=0).steps >= 64


def test_vectors_say_how_many() -> None:
    changes = {name: value for name, value in SMALL.items() if name != "n_envs"}
    agent = mileage.PPO([make_corridor] * 3, preset="none", **changes)
    assert agent.config.n_envs == 3


def test_what_is_no_environment_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"^env must be an id, an environment, or a function .*, not int$"):
        tiny(5)
    with pytest.raises(UsageError, match="makes a str, not one of Gymnasium's"):
        tiny(lambda: "CartPole-v1")


def test_the_name_of_a_network_may_come_first() -> None:
    assert tiny("MlpPolicy", "CartPole-v1").env_id == "CartPole-v1"
    assert mileage.PPO("MlpPolicy", env="CartPole-v1").env_id == "CartPole-v1"
    assert mileage.PPO(policy="MlpPolicy", env="CartPole-v1").env_id == "CartPole-v1"
    with pytest.raises(UsageError, match="'MlpPolicy' is the name of a network: give the environment too"):
        mileage.PPO("MlpPolicy")
    with pytest.raises(UsageError, match=r"give one environment, .* not 'CartPole-v1' and 'Acrobot-v1'"):
        mileage.PPO("CartPole-v1", env="Acrobot-v1")
    with pytest.raises(UsageError, match=r"^give one environment"):
        tiny("CartPole-v1", "CartPole-v1")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda agent: agent.learn("10"), "^total_steps must be a whole number, not '10'$"),
        (lambda agent: agent.learn(1.5), "^total_steps must be a whole number, not 1.5$"),
        (lambda agent: agent.learn(float("nan")), "^total_steps must be a whole number, not nan$"),
        (lambda agent: agent.learn(10, eval_every=float("inf")), "^eval_every must be a whole number, not inf$"),
        (lambda agent: agent.learn(10, callback=5), "^callback must be a function, or several, not 5$"),
        (lambda agent: agent.learn(10, target=475), "^target must be text such as 'mean_return>=475', not 475$"),
        (lambda agent: agent.learn(10, eval_every=0, target="mean_return>=1"), "^eval_every=0 leaves nothing"),
        (lambda agent: agent.evaluate(5), "^panel must be a mileage.Panel, not 5"),
        (lambda agent: agent.evaluate(Panel.default("Acrobot-v1", 2)), "^panel is of environment 'Acrobot-v1', not"),
        (lambda agent: agent.learn(10, panel=Panel.default("Acrobot-v1", 2)), "^panel is of environment 'Acrobot-v1'"),
    ],
)
def test_wrong_arguments_are_sentences(call: Any, sentence: str) -> None:
    with tiny() as agent, pytest.raises(UsageError, match=sentence):
        call(agent)


def test_evaluation_switched_off_and_no_target() -> None:
    with tiny() as agent:
        run = agent.learn(64.0, eval_every=0)
    assert (run.evaluations, run.state) == ((), "finished")
    assert len(repr(run).splitlines()) <= 5


def test_the_best_checkpoint_is_kept(tmp_path: Path) -> None:
    best = tmp_path / "best.safetensors"
    with tiny() as agent:
        run = agent.learn(256, eval_every=32, panel=agent.default_panel(episodes=5), best_checkpoint=best)
    returns = [point.evaluation.mean_return for point in run.evaluations]
    assert mileage.load(best).steps == run.evaluations[int(np.argmax(returns))].steps


def test_fine_tuning_with_another_rate(tmp_path: Path) -> None:
    path = tmp_path / "agent.safetensors"
    with tiny() as agent:
        agent.learn(64, eval_every=0)
        agent.save(path)
    for loaded in (mileage.load(path, learning_rate=1e-5), mileage.PPO.load(path, learning_rate=1e-5)):
        assert loaded.config.learning_rate == 1e-5
        np.testing.assert_array_equal(loaded.policy.params, agent.policy.params)
    with pytest.raises(UsageError, match="unknown hyperparameter of ppo 'learning_rat'"):
        mileage.load(path, learning_rat=1)
    with pytest.raises(CheckpointError, match="does not go with n_envs"):
        mileage.load(path, n_envs=4).learn(64)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))])
def test_copies_of_agents_go_on_alike(again: Any) -> None:
    with tiny() as agent:
        agent.learn(64, eval_every=0)
        with again(agent) as other:
            for each in (agent, other):
                each.learn(64, eval_every=0)
            np.testing.assert_array_equal(agent.policy.params, other.policy.params)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplay])
@pytest.mark.parametrize("again", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_copies_of_buffers_hold_the_same_and_are_apart(kind: Any, again: Any) -> None:
    buffer = kind(100, obs_shape=2, seed=3)
    for i in range(10):
        buffer.push(np.full(2, i, np.float32), 0.0, float(i), False, False, np.full(2, i + 1, np.float32))
    other = again(buffer)
    np.testing.assert_array_equal(other.sample(8).rewards, buffer.sample(8).rewards)
    other.clear()
    assert (len(buffer), len(other)) == (10, 0)


def test_another_environment_with_the_same_spaces() -> None:
    with tiny() as agent:
        agent.learn(64, eval_every=0)
        before = agent.policy.params.copy()
        agent.set_env(gymnasium.make("CartPole-v1", max_episode_steps=20))
        np.testing.assert_array_equal(agent.policy.params, before)
        assert agent.learn(64, eval_every=0).steps == 128
        with pytest.raises(UsageError, match=r"^obs_size of 'Acrobot-v1' is 6, not 4 as before$"):
            agent.set_env("Acrobot-v1")


@pytest.mark.parametrize(("algorithm", "env"), [("PPO", "CartPole-v1"), ("DQN", "CartPole-v1"), ("SAC", "Pendulum-v1")])
def test_a_rate_may_be_a_function_of_what_is_left(algorithm: str, env: str, tmp_path: Path) -> None:
    def trained(**rate: Any) -> Any:
        config = {"n_envs": 2, "hidden": (8,)} | ({} if algorithm == "PPO" else {"learning_starts": 16, "batch": 8})
        agent = getattr(mileage, algorithm)(env, preset="none", threads=1, **config, **rate)
        agent.learn(512, eval_every=0)
        return agent

    function = trained(learning_rate=lambda left: 1e-3 * left)
    named = trained(learning_rate=1e-3, learning_rate_schedule="linear")
    np.testing.assert_allclose(function.policy.params, named.policy.params, rtol=1e-3, atol=1e-5)
    assert not np.allclose(function.policy.params, trained(learning_rate=1e-3).policy.params, rtol=1e-3, atol=1e-5)
    function.save(tmp_path / "agent.safetensors")
    assert mileage.load(tmp_path / "agent.safetensors").config == function.config
    with pytest.raises(UsageError, match=r"^learning_rate must be a function whose values are 0 or more"):
        trained(learning_rate=lambda left: -left)


def test_live_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tiny() as agent:
        agent.learn(128, eval_every=64, panel=agent.default_panel(episodes=2), tensorboard=tmp_path)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {"train/policy_loss", "eval/mean_return"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("eval/mean_return")] == [64, 128]


def test_vector_environments_are_not_copied() -> None:
    vec = mileage.VecEnv("CartPole-v1", 2)
    for copied in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(UsageError, match="'CartPole-v1' are neither copied nor pickled"):
            copied(vec)


def test_an_action_for_what_is_not_finite_is_refused() -> None:
    agent = tiny()
    for ask in (agent.predict, agent.distribution):
        for odd in (np.nan, np.inf, -np.inf):
            with pytest.raises(UsageError, match=r"^observation must be finite numbers"):
                ask([0.0, odd, 0.0, 0.0])


def test_short_trainings_that_python_steps_are_examined_in_fewer_episodes() -> None:
    spec = resolve("FrozenLake-v1")
    assert spec.max_steps == 100
    for steps, episodes in ((500, 5), (80_000, 26), (400_000, 100), (10**7, 100)):
        assert usual_episodes(spec, steps) == episodes
    run = mileage.PPO("FrozenLake-v1", preset="none", **SMALL).learn(64)
    assert run.final is not None
    assert len(run.final.returns) == 5
    assert len(tiny().learn(64).final.returns) == 100  # type: ignore[union-attr]
