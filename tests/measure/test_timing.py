"""The timing of arms against each other, without a clock."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from mileage.measure import Arm, Cause, MockExecutor, Sample, Turn, timing
from mileage.measure.timing import ClockExecutor, Measurement, Work, compare


def arm(name: str) -> Arm[Work]:
    return Arm(name, Work(lambda: None))


def measurement(*walls: float) -> Measurement:
    return Measurement("a", 1, (), tuple(Sample("a", wall, 2 * wall) for wall in walls))


def test_arms_alternate_and_each_leads_in_turn() -> None:
    executor = MockExecutor({name: itertools.repeat(1.0) for name in "abc"})
    compare("job", [arm(name) for name in "abc"], rounds=4, warmups=1, executor=executor)
    assert "".join(name for name, _ in executor.log) == "abc" + "abc" + "bca" + "cab" + "abc"


def test_short_arms_are_repeated_as_the_last_warmup_suggests() -> None:
    # 0.5 ms: ten times make 5 ms. The first warm-up, which compiles, does not count.
    executor = MockExecutor({"a": [3.0, 0.0005, 0.0004], "b": [3.0, 3.0, 3.0]})
    got = compare("job", [arm("a"), arm("b")], rounds=1, executor=executor)
    assert (got["a"].repeats, got["b"].repeats) == (10, 1)
    assert [sample.wall_seconds for sample in got["a"].warmups] == [3.0, 0.0005]
    assert [sample.wall_seconds for sample in got["a"].samples] == [0.0004]


def test_ratio_is_taken_within_rounds() -> None:
    # The machine is ten times slower in round 2; within each round b takes 2, 3 and 2 times as long.
    executor = MockExecutor({"a": [1.0, 1.0, 10.0, 1.0], "b": [2.0, 2.0, 30.0, 2.0]})
    got = compare("job", [arm("a"), arm("b")], rounds=3, warmups=1, executor=executor)
    assert got.ratio("b", "a") == 2.0


def test_summary() -> None:
    # Quartiles of 1 2 3 4 5 are 2 and 4: spread (4 - 2) / 3.
    got = measurement(1.0, 5.0, 3.0, 2.0, 4.0)
    assert (got.median, got.median_cpu, got.best) == (3.0, 6.0, 1.0)
    assert got.spread == pytest.approx(2 / 3)
    assert got.cautions == (Cause.NOISY,)
    assert measurement(1.0, 1.0, 1.0).cautions == (Cause.FEW_ROUNDS,)
    assert measurement(*[1.0] * 5).cautions == ()


def test_record_keeps_every_sample() -> None:
    record = measurement(1.0, 2.0).record()
    assert record["samples"] == ({"wall": 1.0, "cpu": 2.0}, {"wall": 2.0, "cpu": 4.0})
    assert record["median"] == 1.5
    assert record["cautions"] == ["FEW_ROUNDS", "NOISY"]


def test_clock_executor_runs_what_it_is_told() -> None:
    calls: list[str] = []
    arm = Arm("a", Work(lambda: calls.append("run"), lambda: calls.append("prepare")))
    sample = ClockExecutor().attempt(arm, Turn("a", repeats=3))
    assert calls == ["prepare", "run", "run", "run"]
    assert sample.wall_seconds > 0.0


@pytest.mark.parametrize(
    ("arms", "options", "message"),
    [
        ([], {}, "arms must"),
        ([arm("a"), arm("a")], {}, "arms must"),
        ([arm("a")], {"rounds": 0}, "rounds and warmups"),
        ([arm("a")], {"warmups": 0}, "rounds and warmups"),
    ],
)
def test_wrong_arguments_are_named(arms: list[Arm[Work]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare("job", arms, **options)


def test_unknown_arm_is_named() -> None:
    got = compare("job", [arm("a")], rounds=1, warmups=1, executor=MockExecutor({"a": [1.0, 1.0]}))
    with pytest.raises(ValueError, match="no arm 'b'"):
        got["b"]


def test_times_are_per_job_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    # A call of 64 jobs, 10 µs each, takes 640 µs: seven of them stay within 5 ms.
    executor = MockExecutor({"a": [1e-5, 1e-5, 1e-5]})
    got = compare("job", [Arm("a", Work(units=64))], rounds=1, executor=executor)
    assert got["a"].repeats == 7
    # Two seconds for 4 calls of 5 jobs each, and one of CPU.
    ticks = {"perf_counter": iter([10.0, 12.0]).__next__, "process_time": iter([1.0, 2.0]).__next__}
    monkeypatch.setattr(timing, "time", SimpleNamespace(**ticks))
    assert ClockExecutor().attempt(Arm("a", Work(units=5)), Turn("a", repeats=4)) == Sample("a", 0.1, 0.05)


def test_an_arm_may_time_itself() -> None:
    asked: list[int] = []

    def timer(repeats: int) -> tuple[float, float]:
        asked.append(repeats)
        return 0.001, 0.002

    got = compare("job", [Arm("a", Work(timer=timer)), arm("b")], rounds=2, warmups=1)
    assert asked == [1, 5, 5]
    assert [(each.wall_seconds, each.cpu_seconds) for each in got["a"].samples] == [(0.001, 0.002)] * 2


@pytest.mark.parametrize(("budget", "rounds"), [(None, 9), (100.0, 9), (7.0, 7), (0.0, 5)])
def test_a_budget_cuts_rounds_of_slow_arms(budget: float | None, rounds: int) -> None:
    # Both arms together take a second a round.
    executor = MockExecutor({"a": itertools.repeat(0.25), "b": itertools.repeat(0.75)})
    got = compare("job", [arm("a"), arm("b")], rounds=9, budget=budget, executor=executor)
    assert len(got["a"].samples) == rounds


def test_instabilities_are_those_of_the_samples_in_order() -> None:
    found = measurement(5.0, 1.0, 1.01, 0.99, 1.0).caveats
    assert [(each.arm, each.cause) for each in found] == [("a", Cause.SLOW_START)]
    assert measurement(1.0, 1.0, 1.0, 1.0, 1.0).caveats == ()


def test_every_call_is_kept_in_turn() -> None:
    calls: list[str] = []
    arms = {name: lambda name=name: calls.append(name) for name in "ab"}
    taken = timing.every_call(arms, seconds=0.0, prepare=lambda name: calls.append(f"for {name}"), least_rounds=3)
    # One call each to warm up, then three rounds in which a, b and a lead.
    assert "".join(call for call in calls if "for" not in call) == "ab" + "ab" + "ba" + "ab"
    assert calls[:2] == ["for a", "a"]
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 3, "b": 3}
