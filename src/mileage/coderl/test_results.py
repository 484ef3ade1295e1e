"""The result of one test, which tests a candidate must pass, and how it did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


# --- Which tests a candidate must pass, known before it is built, and how it did ---
SHOWN = 3


@dataclass(frozen=True)
class TestScore:
    """How a candidate did on the expected tests."""

    __test__ = False

    fail_to_pass: int
    """Tests that the base fails and the candidate is to pass."""
    fail_to_pass_passed: int
    pass_to_pass: int
    """Tests that the base passes and the candidate may not break."""
    pass_to_pass_passed: int
    missing: tuple[str, ...] = ()
    """Expected tests that were not reported at all."""
    broken: tuple[str, ...] = ()
    """Expected tests that were reported and did not pass."""

    @property
    def passed(self) -> bool:
        """Whether every expected test was reported, and passed."""
        return not self.missing and not self.broken

    @property
    def share(self) -> float:
        """Partial credit: 0 if anything was broken that worked, else the share of what was to be repaired.

        Where nothing was to be repaired, the share of the expected tests that pass.
        """
        if self.fail_to_pass == 0:
            return self.pass_to_pass_passed / self.pass_to_pass if self.pass_to_pass else 0.0
        kept = self.pass_to_pass_passed == self.pass_to_pass
        return self.fail_to_pass_passed / self.fail_to_pass if kept else 0.0

    @property
    def diagnostic(self) -> str:
        """What is wrong, in a sentence; empty if nothing is."""
        parts = []
        total = self.fail_to_pass + self.pass_to_pass
        if self.missing:
            parts.append(f"{len(self.missing)} of {total} expected tests did not report: {_listed(self.missing)}")
        if self.broken:
            parts.append(f"{len(self.broken)} of {total} expected tests did not pass: {_listed(self.broken)}")
        return "; ".join(parts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


@dataclass(frozen=True)
class Expected:
    """The tests that a candidate must pass."""

    fail_to_pass: frozenset[str] = frozenset()
    pass_to_pass: frozenset[str] = frozenset()

    @classmethod
    def of(cls, base: Iterable[TestResult], solution: Iterable[TestResult] | None = None) -> Expected:
        """What the base says: its passing tests stay, its failing ones are to pass.

        With the results of a solution known to be right, what that passes is expected, and nothing else.
        """
        before = {result.name: result.outcome for result in base}
        good = {name for name, outcome in before.items() if outcome is TestOutcome.PASSED}
        if solution is None:
            bad = {name for name, outcome in before.items() if outcome in (TestOutcome.FAILED, TestOutcome.ERROR)}
            return cls(frozenset(bad), frozenset(good))
        after = {result.name for result in solution if result.passed}
        return cls(frozenset(after - good), frozenset(after & good))

    def __bool__(self) -> bool:
        return bool(self.fail_to_pass or self.pass_to_pass)

    def score(self, results: Iterable[TestResult]) -> TestScore:
        """How a candidate whose tests said `results` did."""
        found = {result.name: result.passed for result in results}
        wanted = self.fail_to_pass | self.pass_to_pass
        return TestScore(
            fail_to_pass=len(self.fail_to_pass),
            fail_to_pass_passed=sum(found.get(name, False) for name in self.fail_to_pass),
            pass_to_pass=len(self.pass_to_pass),
            pass_to_pass_passed=sum(found.get(name, False) for name in self.pass_to_pass),
            missing=tuple(sorted(name for name in wanted if name not in found)),
            broken=tuple(sorted(name for name in wanted if found.get(name) is False)),
        )
