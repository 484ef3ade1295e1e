"""Replayed parts of rollout and update are the real thing: they write the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mileage
from mileage.kernels.learners import actor_critic, rollout_parts
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.profiling.limits import product_frame, products
from mileage.profiling.native_replay import NativeReplay

STORED = ("obs", "raw_obs", "actions", "log_probs", "values", "rewards", "terminated", "truncated", "last_values")


def ppo(env: str, **options: Any) -> mileage.PPO:
    agent = mileage.PPO(env, preset="none", n_envs=6, n_steps=40, minibatch=80, epochs=2, hidden=(8, 8), **options)
    agent.learn(480, eval_every=10**9, panel=agent.default_panel(episodes=2))
    return agent


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("env", "normalise"), [("CartPole-v1", False), ("CartPole-v1", True), ("Pendulum-v1", False)])
def test_every_part_of_the_rollout_writes_what_the_rollout_wrote(env: str, normalise: bool, threads: int) -> None:
    with ppo(env, normalise_observations=normalise, threads=threads) as agent, single_threaded_blas():
        replay = NativeReplay(agent)
        engine = replay.engine
        wanted = {name: getattr(engine, name).copy() for name in STORED}
        ended = [array.copy() for array in (engine.env.state, engine.env.elapsed, engine.env.rng, engine.action_rng)]

        replay.rewind("environments")
        for name in ("rewards", "terminated", "truncated"):
            getattr(engine, name)[:] = 7
        replay.part(rollout_parts.environments)()
        np.testing.assert_array_equal(engine.env.state, ended[0])
        np.testing.assert_array_equal(engine.env.elapsed, ended[1])
        np.testing.assert_array_equal(engine.env.rng, ended[2])

        replay.rewind("inference")
        for name in ("actions", "log_probs", "values", "last_values"):
            getattr(engine, name)[:] = 7
        replay.part(rollout_parts.inference)()
        np.testing.assert_array_equal(engine.action_rng, ended[3])

        replay.rewind("storage")
        replay.part(rollout_parts.storage)()
        for name, array in wanted.items():
            np.testing.assert_array_equal(getattr(engine, name), array, err_msg=name)


def off_policy(name: str, **options: Any) -> Any:
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
        replay = NativeReplay(agent)
        engine = replay.engine
        replay._update_frame.set(**replay._rates)
        before = {key: array.copy() for key, array in engine.state_arrays().items()}
        replay.run_update()
        wanted = {key: array.copy() for key, array in engine.state_arrays().items()}
        assert not np.array_equal(wanted["params"], before["params"])
        for stage in (*range(replay.last_stage), None):
            for key, array in engine.state_arrays().items():
                array[...] = before[key]
            replay.run_update(stage)
        for key, array in engine.state_arrays().items():
            np.testing.assert_array_equal(array, wanted[key], err_msg=key)


def test_earlier_stages_leave_the_parameters_alone() -> None:
    with ppo("CartPole-v1") as agent, single_threaded_blas():
        replay = NativeReplay(agent)
        replay._update_frame.set(**replay._rates)
        before = agent.policy.params.copy()
        for stage in range(actor_critic.LAST_STAGE):
            replay.run_update(stage)
        np.testing.assert_array_equal(agent.policy.params, before)
        replay.close()


def test_replaying_leaves_the_agent_as_it_was() -> None:
    with ppo("CartPole-v1") as agent, single_threaded_blas():
        before = {key: array.copy() for key, array in agent.learner.state_arrays().items()}
        replay = NativeReplay(agent)
        parts = replay.rollout_parts(0.0)
        stages = replay.update_stages(0.0)
        scaling = replay.scaling([1, 2], 0.0)
        replay.close()
        for key, array in agent.learner.state_arrays().items():
            np.testing.assert_array_equal(array, before[key], err_msg=key)
        assert parts.total == pytest.approx(parts.environments + parts.inference + parts.storage + parts.call)
        assert sum(parts.shares.values()) == pytest.approx(1.0)
        assert tuple(stages.stages) == ("loop, barriers and shuffle", *actor_critic.STAGES[2:])
        assert set(scaling) == {1, 2}


def test_products_multiply() -> None:
    frame = product_frame([(0, 0, 2, 3, 4), (1, 1, 3, 2, 4)], pieces=1, repeats=1, ranks=1)
    products(0, 1, np.zeros(16, np.int64), frame.record)
    out = frame.array("scratch").reshape(3, -1)[2]
    # Factors are filled with one half: every entry is a sum of four quarters.
    np.testing.assert_array_equal(out[:6], np.ones(6, np.float32))
