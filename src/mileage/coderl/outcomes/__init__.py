"""What tests said, one by one: `read_tests` for every common test runner, `Expected` for what they ought to say."""

from __future__ import annotations

from mileage.coderl.outcomes.expected import Expected, TestScore
from mileage.coderl.outcomes.formats import TestFormat, read_tests
from mileage.coderl.outcomes.results import TestOutcome, TestResult

__all__ = ["Expected", "TestFormat", "TestOutcome", "TestResult", "TestScore", "read_tests"]
