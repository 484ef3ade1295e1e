"""The objects users hold: learning, resuming, predicting, recording."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mileage
import tiny_envs
from mileage.errors import CheckpointError, UnknownNameError, UsageError
from mileage.training.agents import agent_class
from mileage.training.runner import RunProgress

SMALL: dict[str, Any] = {"preset": "none", "n_envs": 4, "n_steps": 16, "minibatch": 32, "epochs": 2, "hidden": (8, 8)}
BATCH = 64


def small(env: Any = "CartPole-v1", **changes: Any) -> mileage.PPO:
    return mileage.PPO(env, **SMALL | changes)


def state(agent: Any) -> dict[str, bytes]:
    """Everything that decides how training goes on."""
    saved = agent.learner.saved()
    return {name: array.tobytes() for name, array in saved.arrays.items()} | {
        "counters": repr(saved.counters).encode(),
        "steps": str(agent.steps).encode(),
    }


def stop_after(steps: int) -> Any:
    return lambda progress: progress.steps < steps


VARIANTS: list[dict[str, Any]] = [
    {},
    {"env": "Pendulum-v1", "normalise_observations": True, "normalise_rewards": True},
    {"learning_rate_schedule": "linear", "clip_schedule": "linear"},
    {"env": tiny_envs.Mirror, "normalise_observations": True, "learning_rate_schedule": "linear", "value_clip": 0.2},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_resuming_continues_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = dict(changes)
    env = changes.pop("env", "CartPole-v1")
    panel = small(env, **changes).default_panel(episodes=2)
    path = tmp_path / "x.safetensors"
    with small(env, **changes, threads=2) as whole:
        whole.learn(10 * BATCH, panel=panel)
        want = state(whole)
    with small(env, **changes, threads=1) as half:
        half.learn(10 * BATCH, panel=panel, callback=stop_after(5 * BATCH), checkpoint=path)
    with mileage.load(path) as resumed:
        assert resumed.steps == 5 * BATCH
        run = resumed.learn(panel=panel)
        assert state(resumed) == want
    assert (run.steps, run.steps_before) == (10 * BATCH, 5 * BATCH)


def test_closing_does_not_lose_anything(tmp_path: Path) -> None:
    panel = small().default_panel(episodes=2)
    with small() as whole:
        whole.learn(6 * BATCH, panel=panel)
        want = state(whole)
    agent = small()
    agent.learn(3 * BATCH, panel=panel)
    agent.close()
    assert agent.steps == 3 * BATCH
    agent.save(tmp_path / "x")
    agent.close()
    agent.learn(3 * BATCH, panel=panel)
    assert state(agent) == want
    agent.close()
    with mileage.load(tmp_path / "x") as loaded:
        loaded.learn(3 * BATCH, panel=panel)
        assert state(loaded) == want


def test_learning_twice_is_learning_longer() -> None:
    panel = small().default_panel(episodes=2)
    with small() as twice, small() as once:
        twice.learn(2 * BATCH, panel=panel)
        twice.learn(3 * BATCH, panel=panel)
        once.learn(5 * BATCH, panel=panel)
        assert state(twice) == state(once)


def test_a_callback_can_save_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "x"
    panel = small().default_panel(episodes=2)
    with small() as agent:

        def save(progress: RunProgress) -> None:
            if progress.steps == 2 * BATCH:
                agent.save(path)

        agent.learn(4 * BATCH, panel=panel, callback=[save])
        want = state(agent)
    with mileage.load(path) as loaded:
        assert loaded.steps == 2 * BATCH
        loaded.learn(panel=panel)
        assert state(loaded) == want


def test_an_interrupt_saves_what_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    panel = small().default_panel(episodes=2)
    with small() as whole:
        whole.learn(6 * BATCH, panel=panel)
        want = state(whole)
    with small() as agent:

        def press(progress: RunProgress) -> None:
            if progress.steps == 2 * BATCH:
                os.kill(os.getpid(), signal.SIGINT)

        run = agent.learn(6 * BATCH, panel=panel, callback=press, checkpoint=path)
    assert (run.state, run.reason, run.steps) == ("stopped", "interrupted", 2 * BATCH)
    assert run.checkpoint == str(path)
    with mileage.load(path) as resumed:
        resumed.learn(panel=panel)
        assert state(resumed) == want


def test_checkpoints_are_written_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "x"
    seen: list[int] = []
    with small() as agent:

        def look(progress: RunProgress) -> None:
            seen.append(mileage.load(path).steps if path.exists() else 0)

        run = agent.learn(
            4 * BATCH, panel=agent.default_panel(episodes=2), checkpoint=path, checkpoint_every=2 * BATCH, callback=look
        )
    assert seen == [0, 2 * BATCH, 2 * BATCH, 4 * BATCH]
    assert mileage.load(path).steps == 4 * BATCH
    assert run.phases["checkpoint"] > 0.0


def test_an_unwritable_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with small() as agent, pytest.raises(CheckpointError, match=r"cannot be written: .*file is a file$"):
        agent.learn(BATCH, panel=agent.default_panel(episodes=2), checkpoint=tmp_path / "file" / "x")


def test_a_gymnasium_environment_resumes_with_new_episodes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with mileage.PPO("FrozenLake-v1", n_envs=2, n_steps=7, env_kwargs={"is_slippery": False}) as agent:
        agent.learn(14, panel=agent.default_panel(episodes=1), checkpoint=path)
        params = agent.policy.params.copy()
    with mileage.load(path) as loaded:
        assert loaded.env_kwargs == {"is_slippery": False}
        np.testing.assert_array_equal(loaded.policy.params, params)
        assert not loaded.learner.episode.any()
        assert loaded.learn(14, panel=agent.default_panel(episodes=1)).steps == 28


def test_the_record_of_a_run() -> None:
    with small(seed=5) as agent:
        panel = agent.default_panel(episodes=3)
        run = agent.learn(4 * BATCH, panel=panel, target="mean_return>=1", eval_every=BATCH, stop_at_target=False)
    assert (run.algorithm, run.env, run.seed, run.steps) == ("ppo", "CartPole-v1", 5, 4 * BATCH)
    assert (run.target, run.state, run.reached) == ("mean_return>=1.0", "reached", True)
    assert run.panel_id == panel.panel_id
    assert run.config["hidden"] == (8, 8)
    assert run.steps_to_target == BATCH
    assert run.wall_to_target == run.evaluations[0].wall_seconds
    assert [point.steps for point in run.evaluations] == [BATCH * i for i in range(1, 5)]
    assert run.final is run.evaluations[-1].evaluation
    assert run.checkpoint is None
    assert sum(run.phases.values()) == pytest.approx(run.wall_seconds, rel=1e-9)
    assert {"init", "compile", "rollout", "advantage", "learn", "eval", "other"} <= run.phases.keys()
    train = run.wall_seconds - run.phases["eval"]
    assert run.steps_per_second == pytest.approx(4 * BATCH / train)
    steady = train - run.phases["init"] - run.phases["compile"]
    assert run.steady_steps_per_second == pytest.approx(4 * BATCH / steady)


def test_the_speed_of_a_continued_run_counts_its_own_steps() -> None:
    with small() as agent:
        panel = agent.default_panel(episodes=2)
        agent.learn(4 * BATCH, panel=panel)
        run = agent.learn(BATCH, panel=panel)
    assert (run.steps, run.steps_before) == (5 * BATCH, 4 * BATCH)
    assert run.steps_per_second == pytest.approx(BATCH / (run.wall_seconds - run.phases["eval"]))


def test_compiling_is_announced_once_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from mileage.kernels.machine import precompile as ahead

    told: list[list[str]] = []
    monkeypatch.setattr(ahead, "missing", lambda names: list(names)[:1])
    with small() as agent:
        agent.prepare(told.append)
    assert told == [["update"]]


def test_predict_is_the_policy() -> None:
    agent = small()
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    batch, nothing = agent.predict(obs)
    assert nothing is None
    np.testing.assert_array_equal(batch, agent.policy.actions(obs))
    assert agent.predict(obs[0].tolist())[0] == batch[0]
    drawn = [agent.predict(np.zeros((200, 4)), deterministic=False)[0] for _ in range(2)]
    assert 0 < drawn[0].sum() < 200
    assert drawn[0].tolist() != drawn[1].tolist()
    again = small().predict(np.zeros((200, 4)), deterministic=False)[0]
    assert again.tolist() == drawn[0].tolist()
    continuous, _ = small("Pendulum-v1").predict(np.zeros(3))
    assert continuous.shape == (1,)
    with pytest.raises(UsageError, match=r"^observation must have 4 entries, not shape \(3,\)$"):
        agent.predict(np.zeros(3))


def test_evaluating_plays_the_default_panel() -> None:
    agent = small()
    result = agent.evaluate()
    assert len(result) == 100
    assert result.seeds.tolist() == list(agent.default_panel().seeds)
    assert result.returns.tolist() == agent.evaluate().returns.tolist()


def test_bad_arguments_are_one_sentence() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'n_envs'\?"):
        mileage.PPO("CartPole-v1", n_env=3)
    with pytest.raises(UsageError, match=r"^gamma must be between 0 and 1, not 7.0$"):
        mileage.PPO("CartPole-v1", gamma=7)
    with pytest.raises(UnknownNameError, match=r"did you mean 'CartPole-v1'\?"):
        mileage.PPO("CartPole-v11")
    with pytest.raises(UsageError, match=r"^threads must be at least 1, not 0$"):
        mileage.PPO("CartPole-v1", threads=0)
    with pytest.raises(UsageError, match=r"^seed 4294967295 is not a training seed"):
        mileage.PPO("CartPole-v1", seed=2**32 - 1)
    agent = small()
    with pytest.raises(UsageError, match=r"^total_steps must be at least 1, not 0$"):
        agent.learn(0)
    for wrong in ({"eval_every": -1}, {"checkpoint_every": -1}):
        with pytest.raises(UsageError, match=rf"^{next(iter(wrong))} must be 0 or more, not -1$"):
            agent.learn(BATCH, **wrong)
    with pytest.raises(UsageError, match="cannot be read: write METRIC>=NUMBER"):
        agent.learn(BATCH, target="best")
    assert agent.steps == 0


def test_algorithms_by_name() -> None:
    assert agent_class("PPO") is mileage.PPO
    assert agent_class("a2c") is mileage.A2C
    with pytest.raises(UnknownNameError, match="unknown algorithm 'ppq': did you mean 'ppo'"):
        agent_class("ppq")


def test_numpy_seeds_and_hyperparameters_can_be_saved(tmp_path: Path) -> None:
    with small(seed=np.int64(3), n_envs=np.int32(2), learning_rate=np.float32(0.25)) as agent:
        agent.save(tmp_path / "x")
    loaded = mileage.load(tmp_path / "x")
    assert (loaded.seed, loaded.config.n_envs, loaded.config.learning_rate) == (3, 2, 0.25)


def test_the_environment_of_a_checkpoint_can_be_given(tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text(Path(tiny_envs.__file__).read_text().replace("TestIdentity-v0", "TestMine-v0"))
    name = f"{code}:Identity"
    with small(name) as agent:
        agent.save(tmp_path / "x")
    with pytest.raises(CheckpointError, match=r"give env .* yourself"):
        mileage.load(tmp_path / "x")
    assert mileage.load(tmp_path / "x", env=name).env_id == name
