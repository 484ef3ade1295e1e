"""What a test runner says past its output, which anybody can write to, and what results are worth without it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from mileage.coderl.outcomes.results import TestOutcome, TestResult

NOT_TOLD = "its output says that it passed, and the test runner does not"


def confirmed(results: tuple[TestResult, ...], told: Set[str], known: Set[str]) -> tuple[TestResult, ...]:
    """The results, but for passes that the runner should have told, and did not.

    It tells `pass NAME` or `other NAME` of a test and `end PACKAGE` when it is through with a package; `known` is what
    it told where it was right. What it did not speak of there need not be told.
    """
    names = {line.partition(" ")[2] for line in known if line.startswith(("pass ", "other "))}
    packages = {line.partition(" ")[2] for line in known if line.startswith("end ")}

    def is_missing(name: str) -> bool:
        package = name.partition("::")[0]
        return (name in names and f"pass {name}" not in told) or (package in packages and f"end {package}" not in told)

    return tuple(
        replace(result, outcome=TestOutcome.ERROR, message=NOT_TOLD)
        if result.passed and is_missing(result.name)
        else result
        for result in results
    )
