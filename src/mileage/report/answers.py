"""What `ledger list` and `ledger show` answer, the same by `--json` and from a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mileage.errors import UsageError
from mileage.ledger import exporting, queries
from mileage.ledger.exporting import policy_row, run_row, unpacked
from mileage.ledger.matching import rejudged
from mileage.ledger.queries import Selector
from mileage.ledger.runs import STATES, RecordedRun
from mileage.ledger.store import Store
from mileage.ledger.targets import Target
from mileage.records import Record
from mileage.report.cost import CostReport


def check_listing(state: str | None, limit: int) -> None:
    """UsageError if no ledger could be listed so."""
    if limit < 0:
        raise UsageError(f"--limit must be 0 or more, not {limit}")
    if state is not None and state not in STATES:
        raise UsageError(f"--state {state!r} is not known: use one of {', '.join(STATES)}")


def listed(
    store: Store, selection: str | None = None, *, state: str | None = None, limit: int = 50
) -> list[RecordedRun]:
    """The newest `limit` runs of a selection, all for 0, with what those have used that they resume."""
    check_listing(state, limit)
    if selection is None:
        selector = Selector(fields=() if state is None else (("state", state),))
        records = store.read(queries.records, selector, limit=limit or None)
    else:
        found = store.read(queries.select_records, selection)
        records = [record for record in reversed(found) if state in (None, record.state)][: limit or None]
    return store.read(queries.with_parents, records)


def list_answer(records: Sequence[RecordedRun]) -> list[Record]:
    """Runs as plain JSON values."""
    return [unpacked(run_row(record)) for record in records]


def shown_run(store: Store, run: str, *, target: str | None = None) -> RecordedRun:
    """The one run that `run` names, with all its rows but the episodes; judged by `target` where there is one."""
    (found,) = store.read(queries.with_parents, [store.read(queries.only_record, run)])
    recorded = store.read(queries.complete, found, episodes_too=target is not None)
    return recorded if target is None else replace(rejudged(recorded, Target.parse(target)), episodes=())


def run_answer(recorded: RecordedRun) -> Record:
    """Everything about a run as plain JSON values."""
    content = exporting.as_dict(recorded)
    content["report"] = CostReport(recorded).as_dict() if recorded.end else None
    content["policy"] = policy_row(recorded.checkpoints)
    content["so_far"] = None if recorded.end else recorded.metrics
    return content
