"""Held-out evaluation against the same episodes played one by one in Python."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest

import broken_envs
import mileage
import tiny_envs
from mileage.envs import VecEnv, resolve
from mileage.envs.gymnasium.bridge import GymnasiumEnv
from mileage.errors import UsageError
from mileage.kernels.machine.team import Team
from mileage.kernels.random import streams
from mileage.kernels.reference.networks import Stream
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation
from mileage.policies import ActorCritic
from mileage.training.evaluation import make_evaluator


def policy_for(spec: Any, seed: int = 0) -> ActorCritic:
    policy = ActorCritic(spec.obs_size, spec.n_actions, spec.action_low, spec.action_high, hidden=(8,), seed=seed)
    policy.params[:] += np.random.default_rng(seed).normal(scale=0.5, size=policy.params.shape).astype(np.float32)
    policy.obs_mean[:] = 0.05
    policy.obs_scale[:] = 1.25
    policy.obs_limit = 3.0
    return policy


def evaluate(policy: ActorCritic, spec: Any, panel: Panel, threads: int = 1) -> Evaluation:
    team = Team(threads)
    try:
        return make_evaluator(policy, spec, panel, team)()
    finally:
        team.close()


def sampled(policy: ActorCritic, obs: Any, stream: Stream) -> Any:
    head = policy.head(obs)[0].astype(np.float64)
    if policy.n_actions:
        cumulative = np.cumsum(np.exp(head - np.logaddexp.reduce(head)))
        return np.array([int((stream.uniform01() >= cumulative[:-1]).sum())])
    noise = np.array([stream.normal() for _ in head])
    action = head + noise * np.exp(policy.params[policy.log_std_offset :].astype(np.float64))
    return policy.to_env(action.astype(np.float32)[None])


def episode(policy: ActorCritic, spec: Any, seed: int, limit: int, deterministic: bool) -> tuple[float, int]:
    env = VecEnv(spec, 1, max_steps=limit)
    obs, _ = env.reset(seed=[seed])
    stream = Stream(streams(seed, 1, "panel action")[0])
    total, steps = 0.0, 0
    while True:
        action = policy.actions(obs) if deterministic else sampled(policy, obs, stream)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward[0])
        steps += 1
        if terminated[0] or truncated[0]:
            return total, steps


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", tiny_envs.Identity.id, tiny_envs.Mirror.id])
def test_a_panel_is_its_episodes_one_by_one(env_id: str, deterministic: bool) -> None:
    spec = VecEnv(env_id, 1).spec
    policy = policy_for(spec)
    panel = Panel.default(env_id, 9, deterministic=deterministic, max_episode_steps=40)
    result = evaluate(policy, spec, panel)
    want = [episode(policy, spec, seed, 40, deterministic) for seed in panel.seeds]
    assert result.seeds.tolist() == list(panel.seeds)
    assert result.lengths.tolist() == [steps for _, steps in want]
    np.testing.assert_allclose(result.returns, [total for total, _ in want], rtol=1e-3, atol=1e-3)
    if env_id == "CartPole-v1":
        assert len(set(result.lengths.tolist())) > 1


@pytest.mark.parametrize("deterministic", [True, False])
def test_threads_and_repetition_do_not_change_a_bit(deterministic: bool) -> None:
    spec = VecEnv("CartPole-v1", 1).spec
    policy, panel = policy_for(spec), Panel.default("CartPole-v1", 50, deterministic=deterministic)
    results = [evaluate(policy, spec, panel, threads) for threads in (1, 2, 3)]
    evaluator = make_evaluator(policy, spec, panel, Team(1))
    results += [evaluator(), evaluator()]
    assert len({result.returns.tobytes() + result.lengths.tobytes() for result in results}) == 1


def test_an_episode_does_not_depend_on_its_panel() -> None:
    spec = VecEnv("CartPole-v1", 1).spec
    policy, panel = policy_for(spec), Panel.default("CartPole-v1", 40, deterministic=False)
    some = dataclasses.replace(panel, seeds=panel.seeds[33:30:-1])
    whole = evaluate(policy, spec, panel)
    assert evaluate(policy, spec, some).returns.tolist() == whole.returns[33:30:-1].tolist()


def test_an_evaluator_sees_the_policy_as_it_is() -> None:
    spec = VecEnv("CartPole-v1", 1).spec
    policy, panel = policy_for(spec), Panel.default("CartPole-v1", 20)
    evaluator = make_evaluator(policy, spec, panel, Team(1))
    before = evaluator().returns.copy()
    policy.params[:] = policy_for(spec, seed=1).params
    policy.obs_limit = 0.1
    after = evaluator().returns
    assert before.tolist() != after.tolist()
    assert after.tolist() == evaluate(policy, spec, panel).returns.tolist()


def climber(action: int) -> ActorCritic:
    """A policy that always takes one action on the stairs."""
    policy = policy_for(tiny_envs.Stairs)
    policy.params[:] = 0.0
    policy.named()["actor.1.bias"][action] = 1.0
    return policy


@pytest.mark.parametrize(("action", "terminated"), [(1, True), (0, False)])
def test_an_episode_that_terminates_on_its_last_step_is_not_truncated(action: int, terminated: bool) -> None:
    for success in ("terminated", "truncated"):
        panel = Panel.default(tiny_envs.Stairs.id, 3, success=success)
        result = evaluate(climber(action), tiny_envs.Stairs, panel)
        assert result.lengths.tolist() == [5, 5, 5]
        assert result.success_rate == float(terminated == (success == "terminated"))


def test_success_by_return_and_length() -> None:
    panel = Panel.default(tiny_envs.Stairs.id, 2, success="return>=5")
    assert evaluate(climber(1), tiny_envs.Stairs, panel).success_rate == 1.0
    assert evaluate(climber(0), tiny_envs.Stairs, panel).success_rate == 0.0


def test_endless_episodes_need_a_limit() -> None:
    policy = policy_for(tiny_envs.Spike)
    with pytest.raises(UsageError, match=r"^a panel on TestSpike-v0 needs max_episode_steps"):
        evaluate(policy, tiny_envs.Spike, Panel.default(tiny_envs.Spike.id, 2))
    limited = evaluate(policy, tiny_envs.Spike, Panel.default(tiny_envs.Spike.id, 2, max_episode_steps=7))
    assert limited.returns.tolist() == [7.0, 7.0]


def test_an_unknown_perturbation_is_refused() -> None:
    panel = dataclasses.replace(Panel.default("CartPole-v1", 2), perturbations=("wind",))
    spec = VecEnv("CartPole-v1", 1).spec
    with pytest.raises(UsageError, match="panel perturbation 'wind' is not known"):
        evaluate(policy_for(spec), spec, panel)


def test_training_cannot_meet_its_exam() -> None:
    panel = Panel.default("CartPole-v1")
    for seed in panel.seeds[:3]:
        with pytest.raises(UsageError, match="reserved for held-out panels"):
            mileage.PPO("CartPole-v1", seed=seed)
    # Neither seeds nor what streams are made of them are shared.
    trained = {int(key) for seed in range(50) for key in streams(seed, 64, "env")[:, 0]}
    held_out = {int(streams(seed, 1, "env")[0, 0]) for seed in panel.seeds}
    assert not trained & held_out


def test_a_gymnasium_panel_is_its_episodes_one_by_one() -> None:
    spec = resolve("CartPole-v1", sutton_barto_reward=False)
    assert isinstance(spec, GymnasiumEnv)
    policy, panel = policy_for(spec), Panel.default("CartPole-v1", 6)
    result = evaluate(policy, spec, panel)
    env = gymnasium.make("CartPole-v1")
    for i, seed in enumerate(panel.seeds):
        obs, _ = env.reset(seed=seed)
        steps, done = 0, False
        while not done:
            obs, _, terminated, truncated, _ = env.step(policy.actions(obs[None])[0])
            done = terminated or truncated
            steps += 1
        assert (result.lengths[i], result.returns[i]) == (steps, float(steps))
    sampling = dataclasses.replace(panel, deterministic=False)
    assert evaluate(policy, spec, sampling).lengths.tolist() == evaluate(policy, spec, sampling).lengths.tolist()
    limited = evaluate(policy, spec, dataclasses.replace(panel, max_episode_steps=5, success="truncated"))
    assert limited.lengths.tolist() == [5] * 6
    assert limited.success_rate == 1.0


class Reports(gymnasium.Env[Any, Any]):
    """Ends after as many steps as its seed says, from 1 to 4, and reports success if that was an even number."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length, self.steps = (seed or 0) % 4 + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        ended = self.steps >= self.length
        return np.zeros(1, np.float32), 1.0, ended, False, {"is_success": ended and self.length % 2 == 0}


def test_success_as_a_gymnasium_environment_reports_it() -> None:
    spec = GymnasiumEnv("reports", make=Reports)
    panel = Panel.default("reports", 20, success="info:is_success")
    result = evaluate(policy_for(spec), spec, panel)
    lengths = [seed % 4 + 1 for seed in panel.seeds]
    assert result.lengths.tolist() == lengths
    assert result.successes is not None
    assert result.successes.tolist() == [length % 2 == 0 for length in lengths]


class Skewed(gymnasium.Env[Any, Any]):
    """Episodes of 1 to 60 steps by their seed, most of them short."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    stepped = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 60 if self.np_random.random() < 0.1 else int(self.np_random.integers(1, 6))
        return np.full(1, self.left, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.left > 0, "stepped after its end"
        Skewed.stepped += 1
        self.left -= 1
        return np.full(1, self.left, np.float32), 1.0 + action, self.left == 0, False, {}


@pytest.mark.parametrize("deterministic", [True, False])
def test_only_what_still_plays_is_stepped(deterministic: bool) -> None:
    spec = GymnasiumEnv("skewed", make=Skewed)
    policy = policy_for(spec)
    panel = Panel.default("skewed", 80, deterministic=deterministic, max_episode_steps=50)
    Skewed.stepped = 0
    result = evaluate(policy, spec, panel)
    assert Skewed.stepped == result.lengths.sum()
    assert result.lengths.max() == 50
    if deterministic:
        for i in range(0, 80, 7):
            alone = evaluate(policy, spec, dataclasses.replace(panel, seeds=panel.seeds[i : i + 1]))
            assert (alone.returns[0], alone.lengths[0]) == (result.returns[i], result.lengths[i])


def test_a_native_environment_without_a_time_limit_gets_one_and_it_is_said() -> None:
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        return 1.0, False

    agent = mileage.PPO(broken_envs.make("Unending", step=step, max_steps=0), threads=1, hidden=(4,))
    with pytest.warns(UserWarning, match=r"^environment 'Unending' has no time limit: 2 of 2 held-out episodes"):
        assert agent.evaluate(agent.default_panel(episodes=2)).lengths.max() == 1000


def test_an_environment_without_a_time_limit_gets_one_and_it_is_said() -> None:
    agent = mileage.PPO("CliffWalking-v1", preset="none", threads=1, hidden=(4,))
    panel = agent.default_panel(episodes=2)
    assert panel.max_episode_steps == 1000
    with pytest.warns(UserWarning, match=r"^environment 'CliffWalking-v1' has no time limit: 2 of 2 held-out episodes"):
        assert agent.evaluate(panel).lengths.max() == 1000
