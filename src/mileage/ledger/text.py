"""Text of others on its way to a terminal, a page or a spreadsheet."""

from __future__ import annotations

import html
import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def plain(text: str, limit: int = 500) -> str:
    """Return `text` on one line without anything a terminal would act on.

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


def markdown_cell(text: str) -> str:
    """Return `text` as one cell of a Markdown table that shows it and does nothing else."""
    shown = html.escape(plain(text), quote=False)
    for char in "\\`*_{}[]()#+!|~":
        shown = shown.replace(char, "\\" + char)
    return shown


def spreadsheet_cell(text: str) -> str:
    """Return `text` such that a spreadsheet does not take it for a formula."""
    return "'" + text if text.startswith(_FORMULA) or (text.startswith("'") and text[1:2] in (*_FORMULA, "'")) else text


def from_spreadsheet_cell(text: str) -> str:
    """Undo `spreadsheet_cell`."""
    return text[1:] if text.startswith("'") and text[1:2] in (*_FORMULA, "'") and len(text) > 1 else text
