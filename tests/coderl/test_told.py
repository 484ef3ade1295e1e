from __future__ import annotations

from mileage.coderl.tamper import confirmed
from mileage.coderl.test_results import TestOutcome, TestResult

PASSED = (TestResult("p::a", TestOutcome.PASSED), TestResult("p::b", TestOutcome.PASSED))
KNOWN = {"pass p::a", "other p::b", "end p", "ran t"}


def outcomes(told: set[str], known: set[str] = KNOWN) -> list[str]:
    return [str(result.outcome) for result in confirmed(PASSED, told, known)]


def test_a_pass_counts_if_the_runner_told_it_and_came_to_its_end() -> None:
    assert outcomes({"pass p::a", "pass p::b", "end p"}) == ["passed", "passed"]
    assert outcomes({"pass p::a", "other p::b", "end p"}) == ["passed", "error"]
    assert outcomes({"pass p::a", "pass p::b"}) == ["error", "error"]
    assert outcomes(set()) == ["error", "error"]


def test_what_the_runner_never_spoke_of_need_not_be_told() -> None:
    assert outcomes(set(), known=set()) == ["passed", "passed"]
    assert outcomes({"pass p::a"}, known={"pass p::a"}) == ["passed", "passed"]


def test_a_failure_needs_no_witness() -> None:
    failed = (TestResult("p::a", TestOutcome.FAILED, message="no"),)
    assert confirmed(failed, set(), KNOWN) == failed
