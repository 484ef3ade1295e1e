"""`VecEnv.step`: what it takes, what it refuses, what it remembers of the last call."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from mileage.envs import VecEnv
from mileage.errors import UsageError


def both(name: str, n: int) -> tuple[VecEnv, VecEnv]:
    envs = VecEnv(name, n, seed=4), VecEnv(name, n, seed=4)
    for each in envs:
        each.reset()
    return envs


def actions(vec: VecEnv, steps: int) -> Any:
    rng = np.random.default_rng(0)
    if vec.spec.n_actions:
        return rng.integers(0, vec.spec.n_actions, (steps, vec.num_envs))
    return rng.normal(size=(steps, vec.num_envs, vec.spec.action_size)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "n"), [("CartPole-v1", 1), ("CartPole-v1", 8), ("CartPole-v1", 130), ("Pendulum-v1", 5)]
)
def test_an_array_that_is_written_to_again_steps_as_new_ones_do(name: str, n: int) -> None:
    fast, plain = both(name, n)
    ended = 0
    rows = actions(plain, 260)
    same = np.empty_like(rows[0])
    for row in rows:
        same[...] = row
        got, want = fast.step(same), plain.step(row)
        assert [part is array for part, array in zip(got, (fast.obs, fast.reward), strict=False)] == [True, True]
        for one, other in zip(got[:4], want[:4], strict=True):
            np.testing.assert_array_equal(one, other)
        assert got[4].keys() == want[4].keys()
        for key in want[4]:
            np.testing.assert_array_equal(got[4][key], want[4][key])
        ended += bool(want[4])
    assert ended > 0


def test_what_is_not_ready_for_compiled_code_is_converted_or_refused() -> None:
    fast, plain = both("CartPole-v1", 4)
    for odd in ([0, 1, 1, 0], np.array([0, 1, 1, 0], np.uint8), np.array([0, 9, 1, 9, 1, 9, 0, 9])[::2]):
        np.testing.assert_array_equal(fast.step(odd)[0], plain.step(np.array([0, 1, 1, 0]))[0])
    before = fast.state.copy()
    for wrong, message in (
        (np.zeros(3, np.int64), "of shape"),
        (np.zeros((2, 2), np.int64), "of shape"),
        (np.zeros(4), "must be integers"),
        (np.array([0, 1, 2, 0]), "from 0 to 1"),
        (np.array([0, 1, -1, 0]), "from 0 to 1"),
        ("left", "must be integers"),
        (None, "must be integers"),
    ):
        with pytest.raises(UsageError, match=message):
            fast.step(wrong)  # type: ignore[arg-type]
    np.testing.assert_array_equal(fast.state, before)
    with pytest.raises(TypeError):
        fast.step()  # type: ignore[call-arg]


def test_nothing_is_no_action() -> None:
    with pytest.raises(UsageError, match="must be integers"):
        VecEnv("CartPole-v1", 4).step(None)  # type: ignore[arg-type]


def test_infos_are_a_new_dict_every_time() -> None:
    fast, _ = both("CartPole-v1", 2)
    fast.step(np.zeros(2, np.int64))[4]["mine"] = 1
    assert fast.step(np.zeros(2, np.int64))[4] == {}
    for _ in range(2):
        fast.state[0, 0] = 2.5  # beyond the track
        infos = fast.step(np.zeros(2, np.int64))[4]
        assert infos.keys() == {"final_obs", "_final_obs"}
        infos["mine"] = 1


def test_nothing_is_kept_or_lost() -> None:
    fast, _ = both("CartPole-v1", 8)
    rows = actions(fast, 500)
    step = fast.step
    things = (fast.obs, fast.reward, fast.terminated, fast.truncated, fast.final_obs, fast._done, rows)
    before = [sys.getrefcount(thing) for thing in things]
    for row in rows:
        step(row)
    del row
    step(np.zeros(8, np.int64))  # the last array is kept, and with it what it is a view of
    assert [sys.getrefcount(thing) for thing in things] == before


def test_the_function_keeps_what_it_needs_and_no_more() -> None:
    vec = VecEnv("CartPole-v1", 3)
    vec.reset()
    gone, step, state = weakref.ref(vec), vec.step, vec.state
    del vec
    gc.collect()
    step(np.zeros(3, np.int64))
    assert state.any()
    del step
    gc.collect()
    assert gone() is None


def test_subclass_with_a_step_of_its_own_keeps_it() -> None:
    class Counting(VecEnv):
        calls = 0

        def step(self, actions: Any) -> Any:  # type: ignore[override]
            self.calls += 1
            return super().step(actions)

    vec = Counting("CartPole-v1", 2)
    vec.reset()
    for _ in range(3):
        vec.step(np.zeros(2, np.int64))
    assert vec.calls == 3
