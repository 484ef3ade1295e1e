from __future__ import annotations

import json
from pathlib import Path

import pytest

from coderl.fakes import fake_result
from mileage.coderl.patching import PatchSample, PatchVerdict, count_verdicts, judge, load_corpus
from mileage.coderl.sandbox.executor import BuildResult, StepOutcome, first_diagnostic
from mileage.errors import UsageError


def test_a_directory_of_diffs(tmp_path: Path) -> None:
    (tmp_path / "b.diff").write_text("B")
    (tmp_path / "a.patch").write_text("A")
    (tmp_path / "notes.txt").write_text("no")
    assert load_corpus(tmp_path) == (PatchSample("a", patch="A"), PatchSample("b", patch="B"))


def test_jsonl_with_patches_and_contents(tmp_path: Path) -> None:
    rows = [{"id": 1, "patch": "P"}, {"id": "two", "path": "f.rs", "content": ""}]
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    assert load_corpus(file) == (PatchSample("1", patch="P"), PatchSample("two", path="f.rs", content=""))


@pytest.mark.parametrize("line", ['{"patch": "no id"}', "not json", '{"id": 1}', '{"id": 1, "path": "x"}', "[]"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"id": 0, "patch": ""}\n' + line + "\n")
    with pytest.raises(UsageError, match="line 2"):
        load_corpus(file)


def test_an_empty_or_absent_or_ambiguous_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_corpus(tmp_path / "none")
    with pytest.raises(UsageError, match="holds no patch"):
        load_corpus(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"id": 1, "patch": ""}\n{"id": 1, "patch": ""}\n')
    with pytest.raises(UsageError, match="more than once"):
        load_corpus(tmp_path / "x.jsonl")


def test_verdicts_of_jobs() -> None:
    ok, bad = fake_result(1.0).steps[0], fake_result(1.0, exit_code=101, output="error: no\n").steps[0]
    assert judge(BuildResult((ok, ok)), 1) == (PatchVerdict.PASS, "")
    assert judge(BuildResult((bad,)), 1) == (PatchVerdict.COMPILE_ERROR, "error: no")
    assert judge(BuildResult((ok, bad)), 1) == (PatchVerdict.TEST_FAILURE, "error: no")
    assert judge(fake_result(3.0, outcome=StepOutcome.TIMEOUT), 1)[0] is PatchVerdict.TIMEOUT
    verdict, diagnostic = judge(fake_result(3.0, outcome=StepOutcome.MEMORY), 1)
    assert verdict is PatchVerdict.KILLED
    assert "memory" in diagnostic


def test_counting_keeps_the_order_of_the_verdicts() -> None:
    assert count_verdicts([PatchVerdict.TIMEOUT, PatchVerdict.PASS, PatchVerdict.PASS]) == {"pass": 2, "timeout": 1}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "   Compiling x\nwarning: w\nerror[E0308]: mismatched types\n --> src/lib.rs:3:5\n"
            "  |\nerror: could not compile",
            "error[E0308]: mismatched types (src/lib.rs:3:5)",
        ),
        ("main.c: In function 'f':\nmain.c:2:5: error: 'x' undeclared\n", "main.c:2:5: error: 'x' undeclared"),
        ("src/a.ts(1,7): error TS2322: Type 'string'.\n", "src/a.ts(1,7): error TS2322: Type 'string'."),
        ("# pkg\n./a.go:3:2: undefined: x\n", "./a.go:3:2: undefined: x"),
        ("[ERROR] /p/A.java:[3,5] cannot find symbol\n", "[ERROR] /p/A.java:[3,5] cannot find symbol"),
        (
            "[ERROR] \n[ERROR] Plugin x could not be resolved\n[ERROR] [Help 1] y\n",
            "[ERROR] Plugin x could not be resolved",
        ),
        ("Traceback\n  File x\nSyntaxError: invalid syntax\n", "SyntaxError: invalid syntax"),
        ("\x1b[31merror\x1b[0m: red\n", "error: red"),
        ("nothing known\nlast line\n\n", "last line"),
        ("", ""),
    ],
)
def test_first_diagnostic_of_each_compiler(output: str, expected: str) -> None:
    assert first_diagnostic(output) == expected
