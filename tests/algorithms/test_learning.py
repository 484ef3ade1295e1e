"""PPO and A2C learn what can be learned, and the same thing every time."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import mileage
import tiny_envs
from mileage.envs.gymnasium.bridge import GymnasiumEnv

FAST: dict[str, dict[str, Any]] = {
    "PPO": {"n_envs": 8, "n_steps": 16, "epochs": 10, "minibatch": 64, "learning_rate": 5e-3, "entropy_coef": 0.0},
    "A2C": {"n_envs": 8, "n_steps": 4, "learning_rate": 1e-2},
}


def learned(algorithm: str, env: Any, steps: int, **changes: Any) -> float:
    with getattr(mileage, algorithm)(env, preset="none", **FAST[algorithm] | changes) as agent:
        agent.learn(steps, eval_every=10**9)
        return float(agent.evaluate().mean_return)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_discrete_identity(algorithm: str, seed: int) -> None:
    # Eight steps of reward 1; chance gives 2.
    assert learned(algorithm, tiny_envs.Identity, 2048, gamma=0.0, seed=seed) >= 7.5


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_continuous_identity(algorithm: str, seed: int) -> None:
    # Eight squared distances; doing nothing costs 8 * (4/3 + 1/12) = 11.3.
    steps = 4096 if algorithm == "PPO" else 8192
    assert learned(algorithm, tiny_envs.Mirror, steps, gamma=0.0, seed=seed, log_std_init=-1.0) >= -2.0


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_masked_doors(algorithm: str, backend: str) -> None:
    # Eight steps of reward 1; chance among the open doors gives 2.7, and a locked one costs 100.
    pytest.importorskip("torch") if backend == "torch" else None
    assert learned(algorithm, tiny_envs.Doors, 2048, gamma=0.0, backend=backend) >= 7.5


def test_impala_and_dqn_learn_among_what_is_possible() -> None:
    with mileage.IMPALA(tiny_envs.Doors, preset="none", gamma=0.0, learning_rate=1e-2, mode="lockstep") as agent:
        agent.learn(8192, eval_every=10**9)
        assert agent.evaluate().mean_return >= 7.5
    with mileage.DQN(tiny_envs.Doors, preset="none", gamma=0.0, learning_rate=5e-3, learning_starts=100) as agent:
        agent.learn(3000, eval_every=10**9)
        assert agent.evaluate().mean_return >= 7.5


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_an_action_of_several_parts(backend: str) -> None:
    # Eight steps of at most 3: lever, switch and dial; chance and a dial at rest give 8 * (1/3 + 1/2 + 2/3) = 12.
    pytest.importorskip("torch") if backend == "torch" else None
    assert learned("PPO", tiny_envs.Panel, 8192, gamma=0.0, log_std_init=-1.0, backend=backend) >= 21.0


@pytest.mark.parametrize("seed", [0, 1])
def test_ppo_solves_cartpole_with_its_preset(seed: int) -> None:
    with mileage.PPO("CartPole-v1", seed=seed) as agent:
        run = agent.learn(target="mean_return>=475")
    assert run.reached
    assert run.final is not None
    assert run.final.mean_return >= 475.0
    assert run.steps_to_target == run.steps <= 200_000


def test_a2c_gets_better_at_cartpole() -> None:
    assert learned("A2C", "CartPole-v1", 40_000, n_envs=16, n_steps=8, learning_rate=2e-3) >= 150.0


class Shown(gymnasium.Env[Any, Any]):
    """Discrete identity as any Gymnasium environment, with actions that start at 1."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(3, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.shown = int(self.np_random.integers(3))
        return self.shown, {}

    def step(self, action: Any) -> Any:
        reward = float(action == self.shown + 1)
        self.steps += 1
        self.shown = int(self.np_random.integers(3))
        return self.shown, reward, False, self.steps >= 8, {}


def test_a_gymnasium_environment_is_learned_too() -> None:
    spec = GymnasiumEnv("shown", make=Shown)
    assert learned("PPO", spec, 2048, gamma=0.0) >= 7.5


def test_a_registered_gymnasium_environment_runs() -> None:
    with mileage.PPO("FrozenLake-v1", env_kwargs={"is_slippery": False}, n_envs=4, n_steps=32, seed=0) as agent:
        run = agent.learn(256, panel=agent.default_panel(episodes=5))
        assert run.steps == 256
        assert run.phases["env_step"] > 0.0
        assert "rollout" not in run.phases
        assert run.final is not None
        assert len(run.final) == 5


def params_after(iterations: int, **changes: Any) -> bytes:
    usual: dict[str, Any] = {"preset": "none", "n_envs": 6, "n_steps": 32, "minibatch": 150, "threads": 1}
    env = changes.pop("env", "CartPole-v1")
    with mileage.PPO(env, **usual | changes) as agent:
        steps = agent.config.n_envs * agent.config.n_steps
        agent.learn(iterations * steps, panel=agent.default_panel(episodes=2))
        return bytes(agent.policy.params.tobytes())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_envs": 1, "n_steps": 300, "minibatch": 300},
        {"n_envs": 33, "n_steps": 16, "minibatch": 512},
        {"env": "Pendulum-v1", "normalise_observations": True, "normalise_rewards": True},
        {"env": tiny_envs.Mirror, "hidden": (33,), "activation": "relu", "target_kl": 0.01, "value_clip": 0.2},
    ],
    ids=str,
)
def test_threads_do_not_change_a_bit(changes: dict[str, Any]) -> None:
    results = {params_after(5, threads=threads, **changes) for threads in (1, 2, 3)}
    assert len(results) == 1


@pytest.mark.parametrize("changes", [{}, {"env": "Pendulum-v1"}, {"env": "FrozenLake-v1"}], ids=str)
def test_the_seed_decides_everything(changes: dict[str, Any]) -> None:
    first, again, other = (params_after(3, seed=seed, **changes) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a2c_is_the_same_on_any_number_of_threads() -> None:
    assert len({a2c_params(threads) for threads in (1, 2, 3)}) == 1


def a2c_params(threads: int) -> bytes:
    with mileage.A2C("CartPole-v1", n_envs=40, n_steps=8, threads=threads) as agent:
        agent.learn(8 * 320, panel=agent.default_panel(episodes=2))
        return bytes(np.asarray(agent.policy.params).tobytes())
