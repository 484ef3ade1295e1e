from __future__ import annotations

from typing import Any

import pytest

from mileage.coderl.patching import PatchSample
from mileage.coderl.trainers import answer_of, candidate, code_of, completion_text

DIFF = "--- a/part.h\n+++ b/part.h\n@@ -1 +1 @@\n-int part(int x);\n+int part(int y);\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Sure!\n```c\nint x;\n```\nDone.", "int x;\n"),
        ("~~~c\nint x;\n~~~\n", "int x;\n"),
        ("~~~~\na\n~~~\nb\n~~~~\n", "a\n~~~\nb\n"),
        ("````md\n```c\nx\n```\n````\n", "```c\nx\n```\n"),
        ("```c title=main.c\nint x;\n```", "int x;\n"),
        ("```rust\nfn main() {}", "fn main() {}"),
        ("write ```x``` and\nthat is all", "write ```x``` and\nthat is all"),
        ("int x;", "int x;"),
    ],
)
def test_code_is_taken_from_a_fence_or_as_it_is(text: str, code: str) -> None:
    assert code_of(text) == code


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\n```c\ndraft\n```\n</think>\nreal", "\nreal"),
        ("draft, opened by the prompt\n</think>\nreal", "\nreal"),
        ("<think>never ends ```c\ndraft\n```", ""),
        ("<Thinking>a</Thinking>b\n<think>c</think>d", "b\nd"),
        ('puts("<think>");', 'puts("<think>");'),
        ('puts("</think>");\nputs("x");', 'puts("</think>");\nputs("x");'),
        ("<think><think>a</think>\n```c\ndraft\n```\n</think>real", "real"),
        ("<think>one may write <think> here</think>real", "real"),
        ("<|channel|>analysis<|message|>draft<|end|><|channel|>final<|message|>real", "real"),
        ("nothing to drop", "nothing to drop"),
    ],
)
def test_the_answer_is_taken_and_not_the_draft(text: str, answer: str) -> None:
    assert answer_of(text) == answer


def test_a_candidate_is_the_answer_of_a_completion() -> None:
    draft = f"<think>\n```diff\n{DIFF.replace('y', 'draft')}```\n</think>\n"
    assert candidate()(f"{draft}~~~diff\n{DIFF}~~~\n", {"id": 4}) == PatchSample("4", patch=DIFF)
    assert candidate("part.c")("--- not a diff\n", {}) == PatchSample("", path="part.c", content="--- not a diff\n")


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("plain", "plain"),
        ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], "b"),
        ([{"role": "assistant", "content": "answer"}, {"role": "tool", "content": "log"}], "answer"),
        ([{"role": "assistant", "content": [{"type": "image"}, {"type": "text", "text": "x"}]}], "x"),
        ({"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ([{"role": "assistant", "content": None}], ""),
        ([], ""),
        (None, ""),
        ([7], ""),
    ],
)
def test_messages_of_every_shape_have_a_text(completion: Any, text: str) -> None:
    assert completion_text(completion) == text


def test_a_run_of_marks_takes_no_quadratic_time() -> None:
    # Half a million marks that open nothing: tried from each of them, this would take hours.
    text = "`" * 500_000
    assert code_of(text) == text
    assert code_of("~" * 500_000 + "x") == "~" * 500_000 + "x"
