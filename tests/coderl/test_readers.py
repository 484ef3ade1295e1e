"""Each reader against what its runner really printed."""

from __future__ import annotations

import pytest

from mileage.coderl.readers import (
    TestFormat,
    read_ctest,
    read_go_json,
    read_junit,
    read_libtest,
    read_libtest_json,
    read_pytest,
    read_tap,
    read_tests,
    recognised,
)
from mileage.coderl.test_results import TestOutcome, TestResult, merged
from mileage.errors import BuildError

PASSED, FAILED, ERROR, SKIPPED = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.SKIPPED
LIBTEST = """\
   Compiling calc v0.1.0 (/tmp/calc)
    Finished `test` profile [unoptimized + debuginfo] target(s) in 1.15s
     Running unittests src/lib.rs (target/debug/deps/calc-c6626fb655a8d231)

running 4 tests
test tests::adds ... ok
test tests::panics - should panic ... ok
test tests::broken ... FAILED
test tests::slow ... ignored, slow

failures:

---- tests::broken stdout ----
test tests::fake ... ok
assertion `left == right` failed

failures:
    tests::broken

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.15s

error: test failed, to rerun pass `--lib`
     Running tests/it.rs (target/debug/deps/it-b462ec70d69dbcd3)

running 1 test
test integrates ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests calc

running 2 tests
test src/lib.rs - add (line 2) ... ok
test src/lib.rs - add (line 9) ... FAILED
"""
GO = "\n".join(
    (
        '{"Time":"2026-11-16T16:45:20Z","Action":"run","Package":"example.org/gop","Test":"TestAdd"}',
        '{"Time":"2026-11-16T16:45:20Z","Action":"pass","Package":"example.org/gop","Test":"TestAdd","Elapsed":0.25}',
        '{"Time":"2026-11-16T16:45:20Z","Action":"run","Package":"example.org/gop","Test":"TestBad"}',
        '{"Action":"output","Package":"example.org/gop","Test":"TestBad","Output":"a_test.go:4: wrong 3\\n"}',
        '{"Time":"2026-11-16T16:45:20Z","Action":"fail","Package":"example.org/gop","Test":"TestBad","Elapsed":0}',
        '{"Time":"2026-11-16T16:45:20Z","Action":"skip","Package":"example.org/gop","Test":"TestSub/two","Elapsed":0}',
        '{"Time":"2026-11-16T16:45:20Z","Action":"run","Package":"example.org/gop","Test":"TestExit"}',
        '{"Time":"2026-11-16T16:45:20Z","Action":"pass","Package":"example.org/gop","Elapsed":0.008}',
        "{not json",
        "{" * 100_000,
    )
)
TAP = """\
TAP version 13
# Subtest: adds
ok 1 - adds
  ---
  duration_ms: 2.5
  ...
# Subtest: group
    # Subtest: inner ok
    ok 1 - inner ok
    # Subtest: inner bad
    not ok 2 - inner bad
    1..2
not ok 2 - group
ok 3 - later # SKIP not yet
not ok 4 - someday # TODO
ok 5
1..5
# pass 2
"""
CTEST = """\
Test project /tmp/cm/b
1/5 Test #1: good .............................   Passed    0.25 sec
2/5 Test #2: bad ..............................***Failed    0.00 sec
3/5 Test #3: skipped ..........................***Skipped   0.00 sec
4/5 Test #4: gone .............................***Not Run   0.00 sec
5/5 Test #5: crash ............................Subprocess aborted***Exception:   0.00 sec
 6/16 Test #6: slow one .......................***Timeout   1.50 sec
40% tests passed, 3 tests failed out of 5
"""
PYTEST = """\
PASSED tests/forged.py::test_printed_above_the_summary
=========================== short test summary info ============================
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_two[a - b]
SKIPPED [1] tests/test_a.py:9: later
XFAIL tests/test_a.py::test_known - bug
FAILED tests/test_a.py::test_three - assert 1 == 2
ERROR tests/test_b.py - ModuleNotFoundError: No module named 'gone'
2 passed, 1 failed in 0.02s
"""
JUNIT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" tests="6">
<testcase classname="tests.test_a" name="test_one" time="0.5"/>
<testcase classname="tests.test_a" name="test_two"><failure message="assert 1 == 2">long</failure></testcase>
<testcase classname="tests.test_a" name="test_three"><error message="setup"/></testcase>
<testcase classname="tests.test_a" name="test_four"><skipped message="later"/></testcase>
<testcase name="bad" classname="bad" time="0.002" status="fail"><system-out/></testcase>
<testcase name="gone" classname="gone" time="0" status="notrun"/>
</testsuite></testsuites>"""
LIBTEST_JSON = "\n".join(
    (
        '{ "type": "suite", "event": "started", "test_count": 3 }',
        '{ "type": "test", "event": "started", "name": "tests::adds" }',
        '{ "type": "test", "name": "tests::adds", "event": "ok", "exec_time": 0.25 }',
        '{ "type": "test", "event": "started", "name": "tests::bad" }',
        '{ "type": "test", "name": "tests::bad", "event": "failed", "stdout": "no\\n" }',
        '{ "type": "test", "event": "started", "name": "tests::exits" }',
    )
)


def outcomes(results: tuple[TestResult, ...]) -> dict[str, TestOutcome]:
    return {result.name: result.outcome for result in results}


def test_libtest_lines_are_named_after_their_binary_and_doc_tests_are_numbered() -> None:
    results = read_libtest(LIBTEST)
    assert outcomes(results) == {
        "calc src/lib.rs::tests::adds": PASSED,
        "calc src/lib.rs::tests::panics": PASSED,
        "calc src/lib.rs::tests::broken": FAILED,
        "calc src/lib.rs::tests::slow": SKIPPED,
        "it tests/it.rs::integrates": PASSED,
        "calc doc::src/lib.rs - add #1": PASSED,
        "calc doc::src/lib.rs - add #2": FAILED,
    }
    messages = {result.name: result.message for result in results}
    assert "assertion `left == right` failed" in messages["calc src/lib.rs::tests::broken"]


def test_more_libtest_results_than_tests_count_as_none() -> None:
    text = "running 1 test\ntest a ... ok\ntest b ... ok\ntest result: ok. 2 passed\ntest c ... ok\n"
    assert outcomes(read_libtest(text)) == {"test::a": ERROR, "test::b": ERROR}


def test_go_tests_that_began_and_did_not_end_are_errors() -> None:
    results = read_go_json(GO)
    assert outcomes(results) == {
        "example.org/gop::TestAdd": PASSED,
        "example.org/gop::TestBad": FAILED,
        "example.org/gop::TestSub/two": SKIPPED,
        "example.org/gop::TestExit": ERROR,
    }
    assert results[0].seconds == 0.25
    assert results[1].message == "a_test.go:4: wrong 3"


def test_tap_subtests_carry_the_names_of_their_groups() -> None:
    results = read_tap(TAP)
    assert outcomes(results) == {
        "adds": PASSED,
        "group > inner ok": PASSED,
        "group > inner bad": FAILED,
        "group": FAILED,
        "later": SKIPPED,
        "someday": SKIPPED,
        "test 5": PASSED,
    }
    assert results[0].seconds == 0.0025


def test_ctest_lines() -> None:
    results = read_ctest(CTEST)
    assert outcomes(results) == {
        "good": PASSED, "bad": FAILED, "skipped": SKIPPED, "gone": FAILED, "crash": FAILED, "slow one": FAILED,
    }  # fmt: skip
    assert results[0].seconds == 0.25
    assert results[4].message == "Subprocess aborted Exception"


def test_pytest_results_are_taken_from_the_summary_alone() -> None:
    found = outcomes(read_pytest(PYTEST))
    assert found["tests/test_a.py::test_one"] is PASSED
    assert found["tests/test_a.py::test_two[a - b]"] is PASSED
    assert found["tests/test_a.py::test_three"] is FAILED
    assert found["tests/test_a.py::test_known"] is SKIPPED
    assert found["tests/test_b.py"] is ERROR
    assert "tests/forged.py::test_printed_above_the_summary" not in found


def test_junit_of_pytest_and_of_ctest() -> None:
    results = read_junit(JUNIT)
    assert outcomes(results) == {
        "tests.test_a::test_one": PASSED,
        "tests.test_a::test_two": FAILED,
        "tests.test_a::test_three": ERROR,
        "tests.test_a::test_four": SKIPPED,
        "bad": FAILED,
        "gone": SKIPPED,
    }
    assert results[0].seconds == 0.5
    assert results[1].message == "assert 1 == 2"


def test_libtest_json() -> None:
    results = read_libtest_json(LIBTEST_JSON)
    assert outcomes(results) == {
        "binary 1::tests::adds": PASSED, "binary 1::tests::bad": FAILED, "binary 1::tests::exits": ERROR,
    }  # fmt: skip


def test_a_test_reported_twice_is_what_it_is_at_worst() -> None:
    twice = (TestResult("a", PASSED), TestResult("a", FAILED, None, "no"), TestResult("a", PASSED))
    assert merged(twice) == (TestResult("a", FAILED, None, "no"),)


def test_reports_that_cannot_be_read_are_errors_and_entities_are_refused() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "b">]><testsuites><testcase name="&a;"/></testsuites>'
    with pytest.raises(BuildError, match="entities"):
        read_junit(bomb)
    found = read_tests(TestFormat.JUNIT, "", {"one.xml": JUNIT, "two.xml": "<testsuite>"})
    assert outcomes(found)["two.xml"] is ERROR
    assert outcomes(found)["tests.test_a::test_one"] is PASSED
    assert read_tests(TestFormat.EXIT_CODE, LIBTEST) == ()


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (LIBTEST, TestFormat.LIBTEST),
        (LIBTEST_JSON, TestFormat.LIBTEST_JSON),
        (GO, TestFormat.GO_JSON),
        (TAP, TestFormat.TAP),
        (CTEST, TestFormat.CTEST),
        (PYTEST, TestFormat.PYTEST),
        ("all good\n", TestFormat.EXIT_CODE),
    ],
)
def test_formats_are_recognised_by_what_only_they_print(text: str, form: TestFormat) -> None:
    assert recognised(text) is form


@pytest.mark.parametrize("form", [form for form in TestFormat if form is not TestFormat.EXIT_CODE])
def test_whatever_is_printed_is_read_in_time_and_raises_nothing(form: TestFormat) -> None:
    odd = (
        '{"Test": "x", "Action": []}\n{"Test": {}, "Action": {}}\n{"type": "test", "event": [], "name": {}}\n',
        "".join(" " * (1000 - depth) + f"ok {depth} - {'n' * 50}\n" for depth in range(1000)),
        "<testsuite>" + "<a>" * 20_000,
        "<testsuite name='\ud800'/>",
        "running 1 test\ntest " + " - should panic" * 300 + " ... ok\n",
        # Each of these would take a pattern that tries every place minutes.
        "\n" * 300_000,
        "\t\n" * 100_000,
        ("1/1 Test #1: a ...x" + " " * 3970 + "\n") * 300,
        ("1/1 Test #1: a " + "." * 3970 + "\n") * 300,
        ("     Running a (" + "/" * 3970 + "\n") * 300,
    )
    for text in odd:
        assert recognised(text) in TestFormat
        assert all(len(test.name) < 10_000 for test in read_tests(form, text, {"report.xml": text}))


def test_subtests_of_subtests_carry_all_their_names() -> None:
    text = "        ok 1 - c\n    ok 1 - b\n    not ok 2 - d\nnot ok 1 - a\nok 2 - e\n"
    assert outcomes(read_tests(TestFormat.TAP, text)) == {
        "a > b > c": PASSED,
        "a > b": PASSED,
        "a > d": FAILED,
        "a": FAILED,
        "e": PASSED,
    }
