"""What every adapter must keep, and lies that none may pass on: planted here in a framework that tells them.

The frameworks themselves run where they are installed: `benchmarks/adapters/environments.py` makes an environment for
each and runs this file in it.
"""

# ruff: noqa: PT012, PT031 (a run is a block)

from __future__ import annotations

import importlib.util
import json
import random
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import mileage
from adapters.drivers import DRIVERS, complete, seen
from mileage.errors import UsageError
from mileage.external.adapters import ADAPTERS, cleanrl, loader_of, rl_games
from mileage.external.adapters.session import Session, closing, plain, untouched, watch_env
from mileage.ledger import queries
from mileage.ledger.store import Store

CLAIMED = {
    "stable_baselines3": ("rollout/ep_rew_mean", "time/fps", "train/loss"),
    "rsl_rl": ("Loss/value", "Perf/total_fps", "Train/mean_reward", "Train/mean_episode_length"),
    "rl_games": ("losses/a_loss", "performance/step_fps", "rewards/step"),
}
"""Some of the figures of frameworks that must arrive."""


class Inner:
    """The innermost of environments."""

    def __init__(self, rng: Any, cached: bool) -> None:
        self._rng, self._first = rng, np.zeros(4) if cached else None

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return self._rng.normal(size=4) if self._first is None else self._first, {}

    def step(self, action: Any) -> None:
        """One step of the simulator."""


class Vector:
    """Environments of a framework, whose figures are honest unless told otherwise."""

    def __init__(self, n: int, *, cached: bool = False, frame_skip: int = 1) -> None:
        self.num_envs, self._frame_skip = n, frame_skip
        rng = np.random.default_rng(0)
        self.envs = [Inner(rng, cached) for _ in range(n)]

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return np.stack([env.reset()[0] for env in self.envs]), {}

    def step_to_the_end(self) -> None:
        """All episodes end in this step, which begins others, as in the vectors of most frameworks."""
        self.step(None)
        self.reset()

    def step(self, actions: Any) -> tuple[Any, ...]:
        for env in self.envs:
            for _ in range(self._frame_skip):
                env.step(None)
        return np.zeros((self.num_envs, 4)), np.ones(self.num_envs), np.zeros(self.num_envs, bool), None, {}


class SummaryWriter:
    """A writer of TensorBoard's."""

    told: list[tuple[Any, ...]]

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int) -> None:
        self.told.append((tag, scalar_value, global_step))


@contextmanager
def lying(db: Path, env: Vector, **settings: Any) -> Iterator[Session]:
    """A framework of four lines, with an adapter on the common core."""
    session = Session("liar", {"ledger": str(db)} | settings)
    watch_env(session, env, env.num_envs)
    with closing(session, lambda: None):
        yield session


def the_run(db: Path) -> Any:
    (run,) = complete(db)
    return run


def test_steps_reported_as_iterations_are_seen(tmp_path: Path) -> None:
    env = Vector(16)
    with (
        pytest.warns(UserWarning, match="liar says 10 steps, its environments took 160"),
        lying(tmp_path / "a.db", env) as session,
    ):
        for iteration in range(10):
            env.step(None)
            session.claim({"global_step": iteration}, steps=iteration + 1)
    assert the_run(tmp_path / "a.db").end.env_steps == 160


def test_evaluation_off_the_clock_is_on_ours(tmp_path: Path) -> None:
    env = Vector(4)
    with (
        pytest.warns(UserWarning, match=r"liar says 0\.0 s, the clock 1\.\d s"),
        lying(tmp_path / "a.db", env) as session,
    ):
        env.step(None)
        time.sleep(1.2)  # its evaluation, which its own figure leaves out
        session.claim({"time": 0.001}, seconds=0.001, steps=4)
    assert the_run(tmp_path / "a.db").wall_seconds >= 1.2


def test_every_figure_is_claimed_at_its_step(tmp_path: Path) -> None:
    env = Vector(2)
    with lying(tmp_path / "a.db", env) as session:
        for step in range(3):
            env.step(None)
            for name in "abc":
                session.claim({name: float(step)}, steps=env.num_envs * (step + 1))
    run = the_run(tmp_path / "a.db")
    with Store(mileage.Ledger(tmp_path / "a.db").url, create=False) as store:
        rows = store.read(queries.checkpoints, run.run.run_id)
    claims = {row.step: json.loads(row.claimed) for row in rows if row.claimed}
    assert claims == {2 * k + 2: {"a": k, "b": k, "c": k} for k in range(3)}


def test_steps_after_the_last_claim_are_no_difference(tmp_path: Path) -> None:
    """A run that is stopped has begun what its framework does not count yet."""
    env = Vector(4)
    with lying(tmp_path / "a.db", env) as session:
        env.step(None)
        session.claim({}, steps=4)
        env.step(None)
        assert session.differences == []
        session.claim({}, steps=4, at=4)  # a count that lags
        assert session.differences == []


def test_what_was_counted_before_training_began_is_no_difference(tmp_path: Path) -> None:
    """A model that goes on from a file has its steps; one that learns twice begins at 0 again."""
    env = Vector(4)
    with lying(tmp_path / "a.db", env) as session:
        for before in (100, 0):
            session.begin(before)
            env.step(None)
            session.claim({}, steps=before + 4)
            assert session.differences == []


def test_timers_that_stop_for_an_exam_and_those_that_do_not_are_both_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("mileage.external.adapters.session.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def slow(obs: Any) -> Any:
        now[0] += 10.0
        return np.zeros(len(obs), np.int64)

    with lying(tmp_path / "a.db", Vector(2), panel=mileage.Panel.default("CartPole-v1", 2)) as session:
        session.begin()
        now[0] += 5.0
        session.examine(slow)
        for seconds, right in ((5.0, True), (now[0], True), (2.0, False), (now[0] + 3.0, False)):
            session.claim({}, seconds=seconds)
            assert (session.differences == []) is right
        session.claim({}, seconds=5.0)


def test_scalars_of_a_writer_are_claimed_until_the_end(tmp_path: Path) -> None:
    writer, env, told = SummaryWriter(), Vector(2), []
    writer.told = told
    with lying(tmp_path / "a.db", env) as session:
        session.listen(None)
        session.listen(writer)
        env.step(None)
        writer.add_scalar("Train/mean_reward", np.float32(1.5), 0)
    assert told == [("Train/mean_reward", 1.5, 0)]
    claims = [(row.step, json.loads(row.claimed)) for row in the_run(tmp_path / "a.db").checkpoints if row.claimed]
    assert claims == [(2, {"Train/mean_reward": 1.5})]
    assert vars(writer) == {"told": told}


def test_policies_of_rl_games_that_need_more_than_an_observation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(A2CBase=SimpleNamespace)
    for name in ("rl_games", "rl_games.common", "rl_games.common.a2c_common"):
        monkeypatch.setitem(sys.modules, name, module)
    rl_games._check(SimpleNamespace(is_rnn=False, obs_shape=(4,)))
    for has, said in (
        ({"is_rnn": True}, "a recurrent policy"),
        ({"obs_shape": {}}, "a policy of several observations"),
    ):
        with pytest.raises(UsageError, match=f"{said} of rl_games sits no exam"):
            rl_games._check(SimpleNamespace(**has))
    with pytest.raises(UsageError, match="Vector of rl_games sits no exam"):
        rl_games._check(Vector(1))


def test_evaluation_of_a_script_is_no_training(tmp_path: Path) -> None:
    pytest.importorskip("torch.utils.tensorboard", reason="torch and tensorboard are not installed")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "events"))
    with cleanrl.recorded(ledger=str(tmp_path / "a.db")) as watched:
        envs = [gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * n) for n in (4, 1)]
        for env in envs:
            env.reset(seed=1)
            for step in range(50):
                env.step(np.zeros(env.num_envs, np.int64))
                writer.add_scalar("charts/SPS", 1.0, step * env.num_envs + env.num_envs)
        assert watched.session.steps == 200
        assert watched.session.resets > 8, "those inside step count too"
        assert watched.session.differences == []
    writer.close()


def test_a_last_exam_that_fails_throws_nothing_away(tmp_path: Path) -> None:
    def failing(_: Any) -> Any:
        raise UsageError("observations do not fit")

    session = Session("liar", {"ledger": str(tmp_path / "a.db"), "panel": "CartPole-v1"})
    with (
        pytest.warns(UserWarning, match="no exam: observations do not fit"),
        closing(session, lambda: session.examine_last(failing)),
    ):
        session.steps = 100
    assert the_run(tmp_path / "a.db").state == "finished"


def test_an_evaluation_on_training_seeds_reaches_nothing(tmp_path: Path) -> None:
    env = Vector(4)
    panel = mileage.Panel.default("CartPole-v1", 5)
    with lying(tmp_path / "a.db", env, panel=panel, target="mean_return>=475") as session:
        env.step(None)
        session.claim({"eval/mean_reward": 500.0, "mean_return": 500.0, "target_met": 1}, steps=4)
        session.examine(lambda obs: np.zeros(len(obs), np.int64))
    run = the_run(tmp_path / "a.db")
    assert str(run.state) == "not_reached"
    assert run.evaluations[-1].evaluation.mean_return < 20
    with pytest.raises(UsageError, match="one that training could use"):
        mileage.Panel("CartPole-v1", (1, 2, 3))
    with pytest.raises(UsageError):
        Session("liar", {"ledger": str(tmp_path / "b.db"), "seed": panel.seeds[0]})


def test_cached_first_states_are_seen_and_do_not_help_in_the_exam(tmp_path: Path) -> None:
    env = Vector(8, cached=True)
    with pytest.warns(UserWarning, match="40 training episodes began in 1 states"), lying(tmp_path / "a.db", env):
        env.reset()
        for _ in range(4):
            env.step_to_the_end()
    honest = Vector(8)
    with lying(tmp_path / "b.db", honest) as session:
        honest.reset()
        for _ in range(4):
            honest.step_to_the_end()
        assert (session.resets, session.differences) == (40, [])
        session.saw_reset(np.zeros((40, 2), np.uint8))  # pictures and grids begin alike in honest environments too
        assert session.differences == []


def test_another_frame_skip_is_seen_and_is_no_match(tmp_path: Path) -> None:
    env = Vector(2, frame_skip=4)
    with (
        pytest.warns(UserWarning, match="one step of training is 4 steps of the environment"),
        lying(tmp_path / "a.db", env),
    ):
        for _ in range(10):
            env.step(None)
    env = Vector(2)
    with lying(tmp_path / "a.db", env, step_rule="frames/4", name="skipping"):
        env.step(None)
    runs = mileage.Ledger(tmp_path / "a.db").records()
    assert {run.run.step_rule for run in runs} == {"env_steps", "frames/4"}


def test_a_crash_and_ctrl_c_end_the_run_as_such_and_put_everything_back(tmp_path: Path) -> None:
    for error, state in ((ValueError("no"), "failed"), (KeyboardInterrupt(), "stopped")):
        env, db = Vector(2), tmp_path / f"{state}.db"
        with pytest.raises(type(error)), lying(db, env):
            env.step(None)
            raise error
        assert str(the_run(db).state) == state
        assert "step" not in vars(env)
        assert "reset" not in vars(env)


def test_an_exam_leaves_generators_and_modes_as_they_were() -> None:
    torch: Any = sys.modules.get("torch") or (importlib.util.find_spec("torch") and importlib.import_module("torch"))
    random.seed(1)
    np.random.seed(1)
    with untouched():
        before = (random.random(), np.random.random())
    assert before == (random.random(), np.random.random())
    if torch:
        network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
        network[1].eval()
        torch.manual_seed(1)
        with untouched(network):
            network.eval()
            drawn = torch.rand(3)
        assert (network.training, network[0].training, network[1].training) == (True, True, False)
        assert torch.equal(drawn, torch.rand(3))


def test_settings_that_make_no_sense_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'pannel' is no setting"):
        Session("liar", {"pannel": "CartPole-v1"})
    with pytest.raises(UsageError, match="a target needs a panel"):
        Session("liar", {"target": "mean_return>=1"})
    with pytest.raises(UsageError, match="nobody"):
        loader_of("nobody")


def test_what_json_cannot_hold_is_kept_by_its_name() -> None:
    found = plain({"a": np.float32(1.5), "b": {"c": float("nan")}, "d": object, "e": None, "f": True})
    assert found["a"] == 1.5
    assert found["b"] == {"c": "nan"}
    assert "object" in found["d"]
    assert (found["e"], found["f"]) == (None, True)


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_a_missing_framework_is_one_sentence(name: str) -> None:
    module, package = ADAPTERS[name]
    if importlib.util.find_spec(module.split(".")[0]) is not None:
        pytest.skip(f"{module} is installed")
    from mileage.external.adapters.session import framework_module

    with pytest.raises(UsageError, match="is not installed: pip install"):
        framework_module(module, package)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_a_real_run_is_recorded_as_it_was(name: str, tmp_path: Path) -> None:
    module, _ = DRIVERS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = seen(name, str(tmp_path / "ledger.db"))
    assert found["ours_steps"] == found["steps"]
    assert sum(found["phases"].values()) == pytest.approx(found["wall_seconds"], abs=0.05)
    assert found["state"] in ("reached", "not_reached", "finished")
    assert found["differences"] == []
    if "own_return" in found:
        assert found["mean_return"] == pytest.approx(found["own_return"])
    assert set(CLAIMED.get(name, ())) <= set(found["claimed"])
