"""What every vector environment promises, whatever is behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from mileage.contracts import EnvSpec, VectorEnv
from mileage.envs import BridgedVecEnv, GymnasiumEnv, VecEnv, env, uniform

LIMIT = 7


@env("Contract-Walk", state_size=1, actions=3, obs_high=10.0, max_steps=50)
class Walk:
    """A random walk with a drift that the action chooses; ends beyond 3."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = uniform(rng, -1.0, 1.0)

    @staticmethod
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        state[0] = state[0] + (action - 1) * 0.5 + uniform(rng, -0.5, 0.5)
        return -abs(state[0]), abs(state[0]) > 3.0


Factory = Callable[..., Any]


def native_factory(name: str) -> Factory:
    def make(n: int, seed: int = 0, limit: int | None = None) -> VecEnv:
        return VecEnv(name, n, seed=seed, max_steps=limit)

    return make


def bridged_factory(name: str) -> Factory:
    def make(n: int, seed: int = 0, limit: int | None = None) -> BridgedVecEnv:
        return BridgedVecEnv(GymnasiumEnv(name, {"max_episode_steps": limit} if limit else {}), n, seed=seed)

    return make


def mujoco_factory(name: str) -> Factory:
    def make(n: int, seed: int = 0, limit: int | None = None) -> Any:
        pytest.importorskip("mujoco", reason="the mujoco extra is not installed")
        from mileage.envs.mujoco import MujocoVecEnv

        return MujocoVecEnv(name, n, seed=seed, max_steps=limit)

    return make


NATIVE = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", Walk.id)
FACTORIES = {name: native_factory(name) for name in NATIVE} | {
    "bridged CartPole-v1": bridged_factory("CartPole-v1"),
    "bridged Pendulum-v1": bridged_factory("Pendulum-v1"),
    "mujoco Hopper-v5": mujoco_factory("Hopper-v5"),
    "mujoco Reacher-v5": mujoco_factory("Reacher-v5"),
}
# Their steps read forces and centres of mass that the simulation computed before.
REMEMBERING = {name: mujoco_factory(name) for name in ("Ant-v5", "Humanoid-v5")}


@pytest.fixture(params=FACTORIES, name="make")
def make_fixture(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param]


def actions_for(vec: Any, steps: int, seed: int = 0) -> list[Any]:
    """Random actions for one environment after the other, so that environment i gets the same whatever N is."""
    per_env = []
    for i in range(vec.num_envs):
        vec.single_action_space.seed(1000 * seed + i)
        per_env.append([vec.single_action_space.sample() for _ in range(steps)])
    return [np.array(actions) for actions in zip(*per_env, strict=True)]


def rollout(vec: Any, steps: int, seed: Any = None) -> dict[str, Any]:
    """Stack everything that comes out of `steps` random steps."""
    obs, _ = vec.reset(seed=seed)
    rows: dict[str, list[Any]] = {"obs": [obs.copy()], "reward": [], "terminated": [], "truncated": [], "final_obs": []}
    for actions in actions_for(vec, steps):
        obs, reward, terminated, truncated, infos = vec.step(actions)
        ended = terminated | truncated
        np.testing.assert_array_equal(infos.get("_final_obs", np.zeros(vec.num_envs, bool)), ended)
        final = np.where(ended[:, None], infos.get("final_obs", obs), np.nan)
        for key, value in zip(rows, (obs, reward, terminated, truncated, final), strict=True):
            rows[key].append(np.array(value))
    vec.close()
    return {key: np.stack(value) for key, value in rows.items()}


def assert_equal(one: dict[str, Any], other: dict[str, Any], columns: slice = slice(None)) -> None:
    for key in one:
        np.testing.assert_array_equal(one[key], other[key][:, columns], err_msg=key)


def test_same_seed_same_rollout(make: Factory) -> None:
    assert_equal(rollout(make(3, seed=4), 60), rollout(make(3, seed=4), 60))


def test_reset_seed_means_the_same_as_the_constructors(make: Factory) -> None:
    assert_equal(rollout(make(3, seed=4), 60), rollout(make(3, seed=9), 60, seed=4))


def test_other_seed_other_rollout(make: Factory) -> None:
    assert not np.array_equal(rollout(make(3, seed=4), 5)["obs"], rollout(make(3, seed=5), 5)["obs"])


def test_environments_of_one_seed_differ(make: Factory) -> None:
    obs = rollout(make(4, seed=1), 1)["obs"][0]
    assert len(np.unique(obs, axis=0)) == 4


def test_an_environment_does_not_depend_on_how_many_there_are(make: Factory) -> None:
    assert_equal(rollout(make(2, seed=3), 60), rollout(make(5, seed=3), 60), slice(0, 2))


def test_an_environment_seeded_by_itself_does_not_depend_on_its_place(make: Factory) -> None:
    first, _ = make(3).reset(seed=[11, 12, 13])
    second, _ = make(2).reset(seed=[13, 11])
    np.testing.assert_array_equal(first[[2, 0]], second)


def test_a_reset_without_seed_goes_on_with_the_streams(make: Factory) -> None:
    vec = make(3, seed=2)
    first = vec.reset()[0].copy()
    second = vec.reset()[0].copy()
    assert not np.array_equal(first, second)


def test_observations_are_in_the_space(make: Factory) -> None:
    vec = make(3, seed=6)
    space = vec.single_observation_space
    seen = rollout(vec, 120)
    finals = seen["final_obs"][~np.isnan(seen["final_obs"]).any(axis=-1)]
    assert all(space.contains(row) for row in seen["obs"].reshape(-1, *space.shape))
    assert all(space.contains(row.astype(np.float32)) for row in finals)


def test_time_limit_truncates_exactly_then_and_starts_again(make: Factory) -> None:
    seen = rollout(make(4, seed=7, limit=LIMIT), 5 * LIMIT)
    assert not (seen["terminated"] & seen["truncated"]).any()
    assert seen["truncated"].any()
    age = np.zeros(4, int)
    for terminated, truncated in zip(seen["terminated"], seen["truncated"], strict=True):
        age += 1
        np.testing.assert_array_equal(truncated, (age == LIMIT) & ~terminated)
        age[terminated | truncated] = 0


def test_the_observation_after_an_end_is_a_first_one(make: Factory) -> None:
    """With a time limit of one step, every observation returned is what a reset returns, and none is the final one."""
    vec = make(64, seed=8, limit=1)
    obs, _ = vec.reset()
    low, high = obs.min(axis=0), obs.max(axis=0)
    margin = 0.25 * (high - low)
    for actions in actions_for(vec, 5):
        obs, _, terminated, truncated, infos = vec.step(actions)
        assert (terminated | truncated).all()
        assert ((obs >= low - margin) & (obs <= high + margin)).all()
        assert (obs != infos["final_obs"]).any(axis=1).all()
    vec.close()


@pytest.mark.parametrize("make", (FACTORIES | REMEMBERING).values(), ids=FACTORIES | REMEMBERING)
def test_saved_arrays_written_back_repeat_what_followed(make: Factory) -> None:
    vec = make(3, seed=5, limit=LIMIT)
    vec.reset()
    steps = actions_for(vec, 4 * LIMIT)
    for actions in steps[:LIMIT]:
        vec.step(actions)
    live = vec.saved_arrays()
    if not live:
        assert isinstance(vec, BridgedVecEnv)  # what is inside Gymnasium's environments cannot be reached
        return
    kept = {name: array.copy() for name, array in live.items()}

    def following(env: Any) -> list[Any]:
        return [[np.array(part) for part in env.step(actions)[:4]] for actions in steps[LIMIT:]]

    expected = following(vec)
    other = make(3, seed=6, limit=LIMIT)
    other.reset()
    other.step(steps[0])
    for again in (vec, other):
        for name, array in again.saved_arrays().items():
            array[...] = kept[name]
        for got, want in zip(following(again), expected, strict=True):
            for one, another in zip(got, want, strict=True):
                np.testing.assert_array_equal(one, another)
        again.close()


def test_saved_arrays_outlive_their_environment(make: Factory) -> None:
    vec = make(2, seed=5)
    vec.reset()
    live = vec.saved_arrays()
    kept = {name: array.copy() for name, array in live.items()}
    vec.close()
    for name, array in live.items():
        np.testing.assert_array_equal(array, kept[name])


def test_it_is_what_its_spec_makes(make: Factory) -> None:
    vec = make(2, seed=3)
    made = vec.spec.vector(2, seed=3, threads=1, processes=False)
    assert type(made) is type(vec)
    assert isinstance(vec, VectorEnv)
    assert isinstance(vec.spec, EnvSpec)
    np.testing.assert_array_equal(made.reset()[0], vec.reset()[0])
    made.close()
    vec.close()


def test_types_and_shapes_are_gymnasiums(make: Factory) -> None:
    vec = make(3)
    assert vec.num_envs == 3
    assert vec.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.SAME_STEP
    assert vec.observation_space == gymnasium.vector.utils.batch_space(vec.single_observation_space, 3)
    assert vec.action_space == gymnasium.vector.utils.batch_space(vec.single_action_space, 3)
    obs, infos = vec.reset(seed=0)
    assert infos == {}
    assert vec.observation_space.contains(obs)
    vec.action_space.seed(0)
    results = vec.step(vec.action_space.sample())
    assert [array.dtype for array in results[:4]] == [np.float32, np.float32, np.bool_, np.bool_]
    assert [array.shape for array in results[1:4]] == [(3,)] * 3


def test_actions_of_a_wrong_shape_are_refused_in_one_sentence(make: Factory) -> None:
    vec = make(3)
    vec.reset()
    with pytest.raises(ValueError, match=r"^actions .*"):
        vec.step(np.zeros(4, np.int64))
