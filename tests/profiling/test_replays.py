"""Replayed parts of rollout and update are the real thing: they write the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mileage
from mileage.algorithms.rollout_learner import StatefulLearner
from mileage.algorithms.rollouts import NativeOnPolicy
from mileage.description import Description, Product
from mileage.envs.native.vector import VecEnv
from mileage.kernels import actor_critic
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.kernels.machine.gauges import product_frame, products
from mileage.profiling import replays
from mileage.training.agent import Agent
from mileage.types import Array

STORED = ("obs", "raw_obs", "actions", "log_probs", "values", "rewards", "terminated", "truncated", "last_values")


def ppo(env: str, **options: Any) -> Agent:
    agent = mileage.PPO(env, preset="none", n_envs=6, n_steps=40, minibatch=80, epochs=2, hidden=(8, 8), **options)
    agent.learn(480, eval_every=10**9, panel=agent.default_panel(episodes=2))
    return agent


def described(agent: Agent) -> Description:
    found = agent.learner.describe()
    assert found is not None
    return found


def state(agent: Agent) -> dict[str, Array]:
    assert isinstance(agent.learner, StatefulLearner)
    return agent.learner.state_arrays()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("env", "normalise"), [("CartPole-v1", False), ("CartPole-v1", True), ("Pendulum-v1", False)])
def test_every_part_of_the_rollout_writes_what_the_rollout_wrote(env: str, normalise: bool, threads: int) -> None:
    with ppo(env, normalise_observations=normalise, threads=threads) as agent, single_threaded_blas():
        learner, found = agent.learner, described(agent)
        assert isinstance(learner, NativeOnPolicy)
        assert isinstance(learner.env, VecEnv)
        parts = found.calls["rollout"].parts
        assert parts is not None
        with found.paused():
            wanted = {name: getattr(learner, name).copy() for name in STORED}
            moving = (learner.env.state, learner.env.elapsed, learner.env.rng, learner.action_rng)
            ended = [array.copy() for array in moving]

            parts.rewind("environments")
            for name in ("rewards", "terminated", "truncated"):
                getattr(learner, name)[:] = 7
            parts.environments()
            for array, end in zip(moving[:3], ended[:3], strict=True):
                np.testing.assert_array_equal(array, end)

            parts.rewind("inference")
            for name in ("actions", "log_probs", "values", "last_values"):
                getattr(learner, name)[:] = 7
            parts.inference()
            np.testing.assert_array_equal(learner.action_rng, ended[3])

            parts.rewind("storage")
            parts.storage()
            for name, array in wanted.items():
                np.testing.assert_array_equal(getattr(learner, name), array, err_msg=name)


def off_policy(name: str, **options: Any) -> Agent:
    kind = {"sac": mileage.SAC, "td3": mileage.TD3, "dqn": mileage.DQN}[name]
    env = "CartPole-v1" if name == "dqn" else "Pendulum-v1"
    agent = kind(env, batch=64, hidden=(16, 16), capacity=500, learning_starts=64, n_envs=2, **options)
    agent.learn(400, eval_every=10**9, panel=agent.default_panel(episodes=2))
    return agent


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
def test_updates_that_end_early_leave_nothing_behind(name: str) -> None:
    options = {"target_every": 1} if name == "dqn" else {"policy_delay": 1} if name == "td3" else {}
    agent = ppo("CartPole-v1") if name == "ppo" else off_policy(name, **options)
    with agent, single_threaded_blas():
        stages = described(agent).calls["learn"].stages
        assert stages is not None
        before = {key: array.copy() for key, array in state(agent).items()}
        # Not at rest: these updates learn.
        stages.run(None, 0)
        wanted = {key: array.copy() for key, array in state(agent).items()}
        assert not np.array_equal(wanted["params"], before["params"])
        for stage in (*range(len(stages.names) - 1), None):
            for key, array in state(agent).items():
                array[...] = before[key]
            stages.run(stage, 0)
        for key, array in state(agent).items():
            np.testing.assert_array_equal(array, wanted[key], err_msg=key)


def test_earlier_stages_leave_the_parameters_alone() -> None:
    with ppo("CartPole-v1") as agent, single_threaded_blas():
        stages = described(agent).calls["learn"].stages
        assert stages is not None
        before = state(agent)["params"].copy()
        for stage in range(len(stages.names) - 1):
            stages.run(stage, 0)
        np.testing.assert_array_equal(state(agent)["params"], before)


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
def test_replaying_leaves_the_agent_as_it_was(name: str) -> None:
    agent = ppo("CartPole-v1") if name == "ppo" else off_policy(name)
    with agent, single_threaded_blas():
        before = {key: array.copy() for key, array in state(agent).items()}
        found = described(agent)
        update = found.calls["learn"]
        assert update.stages is not None
        assert found.team is not None
        with found.paused():
            stages = replays.update_stages(update, update.stages, found.work["learn"], found.team, 0.0)
            scaling = replays.scaling(found, [1, 2], 0.0)
            for operation in found.operations.values():
                operation()
            for variant in found.variants:
                with variant.other() as other:
                    other()
        for key, array in state(agent).items():
            np.testing.assert_array_equal(array, before[key], err_msg=key)
        assert tuple(stages.stages) == update.stages.names
        assert set(scaling) == {1, 2}


def test_parts_of_a_rollout_add_up() -> None:
    with ppo("CartPole-v1") as agent, single_threaded_blas():
        found = described(agent)
        call = found.calls["rollout"]
        assert call.parts is not None
        assert found.team is not None
        with found.paused():
            parts = replays.rollout_parts(call, call.parts, found.work["rollout"], found.team, 0.0)
        assert parts.total == pytest.approx(parts.environments + parts.inference + parts.storage + parts.call)
        assert sum(parts.shares.values()) == pytest.approx(1.0)
        update = found.calls["learn"].stages
        assert update is not None
        assert update.names == ("loop, barriers and shuffle", *actor_critic.STAGES[2:])


def test_products_multiply() -> None:
    frame = product_frame([Product(0, 0, 2, 3, 4), Product(1, 1, 3, 2, 4)], pieces=1, repeats=1, ranks=1)
    products(0, 1, np.zeros(16, np.int64), frame.record)
    out = frame.array("scratch").reshape(3, -1)[2]
    # Factors are filled with one half: every entry is a sum of four quarters.
    np.testing.assert_array_equal(out[:6], np.ones(6, np.float32))
