"""Text of others, shown to a terminal, a page or a spreadsheet and nothing else, and text that goes to files."""

from __future__ import annotations

import contextlib
import html
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from mileage._errors import UsageError

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
# A program that takes every line break for the end of a row, quoted or not, finds the beginning of a cell there.
_BREAK = "[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]"
_LINE_TO_GUARD = re.compile(f"(?<={_BREAK})(?='*[=+\\-@\t＝＋－＠])")
_GUARDED_LINE = re.compile(f"(?<={_BREAK})'(?='*[=+\\-@\t＝＋－＠])")
# What Markdown acts on inside a line. An underscore within a word is none of it, and brackets make a link only where
# another bracket follows.
_MARKDOWN = re.compile(r"[\\`*|~]|\](?=[(\[])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def plain(text: str, limit: int = 500) -> str:
    """`text` on one line without anything a terminal would act on.

    Control characters (escape codes among them), direction overrides, surrogates and private characters become `�`;
    line breaks and tabs become spaces.
    """
    shown = "".join(_plain_char(char) for char in text[:limit])
    return shown + "…" if len(text) > limit else shown


def _plain_char(char: str) -> str:
    if char.isascii():
        return char if char.isprintable() else " " if char in "\n\r\t" else "�"
    category = unicodedata.category(char)
    if category in ("Zl", "Zp"):
        return " "
    return "�" if category in ("Cc", "Cf", "Cs", "Co", "Cn") else char


def markdown(text: str, limit: int = 500) -> str:
    """`text` as part of a line of Markdown, or as a cell of a table, that shows it and does nothing else."""
    return html.escape(_MARKDOWN.sub(r"\\\g<0>", plain(text, limit)), quote=False)


def spreadsheet_cell(text: str) -> str:
    """`text` such that a spreadsheet takes neither it nor a line of it for a formula."""
    text = _LINE_TO_GUARD.sub("'", text)
    return "'" + text if text.startswith(_FORMULA) or (text.startswith("'") and text[1:2] in (*_FORMULA, "'")) else text


def from_spreadsheet_cell(text: str) -> str:
    """What `spreadsheet_cell` was given."""
    text = text[1:] if text.startswith("'") and text[1:2] in (*_FORMULA, "'") and len(text) > 1 else text
    return _GUARDED_LINE.sub("", text)


@contextlib.contextmanager
def written_to(path: Path, option: str) -> Iterator[None]:
    """For a body that writes the file that `option` names: its directory is made, and what fails is a UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}") from None


def write_text(path: Path, text: str, option: str) -> None:
    """Write `text` to the file that `option` names."""
    with written_to(path, option):
        path.write_text(text, encoding="utf-8")


def check_writable(path: Path, option: str) -> None:
    """UsageError, before anything is run, if that file could not be written; it stays as it is."""
    with written_to(path, option):
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
