"""The result of one test, and how several reports of the same test become one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

LONGEST_MESSAGE = 2000
MOST_TESTS = 200_000


class TestOutcome(StrEnum):
    """What became of a test."""

    __test__ = False  # not a test class, whatever its name

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    """It could not be run to its end, or its reports contradict each other."""
    SKIPPED = "skipped"


@dataclass(frozen=True)
class TestResult:
    """What one test did."""

    __test__: ClassVar[bool] = False

    name: str
    """The test's full name; the same in every run of the same tests."""
    outcome: TestOutcome
    seconds: float | None = None
    """How long it took, where the runner says so."""
    message: str = ""
    """What it complained about, bounded."""

    @property
    def passed(self) -> bool:
        """Whether the test ran and passed."""
        return self.outcome is TestOutcome.PASSED


# The worst report of a test counts.
_BADNESS = {TestOutcome.PASSED: 0, TestOutcome.SKIPPED: 1, TestOutcome.FAILED: 2, TestOutcome.ERROR: 3}


def merged(results: Iterable[TestResult]) -> tuple[TestResult, ...]:
    """One result for each name, in order of first appearance: a test that is reported twice is what it is at worst."""
    found: dict[str, TestResult] = {}
    for result in results:
        is_long = len(result.message) > LONGEST_MESSAGE
        short = replace(result, message=result.message[:LONGEST_MESSAGE]) if is_long else result
        known = found.get(result.name)
        if known is None and len(found) >= MOST_TESTS:
            continue
        if known is None or _BADNESS[short.outcome] > _BADNESS[known.outcome]:
            found[result.name] = short
    return tuple(found.values())


def seconds_of(value: object) -> float | None:
    """A duration as a runner wrote it; None for anything that is not a finite number of seconds."""
    try:
        seconds = float(str(value).replace(",", ""))
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < float("inf") else None
