"""Why numbers are to be read with care."""

from __future__ import annotations

import pytest

from mileage.errors import UsageError
from mileage.measure import Cause, Caveat, Outcome, Sample, find_caveats, instabilities

STEADY = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00, 1.01, 0.99]


def causes(seconds: list[float]) -> set[Cause]:
    return {caveat.cause for caveat in instabilities(seconds)}


def test_steady_timings_have_no_caveats() -> None:
    assert instabilities(STEADY) == ()


def test_each_instability_is_found_with_its_evidence() -> None:
    assert causes([3.0, *STEADY]) == {Cause.SLOW_START}
    assert instabilities([3.0, *STEADY])[0].evidence == "the first run took 3 s, the median is 1 s"
    assert causes([*STEADY, 3.0]) == {Cause.OUTLIERS}
    assert causes([1.0 + 0.005 * i for i in range(12)]) == {Cause.DRIFT}
    assert "slower" in instabilities([1.0 + 0.005 * i for i in range(12)])[0].evidence
    assert "faster" in instabilities([2.0 - 0.005 * i for i in range(12)])[0].evidence
    assert causes([1.0, 1.5, 0.7, 1.3, 0.8, 1.2, 0.9, 1.4]) == {Cause.WIDE_SPREAD}


def test_of_three_runs_a_first_that_took_a_quarter_longer_than_any_is_a_slow_start() -> None:
    assert Cause.SLOW_START in causes([14.0, 10.0, 10.1])
    assert Cause.SLOW_START not in causes([12.0, 10.0, 10.1])
    assert Cause.SLOW_START not in causes([2.0, 1.0])


def test_every_cause_names_what_it_means_and_what_to_try() -> None:
    for cause in Cause:
        assert cause.sentence
        assert cause.remedy
        assert str(Caveat(cause, "")) == f"{cause.sentence}: {cause.remedy}"
    assert "warm-up" in Cause.SLOW_START.remedy


def test_no_timings_are_refused() -> None:
    with pytest.raises(UsageError, match="values must be"):
        instabilities([])


def test_caveats_belong_to_an_arm_and_a_kind_and_speak_as_the_command_does() -> None:
    steady = [Sample("a", 1.0, kind="cold", round=n) for n in range(3)]
    bad = Sample("a", 9.0, outcome=Outcome.FAILED, kind="warm", diagnostic="no such file")
    late = Sample("a", 9.0, outcome=Outcome.TIMEOUT, kind="warm")
    found = find_caveats([*steady, bad, late], {Cause.TIMEOUTS: "raise --timeout"})
    assert [(each.kind, each.cause, each.evidence) for each in found] == [
        ("warm", Cause.FAILURES, "1 of 2: no such file"),
        ("warm", Cause.TIMEOUTS, "1 of 2"),
        ("warm", Cause.FEW_RUNS, "0 good runs"),
    ]
    assert str(found[1]) == "some runs hit the timeout: raise --timeout"
    assert str(found[2]) == "too few runs for an interval: measure at least three"
