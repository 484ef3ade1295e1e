"""Ranking and wording of findings, by known answers."""

from __future__ import annotations

import pytest

from mileage.profiling.model import FIXES, WORTH_TRYING, Bottleneck, Finding, amdahl, ranked


def finding(bottleneck: Bottleneck, share: float, gain: float, fix: str | None = None) -> Finding:
    return Finding(bottleneck, share, "evidence", gain, "something", fix)


def test_the_line_reads_as_the_verdict() -> None:
    found = Finding(Bottleneck.LEARNER_BOUND, 0.71, "71 % in learn, 38 % of GEMM peak", 0.28, "--threads 2", "threads")
    assert found.line == "LEARN-BOUND: 71 % in learn, 38 % of GEMM peak; try --threads 2 (est. −28 % wall)"


def test_a_line_without_gain_promises_none() -> None:
    assert finding(Bottleneck.STARTUP_BOUND, 0.5, 0.0).line == "STARTUP-BOUND: evidence; try something"


def test_what_saves_most_comes_first_whatever_its_share() -> None:
    large = finding(Bottleneck.LEARNER_BOUND, 0.9, 0.0)
    small = finding(Bottleneck.LOGGING_BOUND, 0.3, 0.2)
    middle = finding(Bottleneck.EVALUATION_BOUND, 0.25, 0.21)
    assert ranked([large, small, middle]) == (middle, small, large)


def test_a_gain_not_worth_trying_does_not_lead() -> None:
    large = finding(Bottleneck.LEARNER_BOUND, 0.9, 0.0)
    little = finding(Bottleneck.LOGGING_BOUND, 0.04, WORTH_TRYING - 0.01)
    assert ranked([little, large]) == (large, little)


@pytest.mark.parametrize(("share", "speedup", "saved"), [(0.5, 2.0, 0.25), (0.8, 4.0, 0.6), (1.0, 1.0, 0.0)])
def test_amdahl(share: float, speedup: float, saved: float) -> None:
    assert amdahl(share, speedup) == pytest.approx(saved)


def test_plain_data_and_back() -> None:
    found = finding(Bottleneck.IDLE_CORES, 0.5, 0.1, "threads")
    assert Finding.from_dict(found.as_dict()) == found
    assert found.as_dict()["bottleneck"] == "idle_cores"
    assert found.fix in FIXES
