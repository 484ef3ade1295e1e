"""One suite over every replay buffer: what goes in comes out, exactly, and nothing else ever does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mileage.buffers import Batch, MappedReplay, PrioritizedReplay, ReplayBuffer
from mileage.errors import UsageError

Maker = Callable[..., Any]


@pytest.fixture(params=["replay", "prioritized", "mapped"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    def build(*args: Any, **kwargs: Any) -> Any:
        if request.param == "mapped":
            build.made += 1  # type: ignore[attr-defined]
            return MappedReplay(tmp_path / str(build.made), *args, **kwargs)  # type: ignore[attr-defined]
        return {"replay": ReplayBuffer, "prioritized": PrioritizedReplay}[request.param](*args, **kwargs)

    build.made = 0  # type: ignore[attr-defined]
    return build


@pytest.fixture(params=["stored", "derived"])
def next_obs(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class World:
    """Environments whose observation is (env, episode, time), so that every transition can be told from its obs."""

    def __init__(self, n_envs: int, length: int, dtype: Any = np.float32) -> None:
        self.n, self.length, self.dtype = n_envs, length, dtype
        self.time = np.arange(n_envs) % length  # episodes out of step with each other
        self.episode = np.zeros(n_envs, int)

    def obs(self, time: Any = None) -> Any:
        now = self.time if time is None else time
        return np.stack([np.arange(self.n), self.episode, now], axis=1).astype(self.dtype)

    def step(self) -> tuple[Any, ...]:
        obs = self.obs()
        actions = (self.time * 10 + np.arange(self.n)).astype(np.float32)[:, None]
        rewards = (self.time + 1).astype(np.float32)
        final = self.obs(self.time + 1)
        ended = self.time + 1 == self.length
        terminated, truncated = ended & (self.episode % 2 == 0), ended & (self.episode % 2 == 1)
        self.time = np.where(ended, 0, self.time + 1)
        self.episode = self.episode + ended
        return obs, actions, rewards, terminated, truncated, final


def check(batch: Batch, length: int, n_step: int = 1, gamma: float = 0.99, newest_time: Any = None) -> None:
    """Recompute every field of a batch from its observations alone."""
    for b in range(len(batch)):
        env, episode, time = (int(x) for x in batch.obs[b])
        assert batch.actions[b, 0] == time * 10 + env
        steps = min(n_step, length - time)
        if newest_time is not None:
            steps = min(steps, newest_time(env, episode) - time)
        assert batch.rewards[b] == pytest.approx(sum(gamma**k * (time + k + 1) for k in range(steps)), rel=1e-6)
        ended = time + steps == length
        assert tuple(batch.next_obs[b]) == (env, episode, time + steps)
        assert batch.terminated[b] == (ended and episode % 2 == 0)
        assert batch.truncated[b] == (ended and episode % 2 == 1)
        assert batch.discounts[b] == pytest.approx(0.0 if batch.terminated[b] else gamma**steps, rel=1e-6)


def fill(buffer: Any, world: World, steps: int) -> None:
    for _ in range(steps):
        buffer.push_batch(*world.step())


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("steps", [4, 23])  # before and after the ring has wrapped
def test_every_sampled_transition_is_one_that_was_pushed(make: Maker, next_obs: str, n_envs: int, steps: int) -> None:
    world = World(n_envs, length=5)
    buffer = make(8 * n_envs, 3, 1, n_envs=n_envs, next_obs=next_obs)
    fill(buffer, world, steps)
    expected = min(8, steps - (next_obs == "derived")) * n_envs
    assert len(buffer) == expected
    assert buffer.capacity == 8 * n_envs
    for _ in range(20):
        check(buffer.sample(expected), length=5)


def test_all_held_transitions_and_no_others_are_drawn(make: Maker, next_obs: str) -> None:
    world = World(2, length=50)
    buffer = make(10, 3, 1, n_envs=2, next_obs=next_obs)
    fill(buffer, world, 12)
    seen = {tuple(obs) for _ in range(100) for obs in buffer.sample(10).obs}
    newest = 12 - (next_obs == "derived")
    assert seen == {(env, 0, env + t) for env in range(2) for t in range(newest - 5, newest)}


@pytest.mark.parametrize("n_step", [2, 3, 10])
def test_n_step_returns_stop_at_episode_ends_and_at_the_newest_step(make: Maker, next_obs: str, n_step: int) -> None:
    world = World(1, length=7)
    buffer = make(20, 3, 1, next_obs=next_obs, n_step=n_step, gamma=0.9)
    for steps in range(3, 60):
        buffer.push_batch(*world.step())
        if steps % 5:
            continue
        # The time up to which the running episode is known.
        episode, time = int(world.episode[0]), int(world.time[0])
        known = 6 if time == 0 else time - (next_obs == "derived")

        def limit(_: int, of: int, episode: int = episode, time: int = time, known: int = known) -> int:
            if next_obs == "stored":
                return known if of == episode else 7
            # Without stored next observations the newest transition is not there yet.
            last = (episode, known) if time else (episode - 1, 6)
            return last[1] if of == last[0] else 7

        check(buffer.sample(min(len(buffer), 16)), 7, n_step, 0.9, limit)


def test_images_and_integer_actions(make: Maker, next_obs: str) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (9, 2, 4, 5), np.uint8)
    buffer = make(20, (4, 5), (), obs_dtype=np.uint8, action_dtype=np.int64, n_envs=2, next_obs=next_obs)
    none = np.zeros(2, np.bool_)
    for t in range(8):
        buffer.push_batch(frames[t], np.array([t, -t]), np.array([t, t], np.float64), none, none, frames[t + 1])
    batch = buffer.sample(12)
    assert batch.obs.dtype == np.uint8
    assert batch.actions.dtype == np.int64
    for b in range(12):
        t = int(batch.rewards[b])
        env = 0 if batch.actions[b] == t and t > 0 else 1
        if t > 0:
            np.testing.assert_array_equal(batch.obs[b], frames[t, env])
            np.testing.assert_array_equal(batch.next_obs[b], frames[t + 1, env])


def test_one_at_a_time_is_the_same_as_in_batches(make: Maker, next_obs: str) -> None:
    single, batched = (make(16, 3, 1, next_obs=next_obs, seed=5) for _ in range(2))
    world, twin = World(1, length=4), World(1, length=4)
    for _ in range(40):
        obs, actions, rewards, terminated, truncated, final = world.step()
        single.push(obs[0], actions[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), final[0])
        batched.push_batch(*twin.step())
        if len(single) >= 4:
            a, b = single.sample(4), batched.sample(4)
            for field in ("obs", "next_obs", "actions", "rewards", "discounts", "terminated", "truncated", "indices"):
                np.testing.assert_array_equal(getattr(a, field), getattr(b, field), err_msg=field)


def test_several_steps_in_one_call_are_the_same_as_step_by_step(make: Maker, next_obs: str) -> None:
    stepwise, at_once = (make(30, 3, 1, n_envs=2, next_obs=next_obs) for _ in range(2))
    world = World(2, length=3)
    steps = [world.step() for _ in range(9)]
    for step in steps:
        stepwise.push_batch(*step)
    at_once.push_batch(*(np.concatenate(field) for field in zip(*steps, strict=True)))
    a, b = stepwise.sample(16), at_once.sample(16)
    np.testing.assert_array_equal(a.obs, b.obs)
    np.testing.assert_array_equal(a.next_obs, b.next_obs)


def test_same_seed_same_samples(make: Maker, next_obs: str) -> None:
    draws = []
    for seed in (1, 1, 2):
        buffer = make(50, 3, 1, next_obs=next_obs, seed=seed)
        fill(buffer, World(1, 9), 40)
        draws.append([buffer.sample(8).indices.tolist() for _ in range(3)])
    assert draws[0] == draws[1] != draws[2]


def test_sampling_fills_the_given_memory(make: Maker) -> None:
    buffer = make(50, 3, 1)
    fill(buffer, World(1, 9), 40)
    out = buffer.batch(8)
    address = out.obs.ctypes.data
    assert buffer.sample(8, out) is out
    first = out.indices.copy()
    buffer.sample(8, out)
    assert out.obs.ctypes.data == address
    assert (out.indices != first).any()
    check(out, length=9)


def test_batches_at_chosen_places(make: Maker, next_obs: str) -> None:
    buffer = make(20, 3, 1, next_obs=next_obs)
    fill(buffer, World(1, 6), 33)
    batch = buffer.sample(10)
    again = buffer.at(batch.indices)
    np.testing.assert_array_equal(again.obs, batch.obs)
    np.testing.assert_array_equal(again.next_obs, batch.next_obs)
    for bad in ([-1], [10_000], [[0]], [0.5], ["x"]):
        with pytest.raises(UsageError, match="indices"):
            buffer.at(bad)


def test_clear_forgets_everything(make: Maker, next_obs: str) -> None:
    buffer = make(20, 3, 1, next_obs=next_obs)
    fill(buffer, World(1, 3), 30)
    buffer.clear()
    assert len(buffer) == 0
    world = World(1, 3)
    fill(buffer, world, 12)
    check(buffer.sample(len(buffer)), length=3)


def test_empty_and_too_large_batches_are_refused(make: Maker, next_obs: str) -> None:
    buffer = make(20, 3, 1, next_obs=next_obs)
    with pytest.raises(UsageError, match="buffer is empty"):
        buffer.sample(1)
    fill(buffer, World(1, 9), 6)
    held = len(buffer)
    with pytest.raises(UsageError, match=f"batch size {held + 1} is larger than the {held} transitions held"):
        buffer.sample(held + 1)
    for size in (0, -1, 2.5, "4", None):
        with pytest.raises(UsageError, match="at least 1"):
            buffer.sample(size)
        with pytest.raises(UsageError, match="at least 1"):
            buffer.batch(size)
        with pytest.raises(UsageError, match=r"batches .* at least 1"):
            buffer.sample(2, batches=size)
    with pytest.raises(UsageError, match="out must be a batch, not list"):
        buffer.sample(2, [1, 2])
    with pytest.raises(UsageError, match=r"make it with buffer\.batch\(3\)"):
        buffer.sample(3, buffer.batch(4))
    with pytest.raises(UsageError, match="another batch"):
        buffer.sample(3, make(20, 2, 1).batch(3))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (0, np.zeros((2, 3), np.float64), "obs must have dtype float32, not float64"),
        (0, np.zeros((2, 3), np.int32), "obs must have dtype float32, not int32"),
        (0, np.zeros((2, 4), np.float32), r"obs must have shape \(2, 3\), not \(2, 4\)"),
        (0, np.zeros((3, 3), np.float32), "obs holds 3 transitions: push a multiple of n_envs"),
        (0, np.zeros((0, 3), np.float32), "obs holds 0 transitions"),
        (0, np.zeros((2, 6), np.float32)[:, ::2], "obs must be C-contiguous"),
        (0, [[0.0] * 3] * 2, "obs must be a NumPy array"),
        (0, None, "obs must be a NumPy array"),
        (1, np.zeros((2, 2), np.float32), "actions must have shape"),
        (1, np.zeros((2, 1), np.int64), "actions must have dtype float32, not int64"),
        (2, np.zeros(3, np.float32), "rewards must have shape"),
        (2, np.zeros(2, np.int64), "rewards must have dtype float32 or float64, not int64"),
        (3, np.zeros(2, np.float32), "terminated must have dtype bool or uint8"),
        (4, np.zeros((2, 1), np.bool_), "truncated must have shape"),
        (5, np.zeros((2, 3), np.uint8), "next_obs must have dtype float32, not uint8"),
        (5, "text", "next_obs must be a NumPy array"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(make: Maker, field: int, value: Any, message: str) -> None:
    buffer = make(8, 3, 1, n_envs=2)
    world = World(2, 5)
    fill(buffer, world, 9)
    before = buffer.at(np.arange(8))
    transitions = list(world.step())
    transitions[field] = value
    with pytest.raises(UsageError, match=message):
        buffer.push_batch(*transitions)
    assert len(buffer) == 8
    np.testing.assert_array_equal(buffer.at(np.arange(8)).obs, before.obs)


def test_a_single_push_that_does_not_fit_leaves_only_whole_transitions(make: Maker, next_obs: str) -> None:
    buffer = make(6, 3, 1, next_obs=next_obs)
    world = World(1, 5)
    fill(buffer, world, 20)
    obs, action = np.zeros(3, np.float32), np.zeros(1, np.float32)
    for bad, message in (
        ((np.zeros(4, np.float32), action, 0.0, False, False, obs), r"obs must have shape \(3,\), not \(4,\)"),
        ((obs.astype(np.float64), action, 0.0, False, False, obs), "obs must have dtype float32, not float64"),
        ((obs, np.zeros(2, np.float32), 0.0, False, False, obs), "action must have shape"),
        ((obs, 1, 0.0, False, False, obs), "action must be a NumPy array"),
        ((obs, action, "much", False, False, obs), "reward must be a number"),
        ((obs, action, np.zeros(2), False, False, obs), "reward must be a number"),
        ((obs, action, 0.0, "maybe" * 2, [1, 2], obs), "terminated and truncated must be true or false"),
        ((None, action, 0.0, False, False, obs), "obs must be a NumPy array"),
        ((obs, action, 0.0, False, False, obs[::-1]), "next_obs must be C-contiguous"),
    ):
        with pytest.raises(UsageError, match=message):
            buffer.push(*bad)
    for _ in range(20):
        check(buffer.sample(len(buffer)), length=5)
    fill(buffer, world, 20)
    assert len(buffer) == 6
    check(buffer.sample(6), length=5)


def test_several_environments_need_batches(make: Maker) -> None:
    buffer = make(8, 3, 1, n_envs=2)
    with pytest.raises(UsageError, match="use push_batch"):
        buffer.push(np.zeros(3, np.float32), np.zeros(1, np.float32), 0.0, False, False, np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"capacity": 0}, "capacity must be at least n_envs, 1, not 0"),
        ({"capacity": "many"}, "capacity must be a whole number, not 'many'"),
        ({"capacity": 2.5}, r"capacity must be a whole number, not 2\.5"),
        ({"gamma": "x"}, "gamma must be a number, not 'x'"),
        ({"n_envs": 0}, "n_envs must be at least 1, not 0"),
        ({"capacity": 3, "n_envs": 4}, "capacity must be at least n_envs, 4, not 3"),
        ({"obs_dtype": np.float64}, "obs_dtype must be float32 or uint8, not float64"),
        ({"action_dtype": "complex64"}, "action_dtype must be float32, int64, int32 or uint8, not complex64"),
        ({"obs_shape": (3, 0)}, "obs_shape"),
        ({"n_step": 0}, "n_step must be at least 1, not 0"),
        ({"gamma": 1.5}, r"gamma must be between 0 and 1, not 1\.5"),
        ({"next_obs": "guessed"}, "next_obs must be 'stored' or 'derived', not 'guessed'"),
    ],
)
def test_unusable_settings_are_refused(make: Maker, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(**({"capacity": 10, "obs_shape": 3, "action_shape": 1} | kwargs))


def test_sampling_lets_other_threads_run(make: Maker) -> None:
    buffer = make(64, 30_000, 1)
    obs, action = np.zeros(30_000, np.float32), np.zeros(1, np.float32)
    for _ in range(64):
        buffer.push(obs, action, 0.0, False, False, obs)
    out, turns, done = buffer.batch(64), [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(20):
        buffer.sample(64, out)
    done.set()
    thread.join()
    assert turns[0] > 20
