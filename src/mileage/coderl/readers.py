"""What tests said, one by one: readers of JUnit XML, `go test -json`, libtest, ctest, TAP and pytest."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from xml.etree import ElementTree

from mileage.coderl.test_results import Expected, TestOutcome, TestResult, TestScore, merged, seconds_of
from mileage.errors import BuildError
from mileage.records import Record

# --- Results out of what runners write for programs: JUnit XML, `go test -json`, libtest's JSON ---
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


# --- Results out of what runners print for people: libtest (`cargo test`), ctest, TAP and pytest's `-rA` summary ---
LONGEST_LINE = 4000
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")

_RUNNING = re.compile(r"^\s*Running (?:unittests )?(\S+) \((?:.*/)?([^/)]+?)(?:-[0-9a-f]{16})?(?:\.exe)?\)$")
_DOC_TESTS = re.compile(r"^\s*Doc-tests (\S+)$")
_ANNOUNCED = re.compile(r"^running (\d{1,9}) tests?$")
_LIBTEST = re.compile(r"^test (?P<name>.+?)(?P<panic> - should panic)? \.\.\. (?P<word>ok|FAILED|ignored)(?P<rest>.*)$")
_LIBTEST_SECONDS = re.compile(r"<([\d.]+)s>")
_LIBTEST_FAILURES = re.compile(r"^---- (.+?)(?: - should panic)? std(?:out|err) ----$")
_DOC_LINE = re.compile(r" \(line \d+\)| - compile(?: fail)?$")
_LIBTEST_WORDS = {"ok": TestOutcome.PASSED, "FAILED": TestOutcome.FAILED, "ignored": TestOutcome.SKIPPED}


def plain_lines(text: str) -> list[str]:
    """The lines of `text` without colours, each of bounded length."""
    return [line[:LONGEST_LINE] for line in _COLOUR.sub("", text).splitlines()]


class _LibtestBlock:
    """The results of one test binary, between `running N tests` and `test result:`."""

    def __init__(self, binary: str, announced: int) -> None:
        self.binary = binary
        self.announced = announced
        self.results: list[TestResult] = []
        self.names: Counter[str] = Counter()
        self.ended = False

    def add(self, match: re.Match[str]) -> None:
        """Take one result line; doc tests are numbered, because their line numbers move with every edit."""
        name = _DOC_LINE.sub("", match["name"])
        if name != match["name"]:
            self.names[name] += 1
            name += f" #{self.names[name]}"
        seconds = _LIBTEST_SECONDS.search(match["rest"])
        outcome = _LIBTEST_WORDS[match["word"]]
        self.results.append(TestResult(f"{self.binary}::{name}", outcome, seconds_of(seconds[1]) if seconds else None))

    def finished(self) -> list[TestResult]:
        """The results; more of them than were announced means that something else wrote result lines, too."""
        if len(self.results) <= self.announced:
            return self.results
        return [
            replace(result, outcome=TestOutcome.ERROR, message="more results than tests: some are not the runner's")
            for result in self.results
        ]


def read_libtest(text: str) -> tuple[TestResult, ...]:
    """The results of `cargo test`: `binary source::module::test`."""
    binary, block = "test", _LibtestBlock("test", 0)
    blocks: list[_LibtestBlock] = []
    messages: dict[str, list[str]] = {}
    complaint: list[str] | None = None
    for line in plain_lines(text):
        running, doc = _RUNNING.match(line), _DOC_TESTS.match(line)
        if running or doc:
            binary = f"{running[2]} {running[1]}" if running else f"{doc[1]} doc" if doc else binary
            complaint = None
        elif announced := _ANNOUNCED.match(line):
            block, complaint = _LibtestBlock(binary, int(announced[1])), None
            blocks.append(block)
        elif failed := _LIBTEST_FAILURES.match(line):
            complaint = messages.setdefault(f"{block.binary}::{failed[1]}", [])
        elif line.startswith("test result: "):
            block.ended, complaint = True, None
        elif complaint is not None:
            complaint.append(line)
        elif blocks and not block.ended and (match := _LIBTEST.match(line)):
            block.add(match)
    results = merged(result for each in blocks for result in each.finished())
    return tuple(
        replace(result, message="\n".join(messages[result.name]).strip()[:2000]) if result.name in messages else result
        for result in results
    )


_CTEST = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (?P<rest>.+)$")
_SECONDS = re.compile(r"[\d.]++")


def read_ctest(text: str) -> tuple[TestResult, ...]:
    """The results of `ctest`: a name, dots, a status and seconds."""
    found: list[TestResult] = []
    for line in plain_lines(text):
        match = _CTEST.match(line)
        name, _, _ = match["rest"].rpartition(" .") if match else ("", "", "")
        name = name.rstrip(" .")
        ended = _ctest_end(match["rest"][len(name) :].lstrip()) if match and name else None
        if ended is None:
            continue
        status = ended[0].replace("***", " ").strip(" :")
        outcome = TestOutcome.FAILED
        if status in ("Passed", "Skipped"):
            outcome = TestOutcome.PASSED if status == "Passed" else TestOutcome.SKIPPED
        complaint = "" if outcome is TestOutcome.PASSED else status
        found.append(TestResult(name, outcome, seconds_of(ended[1]), complaint))
    return merged(found)


def _ctest_end(text: str) -> tuple[str, str] | None:
    """The status and the seconds after a test's name and dots; without a pattern that looks for both at each place."""
    said, unit, _ = text.lstrip(".").partition(" sec")
    status, _, seconds = said.rstrip().rpartition(" ")
    if not text.startswith(".") or not unit or not status.strip() or not _SECONDS.fullmatch(seconds):
        return None
    return status.strip(), seconds


_TAP = re.compile(r"^(?P<indent> *)(?P<not>not )?ok\b(?: (?P<number>\d{1,9}))?(?: - | )?(?P<name>[^#]*)(?P<note>#.*)?$")
_TAP_SECONDS = re.compile(r"^\s*duration_ms: ([\d.]+)$")


@dataclass
class _TapTest:
    """One line of a TAP stream, and those of the tests that are part of it."""

    name: str
    outcome: TestOutcome
    seconds: float | None = None
    parts: list[_TapTest] = field(default_factory=list)


def read_tap(text: str) -> tuple[TestResult, ...]:
    """The results of a TAP stream; a subtest's name begins with those of the tests it is part of."""
    count, last = 0, None
    # Tests by their indentation, as long as no line further out has claimed them: outer ones first.
    waiting: list[tuple[int, _TapTest]] = []
    for line in plain_lines(text):
        match = _TAP.match(line)
        if match is None:
            if (timed := _TAP_SECONDS.match(line)) and last:
                milliseconds = seconds_of(timed[1])
                last.seconds = None if milliseconds is None else milliseconds / 1000
            continue
        depth, name = len(match["indent"]), match["name"].strip() or f"test {match['number'] or count + 1}"
        last = _TapTest(name, _tap_outcome(bool(match["not"]), match["note"] or ""))
        # A test's line comes after those of its subtests.
        while waiting and waiting[-1][0] > depth:
            last.parts.append(waiting.pop()[1])
        last.parts.reverse()
        waiting.append((depth, last))
        count += 1
    return merged(_tap_results([test for _, test in waiting]))


def _tap_results(tests: list[_TapTest]) -> Iterator[TestResult]:
    """The results of tests and their subtests, each before the one that it is part of."""
    pending = [("", test, False) for test in reversed(tests)]
    while pending:
        prefix, test, told = pending.pop()
        full = (prefix + test.name)[:LONGEST_LINE]
        if told or not test.parts:
            yield TestResult(full, test.outcome, test.seconds)
            continue
        pending.append((prefix, test, True))
        pending += ((f"{full} > ", part, False) for part in reversed(test.parts))


def _tap_outcome(failed: bool, note: str) -> TestOutcome:
    """The outcome of a TAP line: a skipped test or one that is still to do is neither passed nor failed."""
    directive = note.lstrip("# ").lower()
    if directive.startswith(("skip", "todo")):
        return TestOutcome.SKIPPED
    return TestOutcome.FAILED if failed else TestOutcome.PASSED


_PYTEST = re.compile(r"^(?P<word>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?P<name>\S.*?)(?: - (?P<message>.*))?$")
_PYTEST_WORDS = {
    "PASSED": TestOutcome.PASSED,
    "FAILED": TestOutcome.FAILED,
    "ERROR": TestOutcome.ERROR,
    "SKIPPED": TestOutcome.SKIPPED,
    "XFAIL": TestOutcome.SKIPPED,
    "XPASS": TestOutcome.PASSED,
}


def read_pytest(text: str) -> tuple[TestResult, ...]:
    """The results in the short summary of `pytest -rA`."""
    return merged(_pytest_results(plain_lines(text)))


def _pytest_results(lines: list[str]) -> Iterator[TestResult]:
    # What tests print stands above the summary.
    heads = [index for index, line in enumerate(lines) if re.match(r"^=+ short test summary info =+$", line)]
    for line in lines[heads[-1] :] if heads else ():
        match = _PYTEST.match(line)
        if match is None:
            continue
        # A passed test has no message, so a dash is part of its name.
        outcome, message = _PYTEST_WORDS[match["word"]], match["message"] or ""
        if outcome is TestOutcome.PASSED:
            yield TestResult(line.split(" ", 1)[1], outcome)
        else:
            yield TestResult(match["name"], outcome, None, message)


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


# --- What tests said, one by one: `read_tests` for every common test runner, `Expected` for what they ought to say ---
__all__ = ["Expected", "TestFormat", "TestOutcome", "TestResult", "TestScore", "read_tests"]
