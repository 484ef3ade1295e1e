"""Fuzzing of all that reads what candidates write, completions and test output: no text may raise, hang or escape.

    python benchmarks/coderl_fuzz.py --engine atheris --seconds 1800 --output benchmarks/results/coderl_fuzz.json
    python benchmarks/coderl_fuzz.py --engine hypothesis --seconds 1800 --output benchmarks/results/coderl_fuzz.json
    python benchmarks/coderl_fuzz.py --engine hypothesis --seconds 400 --read output --add --output RESULT.json

`atheris` mutates bytes guided by coverage (it is not among the dependencies: install it beside mileage), `hypothesis`
builds diffs, conversations and test reports from their grammar with everything in them wrong. Both call `check`. A
finding ends the run and is printed; the result file holds one record for each engine and what it read, and with
`--add` that of all its runs together. `--read output` spends all its time on what test runners print. Seconds are CPU
time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SLOWEST_SECONDS = 5.0
SAVE_SECONDS = 15.0
COLUMNS = ("engine", "read", "seconds", "texts", "applied", "slowest_seconds", "findings")
EVERYTHING, OUTPUT = "completions and test output", "test output"
LONGEST_MESSAGE = 2000
PROTECTED = ("tests", "*.lock")
SEEDS = (
    "--- a/src/a.txt\n+++ b/src/a.txt\n@@ -1,2 +1,2 @@\n line 1\n-line 2\n+two\n",
    "diff --git a/new b/new\nnew file mode 100755\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n\\ No newline\n",
    "diff --git a/src/a.txt b/b\nrename from src/a.txt\nrename to b\n",
    "--- a/src/a.txt\n+++ /dev/null\n@@ -1000000000000 +1 @@\n",
    "<think>\n```diff\n--- a\n+++ b\n```\n</think>\n~~~c\nint x;\n~~~\n",
    "src/lib.rs:3:4: error: no\nerror[E0425]: cannot find\n  --> src/lib.rs:3:4\n",
    "     Running unittests src/lib.rs (target/a-0123456789abcdef)\nrunning 1 test\ntest a ... ok\ntest result: ok\n",
    '{"Time":"","Action":"run","Package":"p","Test":"T"}\n{"Action":"pass","Package":"p","Test":"T","Elapsed":0.1}\n',
    '{ "type": "suite", "event": "started" }\n{ "type": "test", "event": "ok", "name": "a", "exec_time": 1 }\n',
    '<testsuite><testcase classname="c" name="n" time="1"><failure message="m"/></testcase></testsuite>\n',
    "TAP version 13\n    ok 1 - b # SKIP\nnot ok 2 - a\n  duration_ms: 1.5\n1..2\n",
    "1/2 Test #1: a ....   Passed    0.01 sec\n=== short test summary info ===\nFAILED a::b - no\n",
)  # fmt: skip
WORDS = (
    "--- ", "+++ ", "@@ -", " @@", "a/", "b/", "/dev/null", "diff --git ", "rename from ", "rename to ",
    "new file mode",
    "100755", "120000", "src/a.txt", "link/x", "../", "tests/t", ".git/x", "```", "~~~", "<think>", "</think>",
    "\\\\ No newline at end of file", "error: ", "Error", "FAILED",
)  # fmt: skip

REPORT_WORDS = (
    "ok", "not ok", "#", "# SKIP", "test", "...", "FAILED", "PASSED", "running", "tests", "Running", "Doc-tests",
    "(a-0)",
    "----", "stdout ----", "test result: ", "1/1 Test #1:", "Passed", "sec", "=== short test summary info ===", " - ",
    "pass", "fail", "run", "output", "skip", "suite", "started", "timeout", "<", "&amp;", "\x1b[31m",
)  # fmt: skip


LINE_HEADS = (
    "", "1/1 Test #1: a ", "1/1 Test #1: a ...x", "     Running a (", "test ", "---- ", "ok 1 - ", "FAILED a", "E ",
    "a:1:", "=== short test summary info ===\nFAILED ", "<testsuite>", '{"Test": "', "  duration_ms: ", "error: ",
)  # fmt: skip
# Words that a dictionary of libFuzzer can hold as they are.
DICTIONARY = (*WORDS, *(word for word in REPORT_WORDS if word.isprintable()))
NAMES = (
    "src/a.txt", "src/same.txt", "src/bytes", "src/windows.txt", "src", "src/a.txt/b", "new", "link/x", "../x",
    "/etc/passwd", "tests/t", ".git/config", "C:\\x", "./src/./a.txt", "a//b",
)  # fmt: skip


def make_tree() -> Path:
    """A tree with all that a path can run into."""
    tree = Path(tempfile.mkdtemp(prefix="mileage-fuzz-"))
    (tree / "src").mkdir()
    (tree / "tests").mkdir()
    (tree / "src" / "a.txt").write_text("".join(f"line {number}\n" for number in range(1, 21)))
    (tree / "src" / "same.txt").write_text("x\n" * 2000)
    (tree / "src" / "bytes").write_bytes(bytes(range(256)) * 4)
    (tree / "src" / "windows.txt").write_bytes(b"one\r\ntwo\r\n")
    (tree / "link").symlink_to("/tmp")
    return tree


class Checker:
    """Calls everything that reads a completion, and knows what must hold afterwards."""

    def __init__(self, read: str = EVERYTHING) -> None:
        # Here, so that atheris can instrument what is imported.
        from mileage.coderl.cache import content_key
        from mileage.coderl.patches import PatchError
        from mileage.coderl.patching import check_path
        from mileage.coderl.readers import READERS, Expected, read_tests, recognised
        from mileage.coderl.sandbox.executor import first_diagnostic
        from mileage.coderl.trainers import candidate, completion_text

        self.read = read
        self.tree = make_tree()
        self.rule = candidate("src/a.txt")
        self.content_key, self.first_diagnostic = content_key, first_diagnostic
        self.check_path, self.completion_text, self.error = check_path, completion_text, PatchError
        self.read_tests, self.recognised, self.formats = read_tests, recognised, tuple(READERS)
        self.expected = Expected(frozenset({"a"}), frozenset({"b"}))
        self.calls = 0
        self.applied = 0
        self.slowest = 0.0

    def check(self, completion: Any, row: dict[str, Any], fuzzy: bool) -> None:
        """Judge one completion as far as its changes; a PatchError is an answer, anything else a finding."""
        began = time.process_time()
        self.calls += 1
        text = self.completion_text(completion)
        self.first_diagnostic(text)
        self.check_output(text)
        if self.read == EVERYTHING:
            self.check_changes(text, row, fuzzy)
        took = time.process_time() - began
        self.slowest = max(self.slowest, took)
        assert took < SLOWEST_SECONDS, f"took {took:.1f} s of CPU time"

    def check_changes(self, text: str, row: dict[str, Any], fuzzy: bool) -> None:
        """Apply what a text proposes; whatever comes of it stays inside the tree."""
        try:
            changes = self.rule(text, row).changes(self.tree, PROTECTED, fuzzy)
        except self.error as error:
            if len(str(error).encode()) > LONGEST_MESSAGE:
                raise AssertionError("a message without end") from error
        else:
            self.applied += 1
            self.content_key("context", changes)
            for change in changes:
                assert self.check_path(change.path, self.tree, PROTECTED) == change.path
                assert (self.tree / change.path).resolve().is_relative_to(self.tree.resolve())
                os.fsencode(change.path)
                json.dumps(change.path)

    def check_output(self, text: str) -> None:
        """Read a text as the output and as the report of every test runner there is."""
        self.recognised(text)
        for form in self.formats:
            results = self.read_tests(form, text, {"report.xml": text})
            assert len({result.name for result in results}) == len(results)
            assert not self.expected.score(results).passed or {result.name for result in results} >= {"a", "b"}

    def record(self, engine: str, seconds: float) -> dict[str, Any]:
        return {
            "engine": engine,
            "read": self.read,
            "seconds": round(seconds, 1),
            "runs": 1,
            "texts": self.calls,
            "applied": self.applied,
            "slowest_seconds": round(self.slowest, 3),
            "findings": 0,
        }


def numbers() -> st.SearchStrategy[str]:
    return st.one_of(
        st.integers(0, 30).map(str),
        st.integers(0, 10**30).map(str),
        st.integers(4000, 6000).map(lambda n: "9" * n),
        st.sampled_from(["", "-1", "٣", "1e9", "0x1"]),
    )


def names() -> st.SearchStrategy[str]:
    known = st.sampled_from(NAMES)
    odd = st.one_of(st.text(max_size=20), st.integers(200, 5000).map(lambda n: "n" * n), st.just("a/" * 600 + "b"))
    return st.one_of(known, known, odd, st.characters(categories=["Cs"]).map(lambda c: f"s{c}"))


def hunks() -> st.SearchStrategy[str]:
    body = st.one_of(st.integers(1, 22).map(lambda n: f"line {n}"), st.just("x"), st.text(max_size=12),
                     st.characters(categories=["Cs"]))  # fmt: skip
    line = st.tuples(
        st.sampled_from([" ", "+", "-", "\\", "", "@"]), body, st.sampled_from(["\n", "\n", "\r\n", "\x0c", ""])
    )
    lines = st.one_of(st.lists(line.map("".join), max_size=12).map("".join),
                      st.integers(1, 3000).map(lambda n: " x\n" * n + "-y\n"))  # fmt: skip
    header = st.tuples(numbers(), numbers(), numbers(), numbers()).map(
        lambda n: f"@@ -{n[0]},{n[1]} +{n[2]},{n[3]} @@\n"
    )
    return st.tuples(st.one_of(header, st.sampled_from(["@@ @@\n", "@@ -1 +1 @@\n", "@@\n"])), lines).map("".join)


def diffs() -> st.SearchStrategy[str]:
    mode = st.sampled_from(["", "new file mode 100755\n", "new file mode 120000\n", "old mode\n", "GIT binary patch\n"])
    one = st.tuples(names(), names(), mode, st.booleans(), st.lists(hunks(), max_size=4).map("".join))
    return st.lists(one.map(_file), max_size=5).map("".join)


def _file(parts: tuple[str, str, str, bool, str]) -> str:
    old, new, mode, renamed, body = parts
    head = f"diff --git a/{old} b/{new}\n{mode}"
    return head + (f"rename from {old}\nrename to {new}\n" if renamed else f"--- a/{old}\n+++ b/{new}\n") + body


def completions() -> st.SearchStrategy[Any]:
    fence = st.sampled_from(["```", "~~~", "````diff", "```diff", "", "<think>", "</think>", "<thinking>"])
    text = st.lists(st.one_of(fence.map(lambda f: f + "\n"), diffs(), st.text(max_size=30)), max_size=6).map("".join)
    part = st.one_of(
        st.fixed_dictionaries({"type": st.just("text"), "text": st.one_of(text, st.none())}), st.none(), text
    )
    content = st.one_of(text, st.none(), st.lists(part, max_size=3), st.integers())
    message = st.fixed_dictionaries({"role": st.sampled_from(["assistant", "tool"]), "content": content})
    return st.one_of(text, text, st.lists(st.one_of(message, st.none()), max_size=3), message, st.none(), st.integers())


def outputs() -> st.SearchStrategy[str]:
    word = st.one_of(st.text(max_size=8), st.sampled_from(REPORT_WORDS), numbers())
    value = st.recursive(
        st.one_of(word, st.none(), st.integers(), st.floats()),
        lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(word, inner, max_size=2)),
        max_leaves=4,
    )
    keys = ("Test", "Action", "Package", "Elapsed", "Output", "type", "event", "name", "exec_time", "stdout")
    record = st.fixed_dictionaries({}, optional=dict.fromkeys(keys, value)).map(json.dumps)
    plain = st.tuples(st.integers(0, 40), st.lists(word, max_size=6)).map(
        lambda line: " " * line[0] + " ".join(line[1])
    )
    tag = st.tuples(st.sampled_from(["testcase", "testsuite", "failure", "a"]), word, word).map(
        lambda parts: f'<{parts[0]} name="{parts[1]}" time="{parts[2]}" classname="{parts[1]}">'
    )
    closing = st.sampled_from(["</testcase>", "</testsuite>", "</failure>", "</a>", "<!DOCTYPE a>", "<![CDATA["])
    lines = st.lists(st.one_of(record, record, plain, plain, tag, closing), max_size=30).map("\n".join)
    return st.one_of(lines, lines, lines, floods())


def floods() -> st.SearchStrategy[str]:
    """The same over and over, behind the beginning of a line that is known: what patterns that go back are slow on."""
    unit = st.one_of(
        st.sampled_from(["\n", "\t\n", " ", ".", "/", "-", "=", "1", " - ", " ...", "\r"]), st.text(max_size=3)
    )
    line = st.tuples(
        st.sampled_from(LINE_HEADS), unit, st.integers(1, 4000), st.sampled_from(["", " sec", " ... ok", ")"])
    )
    return st.tuples(line.map(lambda parts: parts[0] + parts[1] * parts[2] + parts[3] + "\n"), st.integers(1, 30)).map(
        lambda parts: "running 9 tests\n" + parts[0] * parts[1]
    )


def run_hypothesis(checker: Checker, seconds: float, finish: Callable[[Checker], None]) -> None:
    end = time.process_time() + seconds
    rows = st.fixed_dictionaries(
        {}, optional={"path": st.one_of(names(), st.none(), st.integers()), "id": st.integers()}
    )
    rules = settings(
        max_examples=500,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )

    @rules
    @given(
        st.one_of(completions(), completions(), outputs()) if checker.read == EVERYTHING else outputs(),
        rows,
        st.booleans(),
    )
    def one_round(completion: Any, row: dict[str, Any], fuzzy: bool) -> None:
        checker.check(completion, row, fuzzy)

    while time.process_time() < end:
        one_round()
        finish(checker)
        print(f"{checker.calls} texts, {checker.applied} applied, slowest {checker.slowest:.3f} s", flush=True)


def run_atheris(
    make_checker: Callable[[], Checker], seconds: float, finish: Callable[[Checker], None], corpus: Path
) -> None:
    """libFuzzer ends the process itself: what remains to be done is done when the time is up."""
    import atheris

    with atheris.instrument_imports(include=["mileage.coderl"]):
        checker = make_checker()
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS):
        (corpus / f"seed-{number}").write_bytes(b"\1" + seed.encode())
    dictionary = corpus.with_suffix(".dict")
    dictionary.write_text("".join(f'"{word}"\n' for word in DICTIONARY).replace("\\\\\\\\", "\\\\"))
    end = time.process_time() + seconds
    told = time.process_time()

    def test_one(data: bytes) -> None:
        nonlocal told
        if (now := time.process_time()) > told + SAVE_SECONDS:
            told = now
            finish(checker)
        if now > end:
            finish(checker)
            os._exit(0)
        kind, body = (data[0], data[1:]) if data else (0, b"")
        errors = "surrogatepass" if kind & 2 else "surrogateescape"
        try:
            text = body.decode("utf-8", errors)
        except UnicodeDecodeError:
            text = body.decode("latin-1")
        row = {"path": text[:300].split("\n")[0]} if kind & 4 else {}
        checker.check(text, row, bool(kind & 1))

    options = [
        f"-dict={dictionary}",
        "-max_len=16384",
        "-len_control=20",
        "-timeout=600",
        "-rss_limit_mb=4096",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], test_one)
    atheris.Fuzz()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one.get(key) == other[key] for key in ("engine", "read"))


def together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The record of two runs."""
    sums = {key: one.get(key, 0) + other[key] for key in ("runs", "texts", "applied", "findings")}
    slowest = max(one["slowest_seconds"], other["slowest_seconds"])
    return other | sums | {"seconds": round(one["seconds"] + other["seconds"], 1), "slowest_seconds": slowest}


def save(path: Path | None, known: list[dict[str, Any]], record: dict[str, Any], add: bool) -> None:
    """Write `record` beside those that were `known` when the run began, or added to its like."""
    if path is None:
        print(record)
        return
    for row in known if add else ():
        record = together(row, record) if same(row, record) else record
    # Here, so that nothing of mileage is imported before atheris can instrument it.
    from _harness import markdown_table

    rows = [*(row for row in known if not same(row, record)), record]
    path.write_text(json.dumps(rows, indent=2) + "\n")
    body = [[row[key] for key in COLUMNS] for row in rows]
    total = sum(row["seconds"] for row in rows if OUTPUT in row["read"])
    said = f"{sum(row['seconds'] for row in rows):.0f} s of CPU time, {total:.0f} s of them with test output."
    path.with_suffix(".md").write_text(
        f"# Fuzzing of what candidates write\n\n{said}\n\n{markdown_table(COLUMNS, body)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("hypothesis", "atheris"), required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--corpus", type=Path, help="inputs of an earlier run of atheris, to go on from")
    parser.add_argument("--read", choices=("everything", "output"), default="everything", help="what texts are read as")
    parser.add_argument("--add", action="store_true", help="add to the record of earlier runs")
    options = parser.parse_args()
    read = OUTPUT if options.read == "output" else EVERYTHING
    known = json.loads(options.output.read_text()) if options.output and options.output.exists() else []

    def finish(checker: Checker) -> None:
        save(options.output, known, checker.record(options.engine, time.process_time()), options.add)

    if options.engine == "atheris":
        corpus = options.corpus or Path(tempfile.mkdtemp(prefix="mileage-corpus-"))
        run_atheris(lambda: Checker(read), options.seconds, finish, corpus)
    else:
        checker = Checker(read)
        run_hypothesis(checker, options.seconds, finish)


if __name__ == "__main__":
    main()
