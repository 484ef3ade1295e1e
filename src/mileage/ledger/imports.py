"""Taking rows in from a file: all of them or none, and a word about what was done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mileage._errors import UsageError
from mileage.ledger import queries, schema
from mileage.ledger.claims import check_seconds
from mileage.ledger.rows import KIND_OF, ClosedBy, End, EndState, Note, NoteKind, Row, Run
from mileage.ledger.secrets import TEXT_FIELDS, scrubbed_row
from mileage.ledger.store import Store


@dataclass(frozen=True)
class Imported:
    """What an import did."""

    run_ids: list[str]
    """Every run of the files."""
    added: dict[str, int]
    """Rows that were not there before, by kind."""
    there: dict[str, int]
    """Rows that were there already, by kind."""
    claimed: int
    """Runs that only claim to have reached their target."""

    def sentence(self) -> str:
        """The same in one line."""
        runs, before = self.added.get("run", 0), self.there.get("run", 0)
        rows = ", ".join(f"{count:,} {kind} rows" for kind, count in self.added.items() if count and kind != "run")
        already = f"; {before:,} runs were there already" if before else ""
        claims = f"; {self.claimed:,} only claim to have reached their target" if self.claimed else ""
        return f"imported {runs:,} runs" + (f" with {rows}" if rows else "") + already + claims


def take_in(store: Store, rows: Sequence[Row]) -> Imported:
    """Deliver `rows`, all or none; UsageError if they contradict themselves or what the ledger has."""
    _check_among_themselves(rows)
    runs = [row for row in rows if isinstance(row, Run)]
    for run in runs:
        if run.parent_run_id == run.run_id:
            raise UsageError(f"run {run.run_id} of the file resumes itself: nothing was imported")
        _check_against(store.read(queries.run, run.run_id), run)
    given: dict[str, int] = {}
    for row in rows:
        given[KIND_OF[type(row)]] = given.get(KIND_OF[type(row)], 0) + 1
    added = store.deliver_together(rows)
    there = {kind: n - added.get(kind, 0) for kind, n in given.items()}
    claimed = sum(isinstance(row, End) and row.state == EndState.CLAIMED for row in rows)
    return Imported([run.run_id for run in runs], added, there, claimed)


def _check_among_themselves(rows: Sequence[Row]) -> None:
    seen: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        kind = KIND_OF[type(row)]
        key = (kind, *(getattr(row, name) for name in schema.KEYS[kind]))
        if seen.setdefault(key, row) != row:
            raise UsageError(f"the file has two different {kind} rows for {', '.join(map(str, key[1:]))}")
        if isinstance(row, End):
            _check_word("state", row.state, [state.value for state in EndState])
            _check_word("closed_by", row.closed_by, [who.value for who in ClosedBy])
        if isinstance(row, Note):
            _check_word("kind", row.kind, [kind.value for kind in NoteKind])
        check_seconds(row)


def _check_word(field: str, value: str, known: list[str]) -> None:
    if value not in known:
        raise UsageError(f"{field} must be one of {', '.join(known)}, not {value[:80]!r}")


def _check_against(there: Run | None, run: Run) -> None:
    """A run id stands for one run: the same one may come again, another one may not."""
    if there is None:
        return
    clean = scrubbed_row(run)
    free = {*TEXT_FIELDS["run"], "launched_by", "host", "git_revision", "name"}  # may have been redacted since
    for field, ours, theirs in zip(Run._fields, there, clean, strict=True):
        if field not in free and ours != theirs:
            raise UsageError(
                f"run {run.run_id} is in the ledger already with {field} {str(ours)[:80]!r}, not {str(theirs)[:80]!r}: "
                "nothing was imported"
            )
