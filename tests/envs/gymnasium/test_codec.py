"""Observations and actions of any space as rows, against Gymnasium's own flattening and membership."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from mileage.envs.spaces import SpaceCodec
from mileage.errors import UsageError

ONE = spaces.Discrete(2)
VECTOR = spaces.Box(-1.0, 1.0, (3,))
OBSERVATIONS: dict[str, Any] = {
    "vector": VECTOR,
    "double precision": spaces.Box(-1.0, 1.0, (3,), np.float64),
    "scalar": spaces.Box(-1.0, 1.0, ()),
    "matrix": spaces.Box(-1.0, 1.0, (3, 4)),
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "discrete": spaces.Discrete(5),
    "discrete from 7": spaces.Discrete(3, start=7),
    "discrete from below": spaces.Discrete(3, start=-2),
    "several": spaces.MultiDiscrete([3, 1, 4]),
    "a grid of choices": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "bits": spaces.MultiBinary(4),
    "a grid of bits": spaces.MultiBinary((2, 3)),
    "tuple": spaces.Tuple((spaces.Discrete(3, start=1), VECTOR)),
    "dict": spaces.Dict(where=spaces.Box(-1.0, 1.0, (2, 2)), what=spaces.Discrete(4)),
    "nested": spaces.Dict(a=spaces.Tuple((spaces.Discrete(3), spaces.Dict(x=VECTOR))), b=spaces.MultiBinary(2)),
}
ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(3),
    "discrete from 7": spaces.Discrete(3, start=7),
    "box": spaces.Box(-2.0, 2.0, (2,)),
    "matrix": spaces.Box(-2.0, 2.0, (2, 3)),
    "scalar": spaces.Box(0.0, 1.0, ()),
    "whole numbers": spaces.Box(0, 5, (2,), np.int32),
    "several": spaces.MultiDiscrete([3, 2]),
    "several from elsewhere": spaces.MultiDiscrete([3, 2], start=[5, -1]),
    "a grid": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "bits": spaces.MultiBinary(3),
    "tuple": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2, start=1))),
    "dict": spaces.Dict(push=spaces.Box(-1.0, 1.0, (1, 2)), gear=spaces.Discrete(4), lamps=spaces.MultiBinary(2)),
    "nested": spaces.Dict(a=spaces.Tuple((spaces.MultiDiscrete([2, 2]), spaces.Box(0.0, 1.0, (1,)))), b=ONE),
}


def drawn(space: Any, n: int) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(n)]


def batched(space: Any, items: list[Any]) -> Any:
    return concatenate(space, items, create_empty_array(space, len(items)))


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_rows_are_what_gymnasium_flattens_to(space: Any) -> None:
    codec = SpaceCodec("x", space, ONE)
    items = drawn(space, 6)
    want = np.stack([spaces.flatten(space, item) for item in items]).astype(np.float32).reshape(6, -1)
    for item, row in zip(items, want, strict=True):
        found, single = codec.rows(item)
        assert single
        np.testing.assert_array_equal(found, [row])
        np.testing.assert_array_equal(codec.flatten(item), row)
        assert codec.flat_space.contains(codec.flatten(item))
    found, single = codec.rows(batched(space, items))
    assert not single
    np.testing.assert_array_equal(found, want)
    assert found.dtype == np.float32


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_rows_pass_as_they_are(space: Any) -> None:
    codec = SpaceCodec("x", space, ONE)
    rows = codec.rows(batched(space, drawn(space, 4)))[0]
    if codec.obs_size > 1:
        np.testing.assert_array_equal(codec.rows(rows.astype(np.float32))[0], rows)


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_packed_rows_hold_every_part(space: Any) -> None:
    codec = SpaceCodec("x", space, ONE, packed=True)
    assert codec.leaves is not None
    items = drawn(space, 4)
    rows, single = codec.rows(batched(space, items))
    assert not single
    one, single = codec.rows(items[2])
    assert single
    np.testing.assert_array_equal(one[0], rows[2])
    flat = np.concatenate(
        [rows[:, leaf.start : leaf.stop].copy().view(leaf.dtype).astype(np.float32) for leaf in codec.leaves], axis=1
    )
    np.testing.assert_array_equal(flat, SpaceCodec("x", space, ONE).rows(batched(space, items))[0])


@pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS)
def test_actions_are_as_the_environment_takes_them(space: Any) -> None:
    codec, rng, n = SpaceCodec("x", VECTOR, space), np.random.default_rng(0), 50
    choices = np.stack([rng.integers(0, size, n) for size in codec.branches], axis=1) if codec.branches else None
    if codec.n_actions:
        assert choices is not None
        rows = choices[:, 0]
    else:
        free = len(codec.branches)
        numbers = rng.uniform(codec.action_low[free:], codec.action_high[free:], (n, codec.numbers))
        rows = np.concatenate([*(() if choices is None else (choices,)), numbers], axis=1).astype(np.float32)
        assert len(codec.action_low) == len(codec.branches) + codec.numbers
    for row in rows[:, None]:
        assert space.contains(codec.actions(np.asarray(row), True)), codec.actions(np.asarray(row), True)
    together = codec.actions(rows, False)
    assert batch_space(space, n).contains(together)
    items = iterate(batch_space(space, n), codec.actions(rows, False, apart=True))
    for item, row in zip(items, rows[:, None], strict=True):
        alone = codec.actions(np.asarray(row), True)
        assert space.contains(item)
        np.testing.assert_array_equal(spaces.flatten(space, item), spaces.flatten(space, alone))


def test_every_choice_of_every_part_is_reached() -> None:
    codec = SpaceCodec("x", VECTOR, ACTIONS["several from elsewhere"])
    found = {tuple(codec.actions(np.array([[i, j]], np.float32), True)) for i in range(3) for j in range(2)}
    assert found == {(i, j) for i in (5, 6, 7) for j in (-1, 0)}


@pytest.mark.parametrize(
    ("space", "given", "message"),
    [
        (VECTOR, np.zeros(4), "shape"),
        (VECTOR, {"a": 1}, "shape"),
        (VECTOR, "left", "shape"),
        (spaces.Discrete(3), np.zeros((2, 2), int), "shape"),
        (OBSERVATIONS["tuple"], (1,), "no part '1'"),
        (OBSERVATIONS["tuple"], 3.0, "no part '0'"),
        (OBSERVATIONS["dict"], {"where": np.zeros((2, 2))}, r"a dict with \['"),
        (OBSERVATIONS["dict"], {"where": np.zeros((3, 2, 2)), "what": np.zeros(2, int)}, "one length"),
        (OBSERVATIONS["dict"], {"where": np.zeros((2, 2)), "what": np.zeros(2, int)}, "one length"),
        (OBSERVATIONS["dict"], {"where": [[1.0], [1.0, 2.0]], "what": 1}, "'where'"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(space: Any, given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SpaceCodec("x", space, ONE).rows(given)


def test_spaces_that_rows_cannot_hold_are_refused() -> None:
    words = spaces.Text(5)
    with pytest.raises(UsageError, match="'x' has observations"):
        SpaceCodec("x", spaces.Dict(a=VECTOR, b=words), ONE)
    with pytest.raises(UsageError, match=r"'x' has actions .*wrap it to take Discrete"):
        SpaceCodec("x", VECTOR, spaces.Tuple((ONE, words)))


def test_masks_of_any_form() -> None:
    codec = SpaceCodec("x", VECTOR, spaces.MultiDiscrete([3, 2]))
    want = [[1, 0, 1, 0, 1]] * 2
    for given in ([1, 0, 1, 0, 1], np.array(want, bool), (np.array([1, 0, 1]), np.array([0, 1]))):
        np.testing.assert_array_equal(codec.masks(given, 2), want)
    parts = SpaceCodec("x", VECTOR, ACTIONS["dict"])
    np.testing.assert_array_equal(
        parts.masks({"gear": [1, 1, 0, 0], "lamps": [1, 0, 0, 1]}, 1), [[1, 1, 0, 0, 1, 0, 0, 1]]
    )
    with pytest.raises(UsageError, match=r"'gear' must have 4 entries"):
        parts.masks({"gear": [1, 1], "lamps": [1, 0, 0, 1]}, 1)
    with pytest.raises(UsageError, match=r"\(5,\) or \(2, 5\)"):
        codec.masks([1, 0], 2)
    with pytest.raises(UsageError, match="at least one choice"):
        codec.masks([1, 1, 1, 0, 0], 2)
    with pytest.raises(UsageError, match="discrete actions"):
        SpaceCodec("x", VECTOR, VECTOR).masks([1, 1, 1], 1)


def test_gymnasium_environments_with_masks_are_known_as_such() -> None:
    from mileage.envs import GymnasiumEnv

    spec = GymnasiumEnv("Taxi-v4")
    assert spec.masked
    env = spec.vector(3, seed=1)
    env.reset()
    rng = np.random.default_rng(0)
    inner = gymnasium.make("Taxi-v4")
    for _ in range(250):
        masks = env.masks
        assert masks is not None
        for state, mask in zip(env.obs.argmax(axis=1), masks, strict=True):
            np.testing.assert_array_equal(mask, inner.unwrapped.action_mask(int(state)))  # type: ignore[attr-defined]
        _, _, terminated, truncated, infos = env.step([rng.choice(np.flatnonzero(mask)) for mask in masks])
        for i in np.flatnonzero(truncated & ~terminated):
            last = int(infos["final_obs"][i].argmax())
            np.testing.assert_array_equal(infos["final_masks"][i], inner.unwrapped.action_mask(last))  # type: ignore[attr-defined]
    env.close()
    assert not GymnasiumEnv("FrozenLake-v1").masked


@pytest.mark.parametrize(
    ("space", "odd"),
    [
        (spaces.Discrete(5), [-1, 5, 2.5]),
        (spaces.Discrete(5, start=3), [2, 8]),
        (spaces.MultiDiscrete([3, 2]), [[3, 0], [0, 2], [-1, 0], [0.5, 0.0]]),
    ],
)
def test_a_choice_that_there_is_not_is_no_observation(space: Any, odd: list[Any]) -> None:
    codec = SpaceCodec("x", space, spaces.Discrete(2))
    for each in odd:
        with pytest.raises(UsageError, match=r"^observation must be one of (Multi)?Discrete"):
            codec.rows(each)
    with pytest.raises(UsageError, match="must be whole numbers"):
        codec.flatten("a")
