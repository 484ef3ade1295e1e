"""The order of an experiment, its budget, and going on where it was stopped."""

from __future__ import annotations

import itertools

import pytest

from mileage.errors import UsageError
from mileage.measure import Arm, Budget, MockExecutor, Sample, run, schedule

ARMS = [Arm("a", None), Arm("b", None)]


def played(**seconds: float) -> MockExecutor:
    return MockExecutor({name: itertools.repeat(value) for name, value in seconds.items()})


def test_each_round_visits_every_arm_once_kind_by_kind() -> None:
    plan = schedule(["a", "b", "c"], 5, ("cold", "warm"), seed=3)
    assert len(plan) == 30
    for start in range(0, 30, 3):
        block = plan[start : start + 3]
        assert {turn.arm for turn in block} == {"a", "b", "c"}
        assert len({(turn.kind, turn.round) for turn in block}) == 1
    assert [turn.kind for turn in plan] == ["cold"] * 15 + ["warm"] * 15
    assert [turn.order for turn in plan] == list(range(30))


def test_with_a_seed_the_order_is_random_and_repeatable() -> None:
    plans = [schedule(["a", "b"], 20, seed=seed) for seed in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]
    first = [plans[0][index].arm for index in range(0, 40, 2)]
    assert 4 <= first.count("a") <= 16


def test_without_a_seed_arms_lead_in_turn() -> None:
    assert "".join(turn.arm for turn in schedule(["a", "b", "c"], 4)) == "abc" + "bca" + "cab" + "abc"


def test_every_sample_is_kept_and_told_of_as_it_comes() -> None:
    seen: list[tuple[Sample, int, int]] = []
    executor = MockExecutor({"a": [1.0, 2.0], "b": [4.0, 5.0]})
    samples = run(ARMS, executor, schedule(["a", "b"], 2), on_sample=lambda *event: seen.append(event))
    assert [event[0] for event in seen] == list(samples)
    assert [event[1:] for event in seen] == [(done, 4) for done in range(1, 5)]
    assert [(s.arm, s.round, s.order, s.wall_seconds) for s in samples] == [
        ("a", 0, 0, 1.0), ("b", 0, 1, 4.0), ("b", 1, 2, 5.0), ("a", 1, 3, 2.0),
    ]  # fmt: skip


def test_arms_are_prepared_before_the_first_attempt_of_a_kind() -> None:
    executor = played(a=1.0, b=1.0)
    run(ARMS, executor, schedule(["a", "b"], 2, ("cold", "warm")))
    assert executor.prepared == [("a", "cold"), ("b", "cold"), ("a", "warm"), ("b", "warm")]


@pytest.mark.parametrize("killed_after", range(7))
def test_a_killed_experiment_goes_on_from_its_samples(killed_after: int) -> None:
    turns = schedule(["a", "b"], 3, seed=5)
    kept: list[Sample] = []

    def store(sample: Sample, done: int, total: int) -> None:
        if len(kept) == killed_after:
            raise KeyboardInterrupt
        kept.append(sample)

    if killed_after < 6:
        with pytest.raises(KeyboardInterrupt):
            run(ARMS, played(a=1.0, b=2.0), turns, on_sample=store)
    else:
        run(ARMS, played(a=1.0, b=2.0), turns, on_sample=store)
    assert len(kept) == killed_after
    again = played(a=1.0, b=2.0)
    samples = run(ARMS, again, turns, done=kept)
    assert samples == run(ARMS, played(a=1.0, b=2.0), turns)
    assert len(again.log) == 6 - killed_after
    # What has nothing left to measure is not prepared either.
    assert bool(again.prepared) == (killed_after < 6)


@pytest.mark.parametrize(
    ("budget", "rounds"),
    [
        (Budget(), 9),
        (Budget(seconds=100.0), 9),
        # A round takes a second; of 7.5 s the last half is not begun.
        (Budget(seconds=7.0), 7),
        (Budget(seconds=7.5), 7),
        (Budget(seconds=0.0), 0),
        (Budget(seconds=0.0, least_rounds=5), 5),
        (Budget(attempts=7), 3),
        (Budget(attempts=1, least_rounds=2), 2),
    ],
)
def test_a_budget_ends_an_experiment_between_rounds(budget: Budget, rounds: int) -> None:
    samples = run(ARMS, played(a=0.25, b=0.75), schedule(["a", "b"], 9), budget=budget)
    assert [sum(sample.arm == name for sample in samples) for name in "ab"] == [rounds, rounds]


@pytest.mark.parametrize("arms", [[], [Arm("a", None), Arm("a", None)]])
def test_arms_without_names_of_their_own_are_refused(arms: list[Arm[None]]) -> None:
    with pytest.raises(UsageError, match="arms must have distinct names"):
        run(arms, played(a=1.0), [])
