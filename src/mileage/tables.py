"""One table for every place that shows one: terminal, plain text, Markdown, HTML, CSV and JSON.

A cell may quote what others wrote: the name of a run, the first line of a compiler's output. Every format shows it and
acts on none of it; escaping happens here and nowhere else, so that who makes a table writes plain text.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mileage._errors import UsageError
from mileage._records import strict_json
from mileage.text import markdown, plain, spreadsheet_cell

if TYPE_CHECKING:  # takes a while to import, and files need none of it
    from rich.table import Table as TerminalTable
    from rich.text import Text

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
