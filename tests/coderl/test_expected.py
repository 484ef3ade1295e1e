from __future__ import annotations

import pytest

from mileage.coderl.readers import Expected, TestOutcome, TestResult

PASSED, FAILED, SKIPPED = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.SKIPPED


def results(**outcomes: TestOutcome) -> tuple[TestResult, ...]:
    return tuple(TestResult(name, outcome) for name, outcome in outcomes.items())


BASE = results(old=PASSED, other=PASSED, new=FAILED, slow=SKIPPED)


def test_the_base_says_what_is_expected() -> None:
    expected = Expected.of(BASE)
    assert expected == Expected(frozenset({"new"}), frozenset({"old", "other"}))
    assert not Expected.of(())


def test_a_solution_says_it_better() -> None:
    solution = results(old=PASSED, other=FAILED, new=PASSED, fresh=PASSED)
    assert Expected.of(BASE, solution) == Expected(frozenset({"new", "fresh"}), frozenset({"old"}))


@pytest.mark.parametrize(
    ("candidate", "passed", "share"),
    [
        (results(old=PASSED, other=PASSED, new=PASSED, extra=FAILED), True, 1.0),
        (results(old=PASSED, other=PASSED, new=FAILED), False, 0.0),
        (results(old=PASSED, other=FAILED, new=PASSED), False, 0.0),
        (results(old=PASSED, new=PASSED), False, 0.0),
        (results(old=PASSED, other=SKIPPED, new=PASSED), False, 0.0),
        ((), False, 0.0),
    ],
)
def test_every_expected_test_must_report_and_pass(
    candidate: tuple[TestResult, ...], passed: bool, share: float
) -> None:
    score = Expected.of(BASE).score(candidate)
    assert (score.passed, score.share) == (passed, share)
    assert bool(score.diagnostic) is not passed


def test_partial_credit_is_the_share_of_what_was_to_be_repaired() -> None:
    expected = Expected(frozenset("abcd"), frozenset("xy"))
    assert expected.score(results(a=PASSED, b=FAILED, x=PASSED, y=PASSED)).share == 0.25
    assert expected.score(results(a=PASSED, b=PASSED, x=PASSED, y=FAILED)).share == 0.0
    assert Expected(pass_to_pass=frozenset("xyzw")).score(results(x=PASSED)).share == 0.25


def test_the_diagnostic_counts_and_names() -> None:
    expected = Expected(pass_to_pass=frozenset({"a", "b", "c", "d", "e"}))
    text = expected.score(results(a=FAILED)).diagnostic
    assert text == ("4 of 5 expected tests did not report: b, c, d and 1 more; 1 of 5 expected tests did not pass: a")
