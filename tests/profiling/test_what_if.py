"""Estimates and their intervals, from rounds that are made up."""

from __future__ import annotations

import math

import pytest

from mileage.profiling.probes import Allowance
from mileage.profiling.what_if import WhatIf, compared


def test_a_ratio_is_the_median_over_rounds_whatever_some_rounds_met() -> None:
    own = [1.0] * 20
    other = [0.5] * 17 + [5.0, 6.0, 7.0]
    ratio, (low, high) = compared(own, other)
    assert (ratio, low) == (0.5, 0.5)
    assert high == pytest.approx(0.5)


def test_few_rounds_leave_the_interval_open() -> None:
    ratio, ends = compared([1.0, 1.0, 1.0], [0.5, 0.5, 0.5])
    assert (ratio, ends) == (0.5, (0.0, math.inf))


def test_gains_add_up_over_phases_with_their_intervals() -> None:
    change = WhatIf(
        "threads", "--threads 2", {"learn": 0.5, "rollout": 1.0}, 2, {"learn": (0.4, 0.6), "rollout": (0.9, 1.1)}
    )
    shares = {"learn": 0.5, "rollout": 0.5}
    assert change.gain(shares) == pytest.approx(0.25)
    assert change.gain_interval(shares) == pytest.approx((0.15, 0.35))
    assert WhatIf("x", "y", {"learn": 0.5}).gain_interval({"learn": 0.5})[0] == -math.inf


def test_what_does_not_fit_into_the_allowance_is_left_out_and_named() -> None:
    allowance = Allowance(5.0)
    assert allowance.stage("long", 10.0, lambda: 1, 0) == 0
    assert allowance.stage("short", 0.0, lambda: 1, 0) == 1
    assert allowance.skipped == ["long"]


def test_an_interrupt_keeps_what_is_known() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    allowance = Allowance(5.0)
    assert [allowance.stage("first", 0.0, lambda: 1, 0), allowance.stage("second", 0.0, interrupted, 0)] == [1, 0]
    assert allowance.stage("third", 0.0, lambda: 1, 0) == 0
    assert allowance.interrupted
    assert allowance.skipped == ["second", "third"]


def test_replays_take_no_longer_than_the_run_and_two_seconds_at_least() -> None:
    assert Allowance.of_run(30.0).seconds == 30.0
    grows, given = Allowance.of_run(30.0), Allowance(30.0)
    # What is always measured lets a budget grow that nobody has set, and is then measured, however short of it.
    assert [each.stage("always", 60.0, lambda: 1, 0, always=True) for each in (grows, given)] == [1, 0]
    assert (grows.seconds > 60.0, given.seconds) == (True, 30.0)
    assert grows.stage("too long", 1000.0, lambda: 1, 0, always=True) == 0
    assert grows.seconds < 90.0
    assert Allowance.of_run(0.1).seconds == 2.0
