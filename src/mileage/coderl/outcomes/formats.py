"""Which runner wrote what, and its reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum

from mileage._errors import BuildError
from mileage.coderl.outcomes.results import TestOutcome, TestResult, merged
from mileage.coderl.outcomes.structured import read_go_json, read_junit, read_libtest_json
from mileage.coderl.outcomes.text import read_ctest, read_libtest, read_pytest, read_tap


class TestFormat(StrEnum):
    """How a project's test command says what each test did."""

    __test__ = False

    LIBTEST = "libtest"
    LIBTEST_JSON = "libtest-json"
    GO_JSON = "go-json"
    PYTEST = "pytest"
    CTEST = "ctest"
    TAP = "tap"
    JUNIT = "junit"
    EXIT_CODE = "exit-code"
    """It does not: the exit code is all there is."""


Reader = Callable[[str], tuple[TestResult, ...]]
READERS: Mapping[TestFormat, Reader] = {
    TestFormat.LIBTEST: read_libtest,
    TestFormat.LIBTEST_JSON: read_libtest_json,
    TestFormat.GO_JSON: read_go_json,
    TestFormat.PYTEST: read_pytest,
    TestFormat.CTEST: read_ctest,
    TestFormat.TAP: read_tap,
    TestFormat.JUNIT: read_junit,
}
# What only this runner prints; for commands that say nothing about their format.
_SIGNS = (
    (TestFormat.TAP, r"^TAP version \d+$|^\d+\.\.\d+$"),
    (TestFormat.GO_JSON, r'^\{"Time":.*"Action":'),
    (TestFormat.LIBTEST_JSON, r'^\{ ?"type": ?"suite"'),
    (TestFormat.LIBTEST, r"^running \d+ tests?$"),
    (TestFormat.CTEST, r"^[ \t]*+\d++/\d++ Test[ \t]++#\d++: "),
    (TestFormat.PYTEST, r"^=+ short test summary info =+$"),
)


def recognised(output: str) -> TestFormat:
    """The format of a test command's output; `exit-code` if it is none that is known."""
    for form, sign in _SIGNS:
        if re.search(sign, output, re.MULTILINE):
            return form
    return TestFormat.EXIT_CODE


def read_tests(form: TestFormat, output: str, reports: Mapping[str, str] | None = None) -> tuple[TestResult, ...]:
    """The results of a test command, from its output or, for JUnit, from the report files it wrote.

    A report that cannot be read is the result of one test, an error named after the file.
    """
    if form is TestFormat.EXIT_CODE:
        return ()
    if form is not TestFormat.JUNIT:
        return READERS[form](output)
    found: list[TestResult] = []
    for name, text in (reports or {}).items():
        try:
            found += read_junit(text)
        except BuildError as error:
            found.append(TestResult(name, TestOutcome.ERROR, None, str(error)))
    return merged(found)
