"""From what a model said to a candidate: the answer without the draft, the code without the prose.

Any text and any shape of message gives a candidate; whether that candidate applies is for the pool to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mileage._records import Record
from mileage.coderl.corpus import PatchSample

_THINKING = "think|thinking|thought|reasoning"
_OPEN = re.compile(rf"^[ \t]*<({_THINKING})>", re.IGNORECASE | re.MULTILINE)
_TAG = re.compile(rf"<(/?)({_THINKING})>", re.IGNORECASE)
# Without an opening one, a closing tag begins or ends its line: elsewhere it is part of a text or of code.
_CLOSE = re.compile(rf"^[ \t]*</({_THINKING})>|</({_THINKING})>(?=[ \t\r]*$)", re.IGNORECASE | re.MULTILINE)
# How gpt-oss says that what follows is not for itself.
_FINAL = "<|channel|>final<|message|>"
# Possessive: a run of marks that is no fence is not tried again from each of its marks.
_FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)([^\n]*+)\n", re.MULTILINE)
_DIFF = re.compile(r"^(?:diff --git |--- [^\n]*\n\+\+\+ )", re.MULTILINE)

# From the text of a completion and the row of the dataset it belongs to, to a candidate.
ToSample = Callable[[str, Record], PatchSample]


def completion_text(completion: Any) -> str:
    """The text of a completion: a string, a message, or the last message of a conversation; of parts, those of text."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        return _content_text(completion.get("content"))
    if not isinstance(completion, Sequence) or not completion:
        return ""
    messages = [message for message in completion if isinstance(message, Mapping)]
    answers = [message for message in messages if message.get("role", "assistant") == "assistant"]
    return completion_text((answers or messages)[-1]) if messages else ""


def _content_text(content: Any) -> str:
    """The text of a message: a string, or the text parts among others such as images."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    return "".join(part for part in parts if isinstance(part, str))


def answer_of(text: str) -> str:
    """`text` without what the model thought: <think> blocks, one that was opened by the prompt, one that never ends."""
    text = text.rpartition(_FINAL)[2]
    closed, opened = _CLOSE.search(text), _OPEN.search(text)
    if closed and (opened is None or closed.start() < opened.start()):
        text = text[closed.end() :]
    kept: list[str] = []
    position = 0
    while opened := _OPEN.search(text, position):
        kept.append(text[position : opened.start()])
        position = _end_of_thought(text, opened.end())
    return "".join(kept) + text[position:]


def _end_of_thought(text: str, start: int) -> int:
    """Where the block ends that began before `start`: at its own closing tag, else at the last one there is."""
    depth, end = 1, len(text)
    for tag in _TAG.finditer(text, start):
        depth += -1 if tag[1] else 1
        end = tag.end() if tag[1] else end
        if depth == 0:
            break
    return end


def code_of(text: str) -> str:
    """The first fenced block of `text` (``` or ~~~, closed or not), or all of it if there is none."""
    for match in _FENCE.finditer(text):
        mark, info = match[1], match[2]
        if mark[0] == "`" and "`" in info:
            continue  # code within a line
        end = re.compile(rf"^ {{0,3}}{mark[0]}{{{len(mark)},}}+[ \t\r]*+$", re.MULTILINE).search(text, match.end())
        return text[match.end() : end.start() if end else len(text)]
    return text


def candidate(path: str | None = None) -> ToSample:
    """A rule that reads the answer of a completion as a diff, or else as the new content of `path`.

    A `path` column of the dataset goes before the `path` given here.
    """

    def to_sample(text: str, row: Record) -> PatchSample:
        code = code_of(answer_of(text))
        name = str(row.get("id", ""))
        if _DIFF.search(code):
            return PatchSample(name, patch=code)
        return PatchSample(name, path=row.get("path") or path, content=code)

    return to_sample
