"""Tables for every place that shows one (terminal, text, Markdown, HTML, CSV, JSON); text of others made safe to show.

A cell may quote what others wrote: the name of a run, the first line of a compiler's output. Every format shows it and
acts on none of it; escaping happens here and nowhere else, so that who makes a table writes plain text.
"""

from __future__ import annotations

import contextlib
import csv
import html
import io
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mileage.errors import UsageError
from mileage.records import strict_json

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable
    from rich.text import Text


# --- Text of others, shown to a terminal, a page or a spreadsheet and nothing else, and text that goes to files ---
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


# Of what others wrote, in one cell.
_LONGEST = 2000


class Strong(str):
    """A cell that stands out where a format has bold type."""

    __slots__ = ()


class Markdown(str):
    """A cell that is Markdown already, as the documentation's own pages write it; other formats show it as it is."""

    __slots__ = ()


Cell = str | int | float | None
"""Text as it is to be shown, or a number for programs; None is empty."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    right: bool = False
    """Whether its cells are flush right, as numbers are."""
    wrap: bool = True
    """Whether a terminal may break its cells into lines."""
    widest: int | None = None
    """Most characters of a cell on a terminal; the other formats have all of it."""


@dataclass(frozen=True)
class Table:
    """Columns and rows, with a title and a note for whoever shows them."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    note: str = ""
    key: str = ""
    """Stable name, by which a reader of another format finds it."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise UsageError(f"a row must have {len(self.columns)} cells, not {len(row)}: {row}")

    @classmethod
    def of(
        cls,
        header: Iterable[str | Column],
        rows: Iterable[Sequence[Cell]],
        *,
        left: Collection[str] | None = None,
        title: str = "",
        note: str = "",
        key: str = "",
    ) -> Table:
        """A table with these columns and rows.

        Args:
            header: names of columns, or columns.
            rows: a cell for every column.
            left: names of the columns that are flush left; without it, all that hold anything but numbers.
            title: a few words.
            note: sentences below the table.
            key: its name for programs.
        """
        cells = tuple(tuple(row) for row in rows)
        columns = []
        for index, column in enumerate(header):
            if isinstance(column, str):
                numbers = all(_is_number(row[index]) for row in cells) if left is None else column not in left
                column = Column(column, right=numbers)
            columns.append(column)
        return cls(tuple(columns), cells, title, note, key)

    @property
    def header(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    def terminal(self, *, boxed: bool = True) -> TerminalTable:
        """The table for a console of rich: in a box with its title, or bare with bold names.

        Where it is too wide, columns of words give way and are broken into lines; a number is never cut or broken.
        """
        from rich.table import Table as TerminalTable
        from rich.text import Text

        if boxed:
            shown = TerminalTable(title=Text(self.title) if self.title else None)
        else:
            shown = TerminalTable(box=None, pad_edge=False, header_style="bold")
        for index, column in enumerate(self.columns):
            shown.add_column(
                Text(plain(column.name)),
                justify="right" if column.right else "left",
                no_wrap=not column.wrap,
                overflow="fold" if column.wrap else "ellipsis",
                min_width=self._widest_number(index),
                max_width=column.widest,
            )
        for row in self.rows:
            shown.add_row(*(_terminal_cell(cell) for cell in row))
        return shown

    def _widest_number(self, index: int) -> int | None:
        """What a column of numbers needs on a terminal; words can do with less."""
        column = self.columns[index]
        if not column.right or column.widest is not None:
            return None
        return max((len(_shown(row[index])) for row in self.rows), default=0)

    def text(self, indent: str = "") -> str:
        """Lines of plain text with aligned columns, without the title."""
        lines = [self.header, *([_shown(cell) for cell in row] for row in self.rows)]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        return "\n".join(
            indent
            + "  ".join(
                cell.rjust(width) if column.right else cell.ljust(width)
                for cell, width, column in zip(line, widths, self.columns, strict=True)
            ).rstrip()
            for line in lines
        )

    def markdown(self) -> str:
        """A Markdown table, and the note as a paragraph below it."""
        lines = [
            [markdown(name, _LONGEST) for name in self.header],
            ["---:" if column.right else "---" for column in self.columns],
            *([_markdown_cell(cell) for cell in row] for row in self.rows),
        ]
        note = f"\n\n{markdown(self.note, _LONGEST)}" if self.note else ""
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + note

    def html(self) -> str:
        """A table element, its key as `id`, and the note as a paragraph below it."""
        kinds = [' class="number"' if column.right else "" for column in self.columns]
        head = "".join(f"<th>{html.escape(plain(name, _LONGEST))}</th>" for name in self.header)
        body = "".join(
            "<tr>"
            + "".join(f"<td{kind}>{_html_cell(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
            + "</tr>"
            for row in self.rows
        )
        name = f' id="{html.escape(plain(self.key))}"' if self.key else ""
        note = f"<p>{html.escape(plain(self.note, _LONGEST))}</p>" if self.note else ""
        return f"<table{name}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    def csv(self) -> str:
        """Comma-separated lines, the names first; no cell is taken for a formula by a spreadsheet."""
        return "".join(csv_line(line) for line in (self.header, *self.rows))

    def records(self) -> list[dict[str, Cell]]:
        """One object per row, its cells by the names of the columns."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]

    def json(self) -> str:
        """`records` as JSON."""
        return strict_json(self.records())


def _is_number(cell: Cell) -> bool:
    if not isinstance(cell, str):
        return True
    return cell == "–" or cell.strip("–x× ").replace(",", "").replace(".", "", 1).lstrip("-").isdigit()


def _shown(cell: Cell) -> str:
    return "" if cell is None else plain(str(cell), _LONGEST)


def _terminal_cell(cell: Cell) -> Text:
    from rich.text import Text

    return Text(_shown(cell), style="bold" if isinstance(cell, Strong) else "")


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, Markdown):
        return plain(cell, _LONGEST).replace("|", "\\|")
    shown = markdown("" if cell is None else str(cell), _LONGEST)
    return f"**{shown}**" if isinstance(cell, Strong) else shown


def csv_line(cells: Sequence[Cell]) -> str:
    """One line of CSV; no cell is taken for a formula by a spreadsheet."""
    # With its own ending, the writer quotes line breaks of either kind.
    text = io.StringIO(newline="")
    csv.writer(text).writerow([spreadsheet_cell(cell) if isinstance(cell, str) else cell for cell in cells])
    return text.getvalue().removesuffix("\r\n") + "\n"


def _html_cell(cell: Cell) -> str:
    shown = html.escape(_shown(cell))
    return f"<strong>{shown}</strong>" if isinstance(cell, Strong) else shown
