"""`push` and `push_batch`: what they take, what they refuse, what they remember of the last call."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mileage.buffers import PrioritizedReplay, ReplayBuffer
from mileage.errors import UsageError

OBS_DTYPES, ACTION_DTYPES = ("float32", "uint8"), ("float32", "int64", "int32", "uint8")
FLAG_DTYPES, REWARD_DTYPES = (np.bool_, np.uint8), (np.float32, np.float64)


def twins(*args: Any, **kwargs: Any) -> tuple[ReplayBuffer, ReplayBuffer]:
    return ReplayBuffer(*args, **kwargs), ReplayBuffer(*args, **kwargs)


def assert_same(one: ReplayBuffer, other: ReplayBuffer) -> None:
    """Everything that was ever written, byte for byte."""
    held, expected = one.saved_arrays(), other.saved_arrays()
    assert held.keys() == expected.keys()
    for name in held:
        np.testing.assert_array_equal(held[name], expected[name], err_msg=name)


def batch_of(rng: np.random.Generator, n: int, buffer: ReplayBuffer, reward: Any, flag: Any) -> tuple[Any, ...]:
    layout = buffer.layout
    obs, final = (rng.random((n, *layout.obs_shape)) * 200 for _ in range(2))
    return (
        obs.astype(layout.obs_dtype),
        (rng.random((n, *layout.action_shape)) * 100).astype(layout.action_dtype),
        rng.normal(size=n).astype(reward),
        (rng.random(n) < 0.2).astype(flag),
        (rng.random(n) < 0.2).astype(flag),
        final.astype(layout.obs_dtype),
    )


@settings(max_examples=60, deadline=None)
@given(
    n_envs=st.integers(1, 5),
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    obs_shape=st.sampled_from([(), (3,), (2, 5), (4097,)]),
    action_shape=st.sampled_from([(), (1,), (2, 2)]),
    dtypes=st.tuples(*(st.sampled_from(kinds) for kinds in (OBS_DTYPES, ACTION_DTYPES, REWARD_DTYPES, FLAG_DTYPES))),
    next_obs=st.sampled_from(["stored", "derived"]),
)
def test_arrays_that_are_written_to_again_are_stored_as_new_ones_are(
    n_envs: int, steps: list[int], obs_shape: Any, action_shape: Any, dtypes: Any, next_obs: str
) -> None:
    obs_dtype, action_dtype, reward, flag = dtypes
    settings_ = {"obs_dtype": obs_dtype, "action_dtype": action_dtype, "n_envs": n_envs, "next_obs": next_obs}
    fast, plain = twins(n_envs * 6, obs_shape or (1,), action_shape, **settings_)
    rng = np.random.default_rng(0)
    same: dict[int, tuple[Any, ...]] = {}
    for count in steps:
        batch = batch_of(rng, count * n_envs, fast, reward, flag)
        for array, new in zip(same.setdefault(count, tuple(np.empty_like(a) for a in batch)), batch, strict=True):
            array[...] = new
        fast.push_batch(*same[count])
        plain.push_batch(*batch)
    assert_same(fast, plain)


@pytest.mark.parametrize("position", range(6))
def test_one_new_array_among_known_ones_is_looked_at(position: int) -> None:
    fast, plain = twins(12, 3, 2, n_envs=2, next_obs="derived")
    rng = np.random.default_rng(0)
    batch = list(batch_of(rng, 2, fast, np.float32, np.bool_))
    for _ in range(3):
        fast.push_batch(*batch)
        plain.push_batch(*(array.copy() for array in batch))
        batch[position] = batch_of(rng, 2, fast, np.float64, np.uint8)[position]
    wrong = [*batch[:position], np.zeros((2, 9)), *batch[position + 1 :]]
    with pytest.raises(UsageError, match="must"):
        fast.push_batch(*wrong)
    fast.push_batch(*batch)
    plain.push_batch(*(array.copy() for array in batch))
    assert_same(fast, plain)


@settings(max_examples=40, deadline=None)
@given(
    obs_shape=st.sampled_from([(3,), (2, 5), (9000,)]),
    action_shape=st.sampled_from([(), (2,)]),
    dtypes=st.tuples(*(st.sampled_from(kinds) for kinds in (OBS_DTYPES, ACTION_DTYPES))),
    next_obs=st.sampled_from(["stored", "derived"]),
)
def test_single_transitions_are_stored_as_a_batch_of_one_is(
    obs_shape: Any, action_shape: Any, dtypes: Any, next_obs: str
) -> None:
    fast, plain = twins(7, obs_shape, action_shape, obs_dtype=dtypes[0], action_dtype=dtypes[1], next_obs=next_obs)
    rng = np.random.default_rng(0)
    for _ in range(20):
        obs, actions, rewards, terminated, truncated, final = batch_of(rng, 1, fast, np.float64, np.bool_)
        action = actions[0] if action_shape else actions[0].item()
        one = (obs[0], action, float(rewards[0]), bool(terminated[0]), truncated[0], final[0])
        fast.push(*one)
        plain.push_batch(obs, actions, rewards, terminated, truncated, final)
    assert_same(fast, plain)


@pytest.mark.parametrize(
    ("reward", "stored"),
    [
        (1.5, 1.5),
        (-3, -3.0),
        (-1, -1.0),
        (2**70, 2.0**70),
        (True, 1.0),
        (np.float64(2.25), 2.25),
        (np.float32(0.1), np.float32(0.1)),
        (np.int64(-1), -1.0),
        (np.int32(4), 4.0),
        (np.array(7.0), 7.0),
        (np.nan, np.nan),
    ],
)
def test_numbers_of_any_kind_are_rewards(reward: Any, stored: float) -> None:
    buffer = ReplayBuffer(4, 2)
    obs = np.zeros(2, np.float32)
    buffer.push(obs, 0.0, reward, False, False, obs)
    np.testing.assert_array_equal(buffer.sample(1).rewards, np.array([stored], np.float32))


@pytest.mark.parametrize(
    ("dtype", "action", "stored"),
    [
        ("float32", 0.1, np.float32(0.1)),
        ("float32", 3, 3.0),
        ("float32", np.float32(0.7), np.float32(0.7)),
        ("int64", -1, -1),
        ("int64", np.int64(2**40), 2**40),
        ("int64", np.array(5), 5),
        ("int32", -(2**31), -(2**31)),
        ("int32", np.int32(3), 3),
        ("uint8", 255, 255),
    ],
)
def test_numbers_of_any_kind_are_actions(dtype: str, action: Any, stored: Any) -> None:
    buffer = ReplayBuffer(4, 2, action_dtype=dtype)
    obs = np.zeros(2, np.float32)
    buffer.push(obs, action, 0.0, np.True_, np.False_, obs)
    batch = buffer.sample(1)
    assert batch.actions.tolist() == [stored]
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([True], [False])


class Odd(np.ndarray):
    """Not a plain array."""


def unaligned(array: Any) -> Any:
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    moved = memory.view(array.dtype).reshape(array.shape) if array.itemsize == 1 else None
    if moved is None:
        moved = np.ndarray(array.shape, array.dtype, memory.data)
    moved[...] = array
    assert array.itemsize == 1 or not moved.flags.aligned
    return moved


@pytest.mark.parametrize("change", [lambda array: array.view(Odd), unaligned], ids=["subclass", "unaligned"])
@pytest.mark.parametrize("next_obs", ["stored", "derived"])
def test_unusual_arrays_are_stored_all_the_same(change: Any, next_obs: str) -> None:
    fast, plain = twins(12, 3, 2, n_envs=2, next_obs=next_obs)
    rng = np.random.default_rng(0)
    for _ in range(9):
        batch = batch_of(rng, 4, fast, np.float32, np.bool_)
        fast.push_batch(*(change(array) for array in batch))
        plain.push_batch(*batch)
    assert_same(fast, plain)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplay])
def test_arguments_by_name_and_too_few_of_them(kind: Any) -> None:
    buffer = kind(8, 3, 1)
    obs, action, batch = np.ones(3, np.float32), np.ones(1, np.float32), np.ones((2, 3), np.float32)
    column, flags = np.ones((2, 1), np.float32), np.zeros(2, np.bool_)
    buffer.push(obs, action, reward=1.0, terminated=False, truncated=False, next_obs=obs)
    buffer.push_batch(
        obs=batch, actions=column, rewards=column[:, 0].copy(), terminated=flags, truncated=flags, next_obs=batch
    )
    assert len(buffer) == 3
    for wrong in (lambda: buffer.push(obs), lambda: buffer.push_batch(obs, nothing=1), lambda: buffer.push()):
        with pytest.raises(TypeError, match=r"argument"):
            wrong()
    assert len(buffer) == 3


@pytest.mark.parametrize("bad", [{"terminated": 0.5}, {"action": 2**63}, {"action": "left"}, {"action": 300}])
def test_what_is_neither_flag_nor_action_is_explained_or_converted(bad: dict[str, Any]) -> None:
    buffer = ReplayBuffer(4, 2, action_dtype="uint8")
    obs = np.zeros(2, np.float32)
    fields = {"action": 0, "terminated": False} | bad
    if bad == {"terminated": 0.5}:  # as NumPy sees it
        buffer.push(obs, fields["action"], 0.0, fields["terminated"], False, obs)
        assert buffer.sample(1).terminated.tolist() == [True]
        return
    with pytest.raises(UsageError, match="action"):
        buffer.push(obs, fields["action"], 0.0, fields["terminated"], False, obs)
    assert len(buffer) == 0


def test_nothing_is_no_batch() -> None:
    with pytest.raises(UsageError, match="obs must be a NumPy array"):
        ReplayBuffer(4, 2).push_batch(*[None] * 6)  # type: ignore[arg-type]


def test_big_endian_arrays_are_refused_by_name() -> None:
    buffer = ReplayBuffer(4, 2)
    swapped = np.ones(2, ">f4")
    with pytest.raises(UsageError, match="obs must have dtype float32, not >f4"):
        buffer.push(swapped, 0.0, 0.0, False, False, np.ones(2, np.float32))


def test_nothing_is_kept_or_lost() -> None:
    buffer = ReplayBuffer(64, 3, 1, n_envs=2, next_obs="derived")
    one = ReplayBuffer(64, 3, 1)
    batch = batch_of(np.random.default_rng(0), 2, buffer, np.float32, np.bool_)
    single = (batch[0][0], batch[1][0], 1234.5, False, True, batch[5][0])
    things = (*batch, *(part for part in single if not isinstance(part, bool)), buffer, one)
    buffer.push_batch(*batch)
    one.push(*single)
    before = [sys.getrefcount(thing) for thing in things]
    nothing = sys.getrefcount(None)
    for _ in range(500):
        buffer.push_batch(*batch)
        one.push(*single)
    assert [sys.getrefcount(thing) for thing in things] == before
    assert abs(sys.getrefcount(None) - nothing) < 100
    for _ in range(100):
        with pytest.raises(UsageError):
            one.push(batch[0], *single[1:])
    gc.collect()
    assert [sys.getrefcount(thing) for thing in things] == before


def test_a_bound_method_keeps_its_buffer() -> None:
    batch = batch_of(np.random.default_rng(0), 2, ReplayBuffer(4, 3, 1), np.float32, np.bool_)
    push = ReplayBuffer(4, 3, 1).push_batch
    gc.collect()
    push(*batch)
    assert len(push.__self__) == 2


def test_an_object_that_was_never_built_says_so() -> None:
    raw = ReplayBuffer.__new__(ReplayBuffer)
    obs = np.zeros(2, np.float32)
    with pytest.raises(AttributeError):
        raw.push(obs, 0.0, 0.0, False, False, obs)
    with pytest.raises(AttributeError):
        raw.push_batch(obs[None], obs[:1], obs[:1], obs[:1], obs[:1], obs[None])


def test_a_subclass_with_a_push_of_its_own_keeps_it() -> None:
    class Counting(ReplayBuffer):
        calls = 0

        def push(self, *args: Any) -> None:
            self.calls += 1
            super().push(*args)

    buffer, obs = Counting(9, 2), np.zeros(2, np.float32)
    for _ in range(3):
        buffer.push(obs, 0.0, 0.0, False, False, obs)
    assert (buffer.calls, len(buffer)) == (3, 3)


def test_long_pushes_let_other_threads_run() -> None:
    buffer = ReplayBuffer(256, 60_000, n_envs=64)
    batch = batch_of(np.random.default_rng(0), 64, buffer, np.float32, np.bool_)
    buffer.push_batch(*batch)
    go, ran = threading.Event(), []

    def wait() -> None:
        go.wait()
        ran.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # so that only letting go lets the other run
    try:
        go.set()
        for _ in range(5):
            buffer.push_batch(*batch)
        assert ran
    finally:
        sys.setswitchinterval(interval)
        thread.join()
