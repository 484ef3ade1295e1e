"""One table in every format; whatever a cell contains is shown and not acted on."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from mileage.errors import UsageError
from mileage.tables import Column, Markdown, Strong, Table, from_spreadsheet_cell, plain

TABLE = Table.of(
    ("name", "n", "ratio"), [("a", 1, "2.0×"), ("b", "1,200.5", "–")], title="Speed", note="Of one run.", key="speed"
)
# Pieces that mean something to one of the formats, more often than chance would put them together.
SPECIAL = st.sampled_from(
    [*"|`*_~[]()<>&\\'\"=+-@#!:$\t\r\n ", "<script>", "](x)", "**", "__", "\\|", "&lt;", "[bold]", "\x1b[31m", "\u202e",
     "=1+1", "http://x.y", "![](z)", "||", "---"]
)  # fmt: skip
HOSTILE = st.lists(st.one_of(SPECIAL, st.text(max_size=5)), max_size=12).map("".join)


def test_markdown_aligns_numbers_and_puts_the_note_below() -> None:
    assert TABLE.markdown().splitlines() == [
        "| name | n | ratio |",
        "| --- | ---: | ---: |",
        "| a | 1 | 2.0× |",
        "| b | 1,200.5 | – |",
        "",
        "Of one run.",
    ]


def test_plain_text_is_aligned_too() -> None:
    assert TABLE.text(indent="  ").splitlines() == [
        "  name        n  ratio",
        "  a           1   2.0×",
        "  b     1,200.5      –",
    ]


def test_html_has_its_key_and_a_class_for_numbers() -> None:
    assert TABLE.html() == (
        '<table id="speed"><thead><tr><th>name</th><th>n</th><th>ratio</th></tr></thead><tbody>'
        '<tr><td>a</td><td class="number">1</td><td class="number">2.0×</td></tr>'
        '<tr><td>b</td><td class="number">1,200.5</td><td class="number">–</td></tr></tbody></table><p>Of one run.</p>'
    )


def test_csv_and_json_keep_numbers() -> None:
    table = Table.of(("name", "n"), [("=1+1", -2), (None, 0.5)])
    assert table.csv() == "name,n\n'=1+1,-2\n,0.5\n"
    assert json.loads(table.json()) == [{"name": "=1+1", "n": -2}, {"name": None, "n": 0.5}]


def test_a_terminal_shows_title_names_and_cells() -> None:
    shown = printed(Table.of(("name", "n"), [("[red]x[/red]", Strong("7"))], left=("name",), title="Few"))
    assert "Few" in shown
    assert "[red]x[/red]" in shown
    bare = printed(Table.of([Column("long", wrap=False, widest=5)], [("abcdefgh",)]), boxed=False)
    assert bare.split() == ["long", "abcd…"]


def test_some_cells_stand_out() -> None:
    table = Table.of(("a", "b"), [(Strong("x|y"), Markdown("`n|m`"))])
    assert table.markdown().splitlines()[-1] == "| **x\\|y** | `n\\|m` |"
    assert "<td><strong>x|y</strong></td><td>`n|m`</td>" in table.html()


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(UsageError, match="a row must have 2 cells, not 1"):
        Table.of(("a", "b"), [("x",)], left=())


def printed(table: Table, *, boxed: bool = True) -> str:
    out = io.StringIO()
    Console(file=out, width=400, force_terminal=False).print(table.terminal(boxed=boxed))
    return out.getvalue()


def hostile_table(cell: str) -> Table:
    return Table.of(("name", "other"), [(cell, "x")], left=("name", "other"))


@given(HOSTILE)
def test_markdown_shows_a_cell_and_does_nothing_else(cell: str) -> None:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(hostile_table(cell).markdown())
    kinds = [token.type for token in tokens]
    assert kinds.count("tr_open") == 2
    assert kinds.count("td_open") == 2
    assert not any(kind.startswith("html") for kind in kinds)
    inline = [token for token in tokens if token.type == "inline"][2]
    assert {child.type for child in inline.children or ()} <= {"text", "text_special"}
    shown = "".join(child.content for child in inline.children or ())
    assert shown == plain(cell).strip()


class Reader(HTMLParser):
    """The text of every cell, and every tag there is."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1] == "td":
            self.cells[-1] += data


@given(HOSTILE)
def test_html_shows_a_cell_and_does_nothing_else(cell: str) -> None:
    reader = Reader()
    reader.feed(hostile_table(cell).html())
    assert reader.tags == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td"]
    assert reader.cells == [plain(cell), "x"]


@given(HOSTILE)
def test_csv_cells_come_back_and_are_no_formulas(cell: str) -> None:
    _, row = csv.reader(io.StringIO(hostile_table(cell).csv(), newline=""))
    assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert from_spreadsheet_cell(row[0]) == cell


@given(HOSTILE)
def test_a_terminal_gets_nothing_to_act_on(cell: str) -> None:
    table = hostile_table(cell)
    for shown in (printed(table), printed(table, boxed=False), table.text()):
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in shown.replace("\n", ""))
    assert plain(cell).strip() in printed(table, boxed=False)


@given(HOSTILE)
def test_json_keeps_a_cell(cell: str) -> None:
    assert json.loads(hostile_table(cell).json()) == [{"name": cell, "other": "x"}]
