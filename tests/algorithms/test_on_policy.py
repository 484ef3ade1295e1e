"""The engine of policy-gradient algorithms: advantages, normalisation, statistics, and what decides its course."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import tiny_envs
from mileage.algorithms.a2c import A2C, A2CConfig
from mileage.algorithms.ppo import PPO, PPOConfig
from mileage.algorithms.rollouts import NativeOnPolicy
from mileage.contracts import Saved, VectorEnv
from mileage.envs import VecEnv, env, make_vec
from mileage.errors import UsageError
from mileage.kernels import reference
from mileage.kernels.machine.team import Team
from mileage.kernels.moments import merged
from mileage.measure import Phase, PhaseClock
from mileage.policies import ActorCritic
from mileage.training.agents import agent_class


def parts(env_id: str, n_envs: int, seed: int = 0, hidden: tuple[int, ...] = (16,)) -> tuple[Any, ActorCritic, Team]:
    env = make_vec(env_id, n_envs)
    spec = env.spec
    policy = ActorCritic(spec.obs_size, spec.n_actions, spec.action_low, spec.action_high, hidden=hidden, seed=seed)
    return env, policy, Team(1)


def engine_of(config: PPOConfig | A2CConfig, env_id: str = "CartPole-v1", seed: int = 0) -> NativeOnPolicy:
    kind = PPO if isinstance(config, PPOConfig) else A2C
    return kind(config, *parts(env_id, config.n_envs, seed), seed)


def test_advantages_are_those_of_the_reference() -> None:
    config = PPOConfig(n_envs=3, n_steps=60, gamma=0.9, gae_lambda=0.8, learning_rate=1e-3)
    engine = engine_of(config)
    engine.env.max_steps = 11
    engine.rollout_frame.set(max_steps=11)
    engine.iterate(PhaseClock(), 0.0)
    shape = (60, 3)
    assert engine.truncated.any()
    assert engine.terminated.any()
    advantages, returns = reference.gae(
        engine.rewards.reshape(shape), engine.values.reshape(shape), engine.terminated.reshape(shape),
        engine.last_values, truncated=engine.truncated.reshape(shape),
        truncated_values=engine.truncated_values.reshape(shape), gamma=0.9, lambda_=0.8,
    )  # fmt: skip
    np.testing.assert_allclose(engine.advantages.reshape(shape), advantages, atol=1e-4)
    np.testing.assert_allclose(engine.returns.reshape(shape), returns, atol=1e-4)


def test_merged_moments_are_those_of_all_samples() -> None:
    samples = np.random.default_rng(0).normal(5.0, 3.0, size=(100, 2))
    moments = np.zeros((3, 2))
    for batch in np.split(samples, [1, 10, 55]):
        moments = merged(moments, batch)
    mean, variance = reference.mean_and_variance(samples)
    np.testing.assert_allclose(moments, [[100, 100], mean, 100 * variance])


def test_observation_statistics_are_those_of_raw_observations() -> None:
    # The first rollout shows nothing but zeros; a spike of 1000 then must count in full, not as far as it is clipped.
    engine = engine_of(
        PPOConfig(n_envs=2, n_steps=60, normalise_observations=True, learning_rate=1e-4), tiny_envs.Spike.id
    )
    raw = []
    for first in (0, 60, 120):
        engine.iterate(PhaseClock(), 0.0)
        clock = np.arange(first, first + 60, dtype=np.float64)
        raw.append(np.repeat(np.stack([np.where(clock >= 100.0, 1000.0, 0.0), clock], axis=1), 2, axis=0))
    samples = np.concatenate(raw)
    np.testing.assert_allclose(engine.policy.obs_mean, samples.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(engine.policy.obs_scale, 1.0 / np.sqrt(samples.var(axis=0) + 1e-8), rtol=1e-6)
    assert engine.policy.obs_limit == 10.0


def test_a_rollout_is_normalised_by_the_statistics_before_it() -> None:
    engine = engine_of(PPOConfig(n_envs=2, n_steps=30, normalise_observations=True, learning_rate=1e-4), "Pendulum-v1")
    engine.iterate(PhaseClock(), 0.0)
    first = engine.obs.copy()
    mean, scale = engine.policy.obs_mean.copy(), engine.policy.obs_scale.copy()
    np.testing.assert_allclose(mean, first.mean(axis=0), rtol=1e-4, atol=1e-6)
    start = engine.env.obs.copy()
    engine.iterate(PhaseClock(), 0.0)
    np.testing.assert_allclose(engine.obs[:2], np.clip((start - mean) * scale, -10.0, 10.0), rtol=1e-5)


def test_rewards_are_scaled_by_the_deviation_of_the_discounted_return() -> None:
    config = PPOConfig(n_envs=2, n_steps=25, gamma=0.5, normalise_rewards=True, learning_rate=1e-9)
    engine = engine_of(config, tiny_envs.Mirror.id)
    plain = engine_of(dataclasses.replace(config, normalise_rewards=False), tiny_envs.Mirror.id)
    for each in (engine, plain):
        each.iterate(PhaseClock(), 0.0)
    raw, done = plain.rewards.reshape(25, 2), plain.truncated.reshape(25, 2)
    returns, current = [], np.zeros(2)
    for t in range(25):
        current = 0.5 * current + raw[t]
        returns.append(current.copy())
        current[done[t] > 0] = 0.0
    want = np.clip(raw / (np.std(returns) + 1e-8), -10.0, 10.0)
    np.testing.assert_allclose(engine.rewards.reshape(25, 2), want, rtol=1e-5)
    # What is reported stays in the environment's own unit.
    stats = engine.iterate(PhaseClock(), 0.0)
    assert stats.episode_return < -8.0


def test_phases_of_an_iteration() -> None:
    clock = PhaseClock()
    engine_of(PPOConfig(n_envs=2, n_steps=8, learning_rate=1e-3)).iterate(clock, 0.0)
    entries = clock.times().entries
    assert {name: entries[name] for name in (Phase.ROLLOUT, Phase.ADVANTAGE, Phase.LEARN)} == {
        "rollout": 1,
        "advantage": 1,
        "learn": 1,
    }
    clock = PhaseClock()
    engine_of(PPOConfig(n_envs=2, n_steps=8, learning_rate=1e-3), "FrozenLake-v1").iterate(clock, 0.0)
    assert clock.times().entries[Phase.ENV_STEP] == 8
    assert clock.times().entries[Phase.INFERENCE] >= 9


def test_statistics_without_an_ended_episode() -> None:
    stats = engine_of(PPOConfig(n_envs=2, n_steps=4, learning_rate=1e-3)).iterate(PhaseClock(), 0.0)
    assert stats.episodes == 0
    assert math.isnan(stats.episode_return)
    assert math.isnan(stats.episode_length)
    assert stats.entropy == pytest.approx(math.log(2.0), rel=1e-3)


def test_a2c_is_ppo_with_one_pass_over_one_minibatch() -> None:
    shared = {"n_envs": 4, "n_steps": 16, "learning_rate": 3e-3, "gae_lambda": 1.0, "entropy_coef": 0.02}
    a2c = engine_of(A2CConfig(**shared))  # type: ignore[arg-type]
    ppo = engine_of(PPOConfig(**shared, epochs=1, minibatch=64, clip=0.2, normalise_advantages=False))  # type: ignore[arg-type]
    for _ in range(10):
        a2c.iterate(PhaseClock(), 0.0)
        # Before the first step of an update all ratios are 1, so that no finite clip can cut anything.
        ppo.iterate(PhaseClock(), 0.0)
    np.testing.assert_array_equal(a2c.policy.params, ppo.policy.params)
    assert a2c.adam_steps == ppo.adam_steps == 10


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_python_stepped_rollout_equals_the_fused_one(env_id: str) -> None:
    """The same native environment, once inside the kernel and once stepped from Python."""

    class Disguised(VectorEnv):
        """A vector environment that only Python can step, as far as the engine can tell."""

        def __init__(self, env: VecEnv) -> None:
            self._env, self.num_envs, self.spec, self.obs = env, env.num_envs, env.spec, env.obs

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return self._env.reset(seed=seed)

        def step(self, actions: Any) -> Any:
            return self._env.step(actions)

    config = PPOConfig(n_envs=3, n_steps=50, epochs=2, learning_rate=1e-3)
    engines = []
    for disguise in (False, True):
        _, policy, team = parts(env_id, 3)
        env = VecEnv(env_id, 3, max_steps=17)
        engines.append(PPO(config, Disguised(env) if disguise else env, policy, team, seed=4))
    for _ in range(3):
        fused, stepped = (engine.iterate(PhaseClock(), 0.0) for engine in engines)
        assert fused.episodes == stepped.episodes > 0
        assert fused.episode_return == pytest.approx(stepped.episode_return, rel=1e-4)
        for name in ("obs", "actions", "rewards", "terminated", "truncated", "values", "log_probs", "last_values"):
            one, other = (getattr(engine, name) for engine in engines)
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3, err_msg=name)
        cut = engines[0].truncated > 0
        np.testing.assert_allclose(*(engine.truncated_values[cut] for engine in engines), atol=1e-3)
    np.testing.assert_allclose(*(engine.policy.params for engine in engines), atol=1e-3)


def test_a_damaged_order_or_count_is_refused() -> None:
    engine = engine_of(PPOConfig(n_envs=2, n_steps=4))
    arrays = {name: array.copy() for name, array in engine.saved().arrays.items()}
    engine.restore(Saved(arrays, {"iterations": 3, "adam_steps": 7}))
    assert (engine.iterations, engine.adam_steps) == (3, 7)
    for counters in ({"iterations": -1, "adam_steps": 0}, {"iterations": 1}, {}):
        with pytest.raises(UsageError, match=r"^counters cannot be"):
            engine.restore(Saved(arrays, counters))
    arrays["order"][0] = 10**12
    with pytest.raises(UsageError, match="not a permutation"):
        engine.restore(Saved(arrays, {"iterations": 3, "adam_steps": 7}))


@env("TestOneBound-v0", state_size=1, action_low=(0.0, -np.inf), action_high=(np.inf, -1.0), max_steps=8)
class OneBound:
    """A reward that is no number for an action outside its only bound, which ends the training."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = 0.0

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> Any:
        return math.nan if action[0] < 0.0 or action[1] > -1.0 else 1.0, False


@pytest.mark.parametrize("algorithm", ["ppo", "rpo", "a2c"])
def test_actions_with_one_bound_keep_it(algorithm: str) -> None:
    with agent_class(algorithm)("TestOneBound-v0", seed=0) as agent:
        assert agent.learn(4096, ledger=False, eval_every=4096).evaluations[-1].evaluation.mean_return == 8.0
