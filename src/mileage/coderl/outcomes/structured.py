"""Results out of what runners write for programs: JUnit XML, `go test -json`, libtest's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from xml.etree import ElementTree

from mileage._errors import BuildError
from mileage._records import Record
from mileage.coderl.outcomes.results import TestOutcome, TestResult, merged, seconds_of

_JUNIT_OUTCOMES = (
    ("error", TestOutcome.ERROR),
    ("failure", TestOutcome.FAILED),
    ("skipped", TestOutcome.SKIPPED),
)
_FAILED_STATUS = {"fail": TestOutcome.FAILED, "failed": TestOutcome.FAILED, "error": TestOutcome.ERROR}
_SKIPPED_STATUS = {"disabled", "notrun", "skipped"}


def read_junit(text: str) -> tuple[TestResult, ...]:
    """The results in JUnit XML: `class::test`; BuildError if it is not that."""
    if re.search(r"<!\s*(?:DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise BuildError("the JUnit report declares entities, which no test runner does")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise BuildError(f"the JUnit report is not valid XML: {error}") from None
    return merged(_junit_case(case) for case in root.iter("testcase"))


def _junit_case(case: ElementTree.Element) -> TestResult:
    owner, name = case.get("classname", ""), case.get("name", "")
    # CTest gives the test's name as its class, too.
    full = f"{owner}::{name}" if owner and owner != name else name
    seconds = seconds_of(case.get("time", ""))
    for tag, outcome in _JUNIT_OUTCOMES:
        found = case.find(tag)
        if found is not None:
            return TestResult(full, outcome, seconds, (found.get("message") or found.text or "").strip())
    status = case.get("status", "").lower()
    if status in _FAILED_STATUS:
        return TestResult(full, _FAILED_STATUS[status], seconds)
    return TestResult(full, TestOutcome.SKIPPED if status in _SKIPPED_STATUS else TestOutcome.PASSED, seconds)


def _json_lines(text: str) -> Iterator[Record]:
    """The JSON objects of a stream, one on a line; other lines are somebody else's."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(data, dict):
                yield data


_GO_ACTIONS = {"pass": TestOutcome.PASSED, "fail": TestOutcome.FAILED, "skip": TestOutcome.SKIPPED}


def read_go_json(text: str) -> tuple[TestResult, ...]:
    """The results of `go test -json`: `package::Test/subtest`."""
    found: list[TestResult] = []
    started: dict[str, list[str]] = {}
    for event in _json_lines(text):
        if "Test" not in event:
            continue
        name, action = f"{event.get('Package', '')}::{event['Test']}", str(event.get("Action"))
        if action in _GO_ACTIONS:
            outcome = _GO_ACTIONS[action]
            said = "" if outcome is TestOutcome.PASSED else "".join(started.get(name, [])).strip()
            found.append(TestResult(name, outcome, seconds_of(event.get("Elapsed", "")), said))
            started.pop(name, None)
        elif action == "run":
            started[name] = []
        elif action == "output" and name in started and len(started[name]) < 50:
            started[name].append(str(event.get("Output", "")))
    # A test that began and never ended took its package down with it.
    found += [
        TestResult(name, TestOutcome.ERROR, None, "it began and did not end: " + "".join(output).strip()[-500:])
        for name, output in started.items()
    ]
    return merged(found)


_LIBTEST_EVENTS = {"ok": TestOutcome.PASSED, "failed": TestOutcome.FAILED, "ignored": TestOutcome.SKIPPED}


def read_libtest_json(text: str) -> tuple[TestResult, ...]:
    """The results of libtest's `--format json`."""
    found: list[TestResult] = []
    suite, open_tests = 0, dict[str, None]()
    for event in _json_lines(text):
        kind, action = event.get("type"), str(event.get("event"))
        if kind == "suite" and action == "started":
            suite += 1
        name = f"binary {suite}::{event.get('name', '')}"
        if kind != "test":
            continue
        if action == "started":
            open_tests[name] = None
        elif action in _LIBTEST_EVENTS or action == "timeout":
            open_tests.pop(name, None)
            outcome = _LIBTEST_EVENTS.get(action, TestOutcome.ERROR)
            message = str(event.get("stdout") or event.get("message") or "").strip()
            found.append(TestResult(name, outcome, seconds_of(event.get("exec_time", "")), message))
    found += [TestResult(name, TestOutcome.ERROR, None, "it began and did not end") for name in open_tests]
    return merged(found)
