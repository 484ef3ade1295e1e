"""IMPALA: what it learns, what it computes, what it repeats bit for bit, and how it stops."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import mileage
import tiny_envs
from mileage.algorithms.impala import IMPALA, IMPALAConfig, SlotState
from mileage.envs import make_vec
from mileage.envs.gymnasium.bridge import GymnasiumEnv
from mileage.errors import CheckpointError, EnvError, UsageError
from mileage.kernels import reference
from mileage.kernels.machine.team import Team
from mileage.measure import Phase, PhaseClock
from mileage.policies import ActorCritic

FAST: dict[str, Any] = {"preset": "none", "n_envs": 8, "n_steps": 4, "learning_rate": 1e-2}


def collectors() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("collector-")]


def engine_of(config: IMPALAConfig, env_id: str = "CartPole-v1", seed: int = 0, max_steps: int = 0) -> IMPALA:
    env = make_vec(env_id, config.n_envs)
    if max_steps:
        env.max_steps = max_steps  # type: ignore[union-attr]
    spec = env.spec
    policy = ActorCritic(spec.obs_size, spec.n_actions, spec.action_low, spec.action_high, hidden=(16,), seed=seed)
    return IMPALA(config, env, policy, Team(1), seed)


# What it learns


@pytest.mark.parametrize("changes", [{}, {"collectors": 2}, {"mode": "lockstep", "lag": 2}], ids=str)
def test_discrete_identity(changes: dict[str, Any]) -> None:
    # Eight steps of reward 1; chance gives 2.
    with mileage.IMPALA(tiny_envs.Identity, gamma=0.0, **FAST | changes) as agent:
        agent.learn(4096, eval_every=10**9)
        assert agent.evaluate().mean_return >= 7.5


@pytest.mark.parametrize("mode", ["async", "lockstep"])
def test_continuous_identity(mode: str) -> None:
    # Eight squared distances; doing nothing costs 8 * (4/3 + 1/12) = 11.3.
    changes = {"gamma": 0.0, "log_std_init": -1.0, "n_steps": 8, "learning_rate": 2e-3, "mode": mode}
    with mileage.IMPALA(tiny_envs.Mirror, **FAST | changes) as agent:
        agent.learn(24_576, eval_every=10**9)
        assert agent.evaluate().mean_return >= -2.0


class Shown(gymnasium.Env[Any, Any]):
    """Discrete identity that only Python can step; breaks, or takes its time, where told to."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(3)
    breaks_after: int | None = None
    seconds = 0.0
    taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.shown = int(self.np_random.integers(3))
        return self.shown, {}

    def step(self, action: Any) -> Any:
        cls = type(self)
        cls.taken += 1
        if cls.breaks_after is not None and cls.taken > cls.breaks_after:
            raise ArithmeticError("the simulator broke")
        time.sleep(cls.seconds)
        reward = float(action == self.shown)
        self.steps += 1
        self.shown = int(self.np_random.integers(3))
        return self.shown, reward, False, self.steps >= 8, {}


def shown(**changes: Any) -> GymnasiumEnv:
    return GymnasiumEnv("shown", make=type("Shown", (Shown,), {"taken": 0} | changes))


def test_a_gymnasium_environment_is_learned_too() -> None:
    with mileage.IMPALA(shown(), gamma=0.0, **FAST) as agent:
        run = agent.learn(6144, eval_every=10**9)
        assert agent.evaluate().mean_return >= 7.5
    assert "env_step" not in run.phases  # that was beside the learner's clock


# What it computes


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_targets_are_those_of_the_reference_under_the_policy_of_the_update(lag: int) -> None:
    config = IMPALAConfig(
        n_envs=3, n_steps=40, mode="lockstep", lag=lag, gamma=0.9, trace_lambda=0.8, c_bar=0.7, learning_rate=5e-2
    )
    engine = engine_of(config, max_steps=11)
    clock = PhaseClock()
    for _ in range(6):
        before = engine.policy.params.copy()
        stats = engine.iterate(clock, 0.0)
    assert stats.lag == lag
    engine.stop()
    assert engine.truncated.any()
    assert engine.terminated.any()
    after = engine.policy.params.copy()
    engine.policy.params[:] = before
    logits = engine.policy.head(engine.obs).astype(np.float64)
    chosen = np.take_along_axis(logits, engine.actions.astype(int), axis=1)[:, 0]
    log_probs = chosen - np.log(np.exp(logits).sum(axis=1))
    values = engine.policy.values(engine.obs)
    shape = (40, 3)
    targets, advantages = reference.vtrace(
        (log_probs - engine.collected_log_probs).reshape(shape).astype(np.float32),
        engine.rewards.reshape(shape), values.reshape(shape), engine.terminated.reshape(shape), engine.last_values,
        truncated=engine.truncated.reshape(shape), truncated_values=engine.truncated_values.reshape(shape),
        gamma=0.9, lambda_=0.8, rho_bar=1.0, c_bar=0.7,
    )  # fmt: skip
    np.testing.assert_allclose(engine.returns.reshape(shape), targets, atol=2e-4)
    np.testing.assert_allclose(engine.advantages.reshape(shape), advantages, atol=2e-4)
    ratios = np.exp(log_probs - engine.collected_log_probs)
    if lag:  # without one, all ratios are 1 up to rounding
        assert stats.clip_fraction == pytest.approx(np.mean(ratios > 1.0), abs=0.05)
        assert stats.approx_kl == pytest.approx(np.mean(ratios - 1.0 - np.log(ratios)), rel=1e-2)
    assert (np.abs(ratios - 1.0).max() > 1e-3) == (lag > 0)
    assert not np.array_equal(before, after)


def test_the_update_is_one_step_on_the_vtrace_loss() -> None:
    """The gradient that Adam saw, against finite differences of the loss written down in NumPy."""
    config = IMPALAConfig(
        n_envs=2, n_steps=12, mode="lockstep", lag=1, max_grad_norm=0.0, entropy_coef=0.03, learning_rate=5e-2
    )
    engine = engine_of(config)
    clock = PhaseClock()
    for _ in range(3):
        before, mean = engine.policy.params.copy(), engine.adam_mean.copy()
        engine.iterate(clock, 0.0)
    engine.stop()
    # Adam's first moment moved by a tenth of the gradient.
    gradient = (engine.adam_mean.astype(np.float64) - 0.9 * mean) / 0.1

    def loss(params: Any) -> float:
        engine.policy.params[:] = params
        logits = engine.policy.head(engine.obs).astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        chosen = np.take_along_axis(log_p, engine.actions.astype(int), axis=1)[:, 0]
        entropy = -(np.exp(log_p) * log_p).sum(axis=1)
        error = engine.policy.values(engine.obs).astype(np.float64) - engine.returns
        return float(np.mean(-engine.advantages * chosen - 0.03 * entropy + 0.5 * error**2))

    rng = np.random.default_rng(0)
    for _ in range(8):
        direction = rng.standard_normal(before.size)
        step = 3e-3 / np.linalg.norm(direction)
        slope = (loss(before + step * direction) - loss(before - step * direction)) / (2 * step)
        assert gradient @ direction == pytest.approx(slope, rel=2e-2, abs=2e-2)


def test_lags_are_counted() -> None:
    engine = engine_of(IMPALAConfig(n_envs=4, n_steps=4, mode="lockstep", lag=2, collectors=2, learning_rate=1e-3))
    clock = PhaseClock()
    seen = [engine.iterate(clock, 0.0).lag for _ in range(6)]
    engine.stop()
    assert seen == [0, 1, 2, 2, 2, 2]
    assert engine.summary() == {"policy_lag": {"updates": 6, "mean": 1.5, "max": 2, "counts": {"0": 1, "1": 1, "2": 4}}}


def test_the_lag_of_one_collector_is_bounded_by_the_slots() -> None:
    engine = engine_of(IMPALAConfig(n_envs=4, n_steps=4, queue=3, learning_rate=1e-3))
    clock = PhaseClock()
    lags = [engine.iterate(clock, 0.0).lag for _ in range(100)]
    engine.stop()
    # While a slot is filled, the others are learned from at most once each, and one that was taken before.
    assert max(lags) <= len(engine.slots) == 4
    assert min(lags) >= 0


def test_collectors_are_measured_beside_the_wall_clock() -> None:
    engine = engine_of(IMPALAConfig(n_envs=4, n_steps=8, collectors=2, mode="lockstep", lag=2, learning_rate=1e-3))
    clock = PhaseClock()
    for _ in range(10):
        engine.iterate(clock, 0.0)
    engine.stop()
    times = clock.times()
    assert {name: times.entries[name] for name in (Phase.SYNC, Phase.ADVANTAGE, Phase.LEARN)} == {
        "sync": 10,
        "advantage": 10,
        "learn": 10,
    }
    assert "rollout" not in times.phases
    assert set(times.beside) == {"collector-0", "collector-1"}
    assert all(lane["rollout"] > 0.0 for lane in times.beside.values())
    assert sum(times.phases_ns.values()) == times.wall_ns


def test_the_ledger_keeps_lag_and_collectors(tmp_path: Path) -> None:
    from mileage.ledger import queries
    from mileage.ledger.recorder import Ledger
    from mileage.ledger.store import Store

    db = str(tmp_path / "runs.db")
    with mileage.IMPALA("CartPole-v1", n_envs=4, n_steps=8, preset="none") as agent:
        record = agent.learn(640, panel=agent.default_panel(episodes=2), ledger=db)
    assert record.summary["policy_lag"]["updates"] == 20
    with Store(Ledger(db).url) as store:
        profiles = store.read(queries.profiles, record.run_id)
        phases = store.read(queries.latest_phases, record.run_id)
    assert '"policy_lag"' in profiles[0].summary
    assert "collector-0/rollout" in {phase.phase for phase in phases}


# What it repeats


def params_after(updates: int, **changes: Any) -> bytes:
    usual: dict[str, Any] = {"preset": "none", "n_envs": 6, "n_steps": 16, "mode": "lockstep", "threads": 1}
    env = changes.pop("env", "CartPole-v1")
    with mileage.IMPALA(env, **usual | changes) as agent:
        agent.learn(updates * agent.batch_size, panel=agent.default_panel(episodes=2), eval_every=10**9)
        return bytes(agent.policy.params.tobytes())


@pytest.mark.parametrize(
    "changes",
    [
        {"lag": 0},
        {"lag": 1, "normalise_observations": True},
        {"lag": 3, "collectors": 3},
        {"lag": 2, "env": "Pendulum-v1", "normalise_rewards": True, "collectors": 2},
        {"lag": 1, "n_envs": 40, "collectors": 1},
    ],
    ids=str,
)
def test_lockstep_is_the_same_every_time_and_on_any_number_of_threads(changes: dict[str, Any]) -> None:
    assert len({params_after(12, threads=threads, **changes) for threads in (1, 1, 2, 3)}) == 1
    assert params_after(12, seed=1, **changes) != params_after(12, seed=2, **changes)


def test_the_lag_matters() -> None:
    assert len({params_after(12, lag=lag) for lag in (0, 1, 2)}) == 3


@pytest.mark.parametrize("changes", [{"lag": 0}, {"lag": 3, "collectors": 2, "normalise_observations": True}], ids=str)
def test_lockstep_resumes_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"preset": "none", "n_envs": 4, "n_steps": 8, "mode": "lockstep"} | changes
    path = tmp_path / "half.safetensors"

    def learn(agent: Any, updates: int) -> None:
        agent.learn(updates * agent.batch_size, panel=agent.default_panel(episodes=1), eval_every=10**9)

    with mileage.IMPALA("CartPole-v1", **settings) as whole:
        learn(whole, 10)
        want = whole.policy.params.tobytes()
    with mileage.IMPALA("CartPole-v1", **settings) as first:
        learn(first, 6)
        first.save(path)
        learn(first, 4)
        assert first.policy.params.tobytes() == want  # saving changed nothing
    with mileage.IMPALA.load(path) as second:
        learn(second, 4)
        assert second.policy.params.tobytes() == want
        assert second.steps == 10 * second.batch_size


def test_asynchronous_training_resumes_with_the_rollouts_under_way(tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    with mileage.IMPALA("CartPole-v1", preset="none", n_envs=4, n_steps=8, queue=3) as agent:
        agent.learn(320, panel=agent.default_panel(episodes=1))
        ready = int((agent.learner.slots.state == SlotState.READY).sum())
        agent.save(path)
    with mileage.IMPALA.load(path) as again:
        engine = again.learner
        assert int((engine.slots.state == SlotState.READY).sum()) == ready
        again.learn(320, panel=again.default_panel(episodes=1))
        assert again.steps == 640
        assert engine.lags.sum() == 20


@pytest.mark.parametrize(("name", "value"), [("rollout_state", 7), ("rollout_collector", 9), ("rollout_actions", 2.0)])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, name: str, value: float) -> None:
    from mileage.training import checkpoints

    path = tmp_path / "saved.safetensors"
    with mileage.IMPALA("CartPole-v1", preset="none", n_envs=4, n_steps=8) as agent:
        agent.learn(64, panel=agent.default_panel(episodes=1))
        agent.save(path)
    arrays, metadata = checkpoints.read(path)
    arrays[name] = np.full_like(arrays[name], value)
    del metadata["format"]
    checkpoints.write(path, arrays, metadata)
    with mileage.IMPALA.load(path) as agent, pytest.raises(CheckpointError, match="is damaged: "):
        agent.learn(64, panel=agent.default_panel(episodes=1))


# How it stops


def test_no_thread_outlives_learning() -> None:
    with mileage.IMPALA("CartPole-v1", preset="none", n_envs=4, n_steps=8, collectors=2) as agent:
        seen: list[list[str]] = []
        agent.learn(320, panel=agent.default_panel(episodes=1), callback=lambda _: seen.append(collectors()) or None)
        assert seen[0] == ["collector-0", "collector-1"]
        assert collectors() == []


@pytest.mark.parametrize("mode", ["async", "lockstep"])
@pytest.mark.parametrize("breaks_after", [0, 100])
def test_an_error_in_a_collector_ends_training_with_that_error(mode: str, breaks_after: int) -> None:
    with mileage.IMPALA(shown(breaks_after=breaks_after), mode=mode, **FAST) as agent:
        for _ in range(2):  # and again when it is tried again
            with pytest.raises(EnvError, match="raised ArithmeticError: the simulator broke") as caught:
                agent.learn(4096, panel=agent.default_panel(episodes=1))
            assert isinstance(caught.value.__cause__, ArithmeticError)
            assert collectors() == []


def test_an_error_in_a_callback_leaves_no_thread() -> None:
    def fail(_: Any) -> bool:
        raise LookupError("mine")

    with mileage.IMPALA("CartPole-v1", **FAST) as agent:
        with pytest.raises(LookupError, match="mine"):
            agent.learn(4096, callback=fail)
        assert collectors() == []


def test_ctrl_c_stops_after_the_update(tmp_path: Path) -> None:
    path = tmp_path / "stopped.safetensors"
    with mileage.IMPALA("CartPole-v1", **FAST) as agent:
        run = agent.learn(
            10**7, eval_every=10**9, checkpoint=path, callback=lambda _: signal.raise_signal(signal.SIGINT)
        )
        assert run.state == "stopped"
        assert run.steps == agent.batch_size
        assert collectors() == []
    with mileage.IMPALA.load(path) as again:
        again.learn(4 * again.batch_size, panel=again.default_panel(episodes=1))
        assert again.steps == 5 * again.batch_size


def test_a_second_ctrl_c_does_not_wait_for_a_slow_environment() -> None:
    # A rollout of 4,000 steps takes 20 s; the learner waits for it when both signals come.
    env = shown(seconds=0.005)
    with mileage.IMPALA(env, preset="none", n_envs=1, n_steps=4000) as agent:
        agent.prepare()

        def interrupt_twice() -> None:
            while type_of(env).taken < 5:
                time.sleep(0.01)
            for _ in range(2):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]
                time.sleep(0.2)

        other = threading.Thread(target=interrupt_twice)
        other.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            agent.learn(8000, panel=agent.default_panel(episodes=1))
        other.join()
        assert collectors() == []
        assert type_of(env).taken < 4000, f"took {time.monotonic() - started:.0f} s"


def type_of(spec: Any) -> Any:
    return spec.make


# What it refuses


def test_several_collectors_need_an_environment_that_kernels_can_step() -> None:
    with (
        mileage.IMPALA("FrozenLake-v1", n_envs=4, collectors=2) as agent,
        pytest.raises(UsageError, match=r"^collectors must be 1 for an environment that only Python can step$"),
    ):
        agent.learn(64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_envs": 5, "collectors": 2}, "n_envs must be a multiple of collectors=2, not 5"),
        ({"mode": "sync"}, "mode must be one of async, lockstep, not 'sync'"),
        ({"lag": -1}, "lag must be 0 or more, not -1"),
        ({"queue": 0}, "queue must be at least 1, not 0"),
        ({"c_bar": 2.0}, "c_bar must be at most rho_bar=1.0, not 2.0"),
        ({"backend": "torch"}, "impala has no torch back end"),
    ],
)
def test_settings_that_cannot_be_used(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mileage.IMPALA("CartPole-v1", **changes)


def test_cartpole_is_solved_with_the_preset() -> None:
    # In lockstep, so that timing does not decide.
    with mileage.IMPALA("CartPole-v1", seed=0, mode="lockstep") as agent:
        run = agent.learn(target="mean_return>=475")
    assert run.reached
    assert run.final is not None
    assert run.final.mean_return >= 475.0
