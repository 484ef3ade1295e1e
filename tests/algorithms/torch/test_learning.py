"""Every algorithm learns what can be learned on the torch back end, with every kind of network and observation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mileage
import tiny_envs
from mileage.envs.gymnasium.bridge import GymnasiumEnv
from mileage.errors import CheckpointError, MissingExtraError, UnknownNameError, UsageError

pytest.importorskip("torch", reason="the torch extra is not installed")

import torch
from torch import nn

import torch_modules as modules

PPO = {"n_envs": 8, "n_steps": 16, "epochs": 10, "minibatch": 64, "learning_rate": 5e-3, "entropy_coef": 0.0}
FAST: dict[str, dict[str, Any]] = {
    "PPO": PPO,
    "A2C": {"n_envs": 8, "n_steps": 4, "learning_rate": 1e-2},
    "SAC": {"n_envs": 4, "batch": 64, "learning_starts": 200, "learning_rate": 3e-3, "hidden": (64,), "capacity": 4000},
    "TD3": {"n_envs": 4, "batch": 64, "learning_starts": 200, "learning_rate": 3e-3, "hidden": (64,), "capacity": 4000},
    "DQN": {
        "n_envs": 4, "batch": 64, "learning_starts": 200, "learning_rate": 5e-3, "hidden": (32,), "capacity": 4000,
        "target_every": 20, "train_every": 1,
    },
}  # fmt: skip


def agent_for(algorithm: str, env: Any, **changes: Any) -> Any:
    return getattr(mileage, algorithm)(
        env, backend="torch", preset="none", threads=1, **FAST[algorithm] | {"gamma": 0.0} | changes
    )


def learned(algorithm: str, env: Any, steps: int, **changes: Any) -> float:
    with agent_for(algorithm, env, **changes) as agent:
        agent.learn(steps, eval_every=10**9, panel=agent.default_panel(episodes=2))
        return float(agent.evaluate(agent.default_panel(episodes=20)).mean_return)


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "DQN"])
def test_discrete_identity(algorithm: str) -> None:
    # Eight steps of reward 1; chance gives 2.
    assert learned(algorithm, tiny_envs.Identity, 2048) >= 7.5


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "SAC", "TD3"])
def test_continuous_identity(algorithm: str) -> None:
    # Eight squared distances; doing nothing costs 8 * (4/3 + 1/12) = 11.3.
    steps = {"PPO": 4096, "A2C": 8192, "SAC": 2400, "TD3": 2400}[algorithm]
    changes = {"log_std_init": -1.0} if algorithm in ("PPO", "A2C") else {}
    assert learned(algorithm, tiny_envs.Mirror, steps, **changes) >= -2.0


def test_a_module_with_a_shared_trunk_learns() -> None:
    assert learned("PPO", tiny_envs.Identity, 2048, policy=modules.Plain(4, 4)) >= 7.5
    # Its deviations are added to a module that has none.
    module = modules.Plain(2, 2)
    assert learned("PPO", tiny_envs.Mirror, 4096, policy=module, log_std_init=-1.0) >= -2.0
    assert module.log_std.shape == (2,)  # type: ignore[union-attr]


def test_a_function_makes_the_module_from_the_environment() -> None:
    agent = agent_for("PPO", tiny_envs.Identity, policy=lambda spec: modules.Plain(spec.obs_size, spec.n_actions))
    assert isinstance(agent.policy.module, modules.Plain)


def test_pictures_are_learned_by_the_default_network() -> None:
    spec = GymnasiumEnv("picture", make=modules.ShownPicture)
    assert learned("PPO", spec, 1024, policy="cnn", learning_rate=1e-3) >= 7.5
    assert learned("DQN", spec, 1024, policy="CnnPolicy", learning_rate=1e-3) >= 7.0


def test_a2c_scales_rewards_where_actor_and_critic_share_convolutions() -> None:
    spec = GymnasiumEnv("picture", make=modules.ShownPicture)
    for changes, scaled in (
        ({"policy": "cnn"}, True),
        ({"policy": "cnn", "normalise_rewards": False}, False),
        ({}, False),
    ):
        config = mileage.A2C(spec if changes else tiny_envs.Identity, preset="none", **changes).config
        assert config.normalise_rewards == scaled


def test_dicts_are_learned() -> None:
    spec = GymnasiumEnv("dict", make=modules.ShownDict)
    assert learned("PPO", spec, 2048, policy=modules.DictNet(4)) >= 7.5
    assert learned("DQN", spec, 2048, policy=modules.DictQ(4)) >= 7.0
    assert learned("PPO", spec, 1024, policy="MultiInputPolicy", learning_rate=1e-3) >= 7.5


def test_a_memory_is_needed_and_used() -> None:
    spec = GymnasiumEnv("recall", make=modules.Recall)
    settings = {"gamma": 1.0, "n_steps": 12, "minibatch": 48, "learning_rate": 1e-2}
    # Chance gives one half, whatever is learned.
    assert learned("PPO", spec, 96 * 12, policy=modules.Remembering(2, 2), **settings) == 1.0
    with pytest.raises(UsageError, match=r"^dqn learns from single steps and cannot train a memory"):
        agent_for("DQN", spec, policy=modules.Remembering(2, 2))


def test_recurrent_gradients_are_those_of_the_whole_episode() -> None:
    """The loss of a rollout cut at the ends of episodes, against running every episode from its start."""
    spec = GymnasiumEnv("recall", make=modules.Recall)
    agent = agent_for(
        "PPO", spec, policy=modules.Remembering(2, 2), n_steps=7, n_envs=3, epochs=1, minibatch=21, learning_rate=1e-3
    )
    agent.prepare()
    engine = agent.learner
    from mileage.measure import PhaseClock

    engine.iterate(PhaseClock(), 0.0)
    before = engine._memory
    engine._collect(PhaseClock())
    index = torch.arange(7)[:, None] * 3 + torch.tensor([2, 0])
    heads, _ = engine._run(index)
    done = (engine.terminated | engine.truncated).reshape(7, 3).astype(bool)
    module = agent.policy.module
    for place, column in enumerate((2, 0)):
        state = tuple(part[column : column + 1] for part in before)
        for t in range(7):
            obs = torch.from_numpy(engine.obs.reshape(7, 3, 2)[t, column : column + 1])
            head, _, state = module(obs, state)
            torch.testing.assert_close(heads.reshape(7, 2, 2)[t, place], head[0])
            if done[t, column]:
                state = module.initial_state(1)


def test_the_seed_decides_everything() -> None:
    def params(seed: int, algorithm: str, env: Any, **changes: Any) -> bytes:
        with agent_for(algorithm, env, seed=seed, **changes) as agent:
            agent.learn(400, panel=agent.default_panel(episodes=1), eval_every=10**9)
            return bytes(agent.policy.params.tobytes())

    spec = GymnasiumEnv("picture", make=modules.ShownPicture)
    for case in (("PPO", tiny_envs.Mirror, {}), ("SAC", tiny_envs.Mirror, {}), ("PPO", spec, {"policy": "cnn"})):
        first, again, other = (params(seed, case[0], case[1], **case[2]) for seed in (3, 3, 4))
        assert first == again != other


def test_pieces_of_a_minibatch_add_up_on_any_number_of_threads() -> None:
    """A network large enough to be cut into pieces, with one thread, with two, and in one piece."""
    results = []
    for threads, pieces in ((1, 2), (2, 2), (3, 2), (1, 1)):
        settings = PPO | {"hidden": (512, 512), "minibatch": 256, "n_steps": 32, "epochs": 2, "learning_rate": 1e-4}
        agent = mileage.PPO("CartPole-v1", backend="torch", preset="none", threads=threads, **settings)
        agent.prepare()
        assert agent.learner.pieces == 2
        agent.learner.pieces = pieces
        agent.learn(256, panel=agent.default_panel(episodes=1))
        results.append(agent.policy.params)
        agent.close()
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])
    np.testing.assert_allclose(results[3], results[0], atol=1e-5)


CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "ppo": ("PPO", tiny_envs.Mirror, {"normalise_observations": True}),
    "recurrent": ("PPO", tiny_envs.Identity, {}),
    "sac": ("SAC", tiny_envs.Mirror, {}),
    "td3": ("TD3", tiny_envs.Mirror, {}),
    "dqn": ("DQN", tiny_envs.Identity, {"prioritised": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_training_goes_on_after_loading_as_if_nothing_had_happened(case: str, tmp_path: Path) -> None:
    algorithm, env, changes = CASES[case]
    make = (lambda: {"policy": modules.Remembering(4, 4)}) if case == "recurrent" else dict
    torch.manual_seed(0)
    file = tmp_path / "half.safetensors"
    with agent_for(algorithm, env, **changes, **make()) as agent:
        agent.learn(512, panel=agent.default_panel(episodes=1), eval_every=10**9)
        agent.save(file)
        state = agent.predict(np.eye(4, dtype=np.float32)[0] if env is tiny_envs.Identity else np.zeros(2, np.float32))
        agent.learn(256, panel=agent.default_panel(episodes=1), eval_every=10**9)
        want = agent.policy.params
    with getattr(mileage, algorithm).load(file, threads=1, env=env, **make()) as agent:
        assert agent.backend == "torch"
        assert agent.steps == 512
        again = agent.predict(np.eye(4, dtype=np.float32)[0] if env is tiny_envs.Identity else np.zeros(2, np.float32))
        np.testing.assert_array_equal(again[0], state[0])
        agent.learn(256, panel=agent.default_panel(episodes=1), eval_every=10**9)
        np.testing.assert_array_equal(agent.policy.params, want)


def test_a_users_module_must_be_given_to_load(tmp_path: Path) -> None:
    file = tmp_path / "own.safetensors"
    with agent_for("PPO", tiny_envs.Identity, policy=modules.Plain(4, 4)) as agent:
        agent.save(file)
    with pytest.raises(CheckpointError, match="give the module as policy"):
        mileage.PPO.load(file)
    with pytest.raises(CheckpointError, match=r"does not fit: array 'module\."):
        mileage.PPO.load(file, policy=modules.Plain(4, 5).trunk, env=tiny_envs.Identity)


def test_compilation_is_a_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    agent = agent_for("PPO", tiny_envs.Identity, compile="default", hidden=(8,), epochs=1)
    plain = agent_for("PPO", tiny_envs.Identity, hidden=(8,), epochs=1)
    # The back end of torch.compile that compiles nothing: this is about the phase, not about a C++ compiler.
    monkeypatch.setattr(torch, "compile", lambda module, mode: _compile_eagerly(module))
    record = agent.learn(128, panel=agent.default_panel(episodes=1))
    plain.learn(128, panel=plain.default_panel(episodes=1))
    np.testing.assert_allclose(agent.policy.params, plain.policy.params, atol=1e-6)
    assert record.phases["compile"] > 0.0


_compile = torch.compile


def _compile_eagerly(module: nn.Module) -> Any:
    return _compile(module, backend="eager")


def test_threads_of_torch_are_restored() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with agent_for("PPO", tiny_envs.Identity) as agent:
            agent.learn(128, panel=agent.default_panel(episodes=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_global_randomness_is_left_alone() -> None:
    torch.manual_seed(7)
    want = torch.rand(1)
    torch.manual_seed(7)
    with agent_for("PPO", GymnasiumEnv("picture", make=modules.ShownPicture), policy="cnn") as agent:
        agent.learn(128, panel=agent.default_panel(episodes=1))
    assert torch.rand(1) == want


def test_bad_requests_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown backend 'tensorflow'"):
        mileage.PPO("CartPole-v1", backend="tensorflow")
    with pytest.raises(UsageError, match=r"^policy, device and compile are for torch: use backend='torch'$"):
        mileage.PPO("CartPole-v1", backend="native", policy="cnn")
    with pytest.raises(UnknownNameError, match=r"unknown policy 'rnn'"):
        mileage.PPO("CartPole-v1", policy="rnn")
    with pytest.raises(UsageError, match=r"^device 'nowhere' cannot be used here"):
        mileage.PPO("CartPole-v1", backend="torch", device="nowhere")
    with pytest.raises(UsageError, match=r"^compile must be true, false or one of default, "):
        mileage.PPO("CartPole-v1", backend="torch", compile="fastest")
    with pytest.raises(UsageError, match=r"^policy must be 'mlp', 'cnn' or a torch.nn.Module, not 3$"):
        mileage.PPO("CartPole-v1", policy=3)
    with pytest.raises(UsageError, match=r"^policy of sac must have the parts actor\(obs\) and critic\(obs, action\)$"):
        mileage.SAC("Pendulum-v1", policy=nn.Linear(3, 2))
    with pytest.raises(UsageError, match=r"^policy must return \(head, value\)"):
        agent_for("PPO", tiny_envs.Identity, policy=nn.Linear(4, 4)).prepare()
    with pytest.raises(UsageError, match=r"^policy must return a head of shape \(N, 4\), not \(1, 5\)$"):
        agent_for("PPO", tiny_envs.Identity, policy=modules.Plain(4, 5)).prepare()
    spec = GymnasiumEnv("picture", make=modules.ShownPicture)
    with pytest.raises(UsageError, match=r"^normalise_observations is for observations that are vectors"):
        agent_for("PPO", spec, policy="cnn", normalise_observations=True).prepare()


def test_a_missing_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"^the torch back end needs an extra: .*pip install .*\[torch\]'$"):
        mileage.PPO("CartPole-v1", backend="torch")
