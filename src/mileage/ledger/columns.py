"""CSV files with columns that must be there."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from mileage.errors import UsageError

Cells = Mapping[str, str | None]


def csv_rows(
    path: Path, needed: Sequence[str], missing: Callable[[str], str], name: str = ""
) -> Iterator[tuple[int, Cells]]:
    """The rows of a file with their line numbers, cells by column.

    Args:
        path: of the file.
        needed: columns that it must have.
        missing: the sentence that says so of one it does not have.
        name: what the file is called where it cannot be read, if not by its path alone.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            absent = [column for column in needed if column not in (rows.fieldnames or ())]
            if absent:
                raise UsageError(missing(absent[0]))
            for row in rows:
                yield rows.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{name or path} cannot be read: {error}") from None
