"""What a terminal shows of a watched program: the findings first, all of it within eighty columns."""

from __future__ import annotations

import textwrap
from dataclasses import replace

from mileage.text import plain
from mileage.watching.tables import share_of, tables
from mileage.watching.watch import Watched

WIDTH = 80
_LONGEST_CELL = 26


def lines(watched: Watched, first: int | None = None) -> list[str]:
    """Verdict, findings, then tables; or only so many findings."""
    found = [*_wrapped(watched.verdict), ""]
    for number, each in enumerate(watched.findings[:first], start=1):
        most = share_of(each)
        load = " (seen under load)" if each.under_load else ""
        found += _wrapped(
            f"{number}. {each.trouble.upper()}{f', at most {most}' if most else ''}{load}: {each.evidence}.", 3
        )
        found += _wrapped(f"   Try: {each.remedy}.", 3)
    for table in tables(watched) if first is None else ():
        rows = tuple(tuple(_short(cell) for cell in row) for row in table.rows)
        narrow = replace(table, rows=rows)
        while max(map(len, narrow.text().splitlines())) > WIDTH and len(narrow.columns) > 2:
            narrow = replace(narrow, columns=narrow.columns[:-1], rows=tuple(row[:-1] for row in narrow.rows))
        found += ["", table.title, *narrow.text().splitlines(), *(_wrapped(table.note) if table.note else [])]
    return found


def own_cost(watched: Watched, started_ns: int, now_ns: int) -> list[str]:
    """What was spent on watching: within the program, which grows with it, and beside it, which does not."""
    before, after = (watched.began_ns - started_ns) / 1e9, (now_ns - watched.began_ns) / 1e9 - watched.wall_seconds
    share = watched.watching_seconds / max(watched.evidence.cpu_seconds, 1e-9)
    within = f"took {watched.watching_seconds:.2f} s of CPU time ({share:.1%})"
    return _wrapped(f"Watching {within}; mileage itself {before:.1f} s before the program and {after:.1f} s after it.")


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(plain(text, 2000), WIDTH, subsequent_indent=" " * indent) or [""]


def _short(cell: str | int | float | None) -> str | int | float | None:
    """A cell by its end, which tells files apart."""
    if isinstance(cell, str) and len(cell) > _LONGEST_CELL:
        return "…" + cell[-_LONGEST_CELL + 1 :]
    return cell
