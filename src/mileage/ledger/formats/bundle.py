"""Everything the ledger knows about one run, and flat rows made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mileage._errors import UsageError
from mileage.ledger.rows import Checkpoint, End, Episode, Phase, Profile, Run

if TYPE_CHECKING:
    from mileage.ledger.store import Store

RUNNING = "running"
JSON_FIELDS = ("config", "machine", "panel", "price", "reset_reasons", "claimed", "gpus", "summary")
TABLES = ("runs", "checkpoints", "phases", "episodes")


@dataclass(frozen=True)
class Bundle:
    """One run with all its rows."""

    run: Run
    end: End | None
    checkpoints: tuple[Checkpoint, ...] = ()
    phases: tuple[Phase, ...] = ()
    episodes: tuple[Episode, ...] = ()
    profiles: tuple[Profile, ...] = ()

    @property
    def state(self) -> str:
        """An end state, or `running`."""
        return self.end.state if self.end else RUNNING


def load_bundles(store: Store, selection: str | None) -> list[Bundle]:
    """Return the selected runs, all of them for None, in launch order."""
    from mileage.ledger import queries

    if selection is None:
        records = store.read(queries.records, newest_first=False)
    else:
        records = store.read(queries.select_records, selection)
    return [
        Bundle(
            record.run,
            record.end,
            tuple(store.read(queries.checkpoints, record.run.run_id)),
            tuple(store.read(queries.latest_phases, record.run.run_id)),
            tuple(store.read(queries.episodes, record.run.run_id)),
            tuple(store.read(queries.profiles, record.run.run_id)),
        )
        for record in records
    ]


def table_rows(bundles: Sequence[Bundle], table: str) -> list[dict[str, Any]]:
    """Return one flat row per run, checkpoint, phase or episode; each carries its run's id and name."""
    if table not in TABLES:
        raise UsageError(f"table {table!r} is not known: use one of {', '.join(TABLES)}")
    rows: list[dict[str, Any]] = []
    for bundle in bundles:
        if table == "runs":
            rows.append(run_row(bundle))
            continue
        parts: dict[str, Sequence[Any]] = {
            "checkpoints": bundle.checkpoints,
            "phases": bundle.phases,
            "episodes": bundle.episodes,
        }
        rows += [{"run_id": bundle.run.run_id, "name": bundle.run.name, **row._asdict()} for row in parts[table]]
    return rows


def run_row(bundle: Bundle) -> dict[str, Any]:
    """Return a run and its end as one flat row."""
    end = bundle.end._asdict() if bundle.end else dict.fromkeys(End._fields)
    return {**bundle.run._asdict(), **end, "run_id": bundle.run.run_id, "state": bundle.state}


def unpacked(row: dict[str, Any]) -> dict[str, Any]:
    """Return `row` with its JSON texts as values."""
    return {
        name: json.loads(value) if name in JSON_FIELDS and isinstance(value, str) else value
        for name, value in row.items()
    }
