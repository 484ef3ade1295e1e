"""What tests of places ask of the machine and of the ledger."""

from __future__ import annotations

import os
from pathlib import Path

from mileage.ledger import queries
from mileage.ledger.queries import Selector
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store


def recorded(db: Path) -> list[RecordedRun]:
    """All runs of a ledger, in the order of their launch."""
    with Store(str(db)) as store:
        return sorted(store.read(queries.records, Selector(), limit=None), key=lambda record: record.run.launched_at)


def pids_of(folder: Path) -> list[int]:
    """Processes whose command line names `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
