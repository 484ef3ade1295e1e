"""Calls that are timed inside a program: what is counted, and what the program can see of it."""

from __future__ import annotations

import abc
import copy
import pickle
import traceback
import warnings

import pytest

from mileage.profiling.programs.mileage_inside import lanes
from mileage.profiling.programs.mileage_inside.imports import without_ours
from mileage.profiling.programs.mileage_inside.lanes import KIND_BITS, KINDS, time_family, timed


class Clock:
    """A clock that functions under test move."""

    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(lanes, "_now", found)
    lanes.only_this_thread()
    return found


def counted() -> list[tuple[str, int, int]]:
    """Kind, whole and own time of every call so far."""
    (lane,) = lanes.LANES
    numbers = iter(lane.calls)
    rows = zip(numbers, numbers, numbers, strict=True)
    return [(KINDS[start & ((1 << KIND_BITS) - 1)], end - (start >> KIND_BITS), own) for start, end, own in rows]


def test_a_reset_within_a_step_is_not_the_steps_own(clock: Clock) -> None:
    def reset() -> None:
        clock.now += 30

    quick = timed(reset, KINDS.index("env.reset"))

    def step() -> str:
        clock.now += 5
        quick()
        clock.now += 7
        return "done"

    slow = timed(step, KINDS.index("env.step"))
    assert slow() == "done"
    assert counted() == [("env.reset", 30, 30), ("env.step", 42, 12)]


def test_of_calls_within_each_other_the_outermost_counts(clock: Clock) -> None:
    def inner() -> None:
        clock.now += 4

    within = timed(inner, KINDS.index("env.step"))

    def outer() -> None:
        clock.now += 1
        within()

    timed(outer, KINDS.index("env.step"))()
    assert counted() == [("env.step", 5, 5)]


def test_an_evaluation_takes_in_what_it_calls(clock: Clock) -> None:
    def step() -> None:
        clock.now += 4

    stepped = timed(step, KINDS.index("env.step"))
    timed(lambda: [stepped() for _ in range(3)], KINDS.index("evaluation"))()
    assert counted() == [("evaluation", 12, 12)]


def test_a_call_that_fails_is_counted_and_leaves_nothing_open(clock: Clock) -> None:
    def step() -> None:
        clock.now += 2
        raise KeyError("x")

    stepped = timed(step, KINDS.index("env.step"))
    for _ in range(2):
        with pytest.raises(KeyError):
            stepped()
    assert counted() == [("env.step", 2, 2)] * 2


def test_hooks_count_like_calls(clock: Clock) -> None:
    kind = KINDS.index("optimizer.step")
    token = lanes.opened(kind)
    assert lanes.opened(kind) is None
    clock.now += 9
    lanes.closed(kind, token)
    assert counted() == [("optimizer.step", 9, 9)]


class Base(abc.ABC):
    @abc.abstractmethod
    def step(self, action: int) -> int: ...

    @classmethod
    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.seen = True  # type: ignore[attr-defined]


def test_a_class_shows_the_functions_it_was_given(clock: Clock) -> None:
    def step(self: object, action: int) -> int:
        """Steps."""
        clock.now += 3
        return action + 1

    time_family(Base, {"step": KINDS.index("env.step")})
    made = type("Made", (Base,), {"step": step})
    assert made.step is step
    assert made.seen  # type: ignore[attr-defined]
    assert made().step(1) == 2
    assert made().step.__doc__ == "Steps."
    assert counted() == [("env.step", 3, 3)]
    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]


def test_a_copy_for_another_process_has_nothing_of_ours() -> None:
    method = lanes.TimedMethod(counted, KINDS.index("env.step"))  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(method)) is counted
    assert copy.copy is method.__reduce__()[0]


def test_warnings_name_the_line_that_called() -> None:
    def old(self: object) -> None:
        warnings.warn("old", UserWarning, stacklevel=2)

    call = timed(old, KINDS.index("env.step"))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call(None)
    assert found[0].filename == __file__


def test_tracebacks_are_the_programs_own() -> None:
    def fails() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here") as caught:
        timed(fails, KINDS.index("env.step"))()
    names = [frame.name for frame in traceback.extract_tb(without_ours(caught.value.__traceback__))]
    assert names == ["test_tracebacks_are_the_programs_own", "fails"]
