from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from mileage.tables import from_spreadsheet_cell, markdown, plain, spreadsheet_cell


def test_plain_keeps_words_and_drops_what_a_terminal_acts_on() -> None:
    assert plain("naïve 日本 🙂") == "naïve 日本 🙂"
    assert plain("\x1b[31mred\x1b[0m\x07") == "�[31mred�[0m�"
    assert plain("two\nlines\tand\rmore") == "two lines and more"
    assert plain("a\u202eb\u200bc\x9bd\ue000") == "a�b�c�d�"
    assert plain("x" * 600) == "x" * 500 + "…"


@given(st.text(max_size=200))
def test_plain_never_lets_a_control_or_format_character_through(text: str) -> None:
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in plain(text))


def test_markdown_cells_cannot_leave_their_cell_or_become_html() -> None:
    assert markdown("a|b<script>`x`[y](z)") == "a\\|b&lt;script&gt;\\`x\\`[y\\](z)"
    assert "\n" not in markdown("a\n|---|")
    assert markdown("env_step _x_ ~y~ **z** \\|") == "env_step \\_x\\_ \\~y\\~ \\*\\*z\\*\\* \\\\\\|"


def test_formulas_are_disarmed() -> None:
    assert spreadsheet_cell("=cmd|' /C calc'!A0") == "'=cmd|' /C calc'!A0"
    assert spreadsheet_cell("plain") == "plain"


@given(st.text(max_size=20))
def test_spreadsheet_cells_come_back(text: str) -> None:
    cell = spreadsheet_cell(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert from_spreadsheet_cell(cell) == text
