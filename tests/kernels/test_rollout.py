"""The fused collector and evaluator against the same thing done step by step in Python."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import tiny_envs
from mileage.algorithms.ppo import PPO, PPOConfig
from mileage.envs import VecEnv
from mileage.kernels import rollout
from mileage.kernels.machine.team import Team
from mileage.kernels.random import streams
from mileage.kernels.reference.networks import Stream, categorical, gaussian, parts
from mileage.measure import PhaseClock
from mileage.policies import ActorCritic

T = 40


def config(env: VecEnv, **changes: Any) -> PPOConfig:
    usual: dict[str, Any] = {"n_steps": T, "epochs": 1, "minibatch": 64, "learning_rate": 1e-3}
    return PPOConfig(n_envs=env.num_envs, **usual | changes)


def make_policy(env: VecEnv, seed: int = 5) -> ActorCritic:
    spec = env.spec
    policy = ActorCritic(
        spec.obs_size, spec.n_actions, spec.action_low, spec.action_high, hidden=(16, 8), seed=seed,
        branches=spec.branches, masked=spec.masked,
    )  # fmt: skip
    # The usual actor starts out nearly uniform; one that cares tests more.
    policy.params[:] += np.random.default_rng(seed).normal(scale=0.3, size=policy.params.shape).astype(np.float32)
    policy.obs_mean[:] = 0.1
    policy.obs_scale[:] = 1.5
    policy.obs_limit = 2.0
    return policy


def collect(env: VecEnv, threads: int = 1, iterations: int = 1, **changes: Any) -> tuple[PPO, ActorCritic]:
    """The engine after some rollouts, and the policy that the last of them was collected with."""
    team = Team(threads)
    engine = PPO(config(env, **changes), env, make_policy(env), team, seed=9)
    for _ in range(iterations):
        before = copy.deepcopy(engine.policy)
        stats = engine.iterate(PhaseClock(), 0.0)
    team.close()
    engine.last_stats = stats  # type: ignore[attr-defined]
    return engine, before


def normalised(policy: ActorCritic, obs: Any) -> Any:
    return np.clip((obs - policy.obs_mean) * policy.obs_scale, -policy.obs_limit, policy.obs_limit)


def log_probs_of(policy: ActorCritic, obs: Any, actions: Any, masks: Any) -> Any:
    head = policy.head(obs)
    if policy.structured_actions:
        return parts(head, policy.branches, policy.log_std, masks, actions)[0]
    if policy.n_actions:
        return categorical(head, actions[:, 0])[0]
    return gaussian(head, policy.params[policy.log_std_offset :], actions)[0]


def sampled(policy: ActorCritic, obs: Any, rng: list[Stream], masks: Any) -> Any:
    """The actions that the streams draw."""
    head = policy.head(obs).astype(np.float64)
    if policy.structured_actions:
        return np.stack([sampled_parts(policy, *row) for row in zip(head, rng, masks, strict=True)])
    if not policy.n_actions:
        deviation = np.exp(policy.params[policy.log_std_offset :].astype(np.float64))
        noise = np.array([[stream.normal() for _ in range(policy.action_size)] for stream in rng])
        return head + deviation * noise
    cumulative = np.cumsum(np.exp(head - np.logaddexp.reduce(head, axis=1, keepdims=True)), axis=1)
    draws = np.array([[stream.uniform01()] for stream in rng])
    return (draws >= cumulative[:, :-1]).sum(axis=1, keepdims=True)


def sampled_parts(policy: ActorCritic, head: Any, stream: Stream, mask: Any) -> Any:
    """One action: every choice among what is possible, then the numbers."""
    action, start = [], 0
    for n in policy.branches:
        allowed = np.flatnonzero(mask[start : start + n])
        weights = np.exp(head[start : start + n][allowed])
        cumulative = np.cumsum(weights / weights.sum())
        action.append(float(allowed[(stream.uniform01() >= cumulative[:-1]).sum()]))
        start += n
    return [*action, *(head[start + k] + np.exp(each) * stream.normal() for k, each in enumerate(policy.log_std))]


SPECS = [
    *("CartPole-v1", "Pendulum-v1"),
    *(each.id for each in (tiny_envs.Identity, tiny_envs.Mirror, tiny_envs.Doors, tiny_envs.Panel)),
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n_envs", [1, 5, 9])
def test_rollout_equals_steps_in_python(spec: Any, n_envs: int) -> None:
    spec = VecEnv(spec, 1).spec
    engine, policy = collect(VecEnv(spec, n_envs, max_steps=13))
    env = VecEnv(spec, n_envs, max_steps=13)
    obs, _ = env.reset(seed=9)
    rng = [Stream(row) for row in streams(9, n_envs, "action")]
    shape = (T, n_envs)
    returns, lengths, ended = np.zeros(n_envs), np.zeros(n_envs), []
    for t in range(T):
        rows = slice(t * n_envs, (t + 1) * n_envs)
        actions = engine.actions[rows]
        np.testing.assert_allclose(engine.obs[rows], normalised(policy, obs), atol=1e-4)
        np.testing.assert_allclose(engine.values[rows], policy.values(obs), atol=1e-4)
        masks = np.ones((n_envs, sum(policy.branches)), np.uint8) if env.masks is None else env.masks.copy()
        if policy.structured_actions:
            np.testing.assert_array_equal(engine.masks[rows], masks)
        np.testing.assert_allclose(engine.log_probs[rows], log_probs_of(policy, obs, actions, masks), atol=2e-4)
        np.testing.assert_allclose(actions, sampled(policy, obs, rng, masks), atol=1e-4)
        taken = actions[:, 0].astype(np.int64) if policy.n_actions else policy.to_env(actions)
        obs, reward, terminated, truncated, infos = env.step(taken)
        np.testing.assert_allclose(engine.rewards.reshape(shape)[t], reward, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(engine.terminated.reshape(shape)[t], terminated)
        np.testing.assert_array_equal(engine.truncated.reshape(shape)[t], truncated)
        if truncated.any():
            values = policy.values(infos["final_obs"])[truncated]
            np.testing.assert_allclose(engine.truncated_values.reshape(shape)[t][truncated], values, atol=1e-4)
        returns += reward
        lengths += 1
        for i in np.flatnonzero(terminated | truncated):
            ended.append((returns[i], lengths[i]))
            returns[i] = lengths[i] = 0.0
    np.testing.assert_allclose(engine.last_values, policy.values(obs), atol=1e-4)
    np.testing.assert_allclose(engine.episode, np.stack([returns, lengths], axis=1), rtol=1e-4, atol=1e-4)
    stats = engine.last_stats  # type: ignore[attr-defined]
    assert stats.episodes == len(ended) >= 3 * n_envs
    assert stats.episode_return == pytest.approx(np.mean(ended, axis=0)[0], rel=1e-4)
    assert stats.episode_length == pytest.approx(np.mean(ended, axis=0)[1])


@pytest.mark.parametrize("n_envs", [1, 4, 7, 40, 130])
def test_threads_do_not_change_a_bit(n_envs: int) -> None:
    results = []
    for threads in (1, 2, 3):
        engine, _ = collect(VecEnv("CartPole-v1", n_envs), threads, iterations=2, minibatch=300, epochs=2)
        results.append([array.tobytes() for array in (*engine.state_arrays().values(), engine.rewards, engine.values)])
    assert results[0] == results[1] == results[2]


def test_a_rollout_goes_on_where_the_last_one_ended() -> None:
    long, _ = collect(VecEnv("CartPole-v1", 3), n_steps=2 * T)
    env = VecEnv("CartPole-v1", 3)
    policy = make_policy(env)
    engine = PPO(config(env), env, policy, Team(1), seed=9)
    start = policy.params.copy()
    engine.iterate(PhaseClock(), 0.0)
    policy.params[:] = start
    engine.iterate(PhaseClock(), 0.0)
    np.testing.assert_array_equal(engine.rewards, long.rewards[3 * T :])
    np.testing.assert_array_equal(engine.obs, long.obs[3 * T :])


def test_blocks_depend_on_the_number_of_environments_alone() -> None:
    sizes = [rollout.block_size(n) for n in (1, 8, 16, 17, 64, 100, 128, 1000)]
    assert sizes == [4, 4, 4, 8, 16, 28, 32, 32]


def test_raw_observations_are_kept_where_they_are_needed() -> None:
    # Raw observations are kept apart only where statistics are made of them.
    plain, _ = collect(VecEnv("CartPole-v1", 2))
    assert plain.raw_obs is plain.obs
    engine, policy = collect(VecEnv("CartPole-v1", 2), normalise_observations=True)
    np.testing.assert_allclose(normalised(policy, engine.raw_obs), engine.obs, rtol=1e-6)
