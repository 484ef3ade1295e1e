"""Profiles and the ledger: a profile under its run's id, anyone's run read back, the time failed runs took."""

from __future__ import annotations

import json

from mileage._errors import LedgerError, UsageError
from mileage._records import ReadRecord, Record
from mileage.ledger import queries
from mileage.ledger.rows import EndState, check_json
from mileage.ledger.rows import Profile as ProfileRow
from mileage.ledger.selectors import Selector
from mileage.ledger.store import Store
from mileage.profiling.end_to_end import EndToEnd

_FAILED = (EndState.FAILED, EndState.CRASHED)


def save(db: str | None, run_id: str, summary: ReadRecord, wall_seconds: float) -> None:
    """Keep a profile's summary under the id of its run."""
    with Store(db, create=False) as store:
        seq = 1 + max((row.seq for row in store.read(queries.profiles, run_id)), default=0)
        store.deliver([ProfileRow(run_id, seq, wall_seconds, check_json("profiler summary", dict(summary)))])


def failed_share(db: str | None, workload: ReadRecord, name: str | None = None) -> float:
    """Of the wall-clock of all ended runs of this workload (or name), the share of those that failed or crashed."""
    selector = Selector(name=name)
    if name is None:
        selector = Selector(fields=(("algorithm", workload["algorithm"]), ("env_id", workload["env"])))
    try:
        with Store(db, create=False) as store:
            records = store.read(queries.records, selector)
    except LedgerError:
        return 0.0
    billed = [(record.state, record.metric("billable_seconds") or 0.0) for record in records if record.end is not None]
    whole = sum(seconds for _, seconds in billed)
    failed = sum(seconds for state, seconds in billed if state in _FAILED)
    return failed / whole if whole > 0.0 else 0.0


def read_run(db: str | None, selection: str) -> tuple[EndToEnd, Record, float]:
    """A recorded run as phases, its workload, and the share of time that failed runs like it took."""
    with Store(db, create=False) as store:
        recorded = store.read(queries.complete, store.read(queries.only_record, selection), episodes_too=False)
    run = recorded.run
    if not recorded.phase_rows:
        raise UsageError(f"run {run.run_id} has no phases yet: wait until it has written some, or ended")
    workload = {
        "algorithm": run.algorithm,
        "env": run.env_id,
        "backend": run.framework,
        "seed": run.seed,
        "threads": 1,
        "config": json.loads(run.config),
        "machine": json.loads(run.machine),
        "name": run.name,
        "native_env": "rollout" in recorded.phases,
    }
    return EndToEnd(recorded), workload, failed_share(db, workload, run.name)
