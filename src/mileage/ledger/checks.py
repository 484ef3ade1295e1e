"""Is the ledger well? One check per thing that can go wrong, each with what was found."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from mileage.ledger import queries, schema, spool
from mileage.ledger.database import schema_version
from mileage.ledger.store import Store


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    found: str


def check_store(store: Store) -> list[Check]:
    """Look at everything; opening the store has already delivered waiting rows and closed dead runs."""
    version = schema_version(store.engine)
    checks = [
        Check("address", True, store.shown_url),
        Check("schema", version == schema.HEAD, f"version {version}, newest is {schema.HEAD}"),
    ]
    with store.engine.connect() as connection:
        if store.engine.dialect.name == "sqlite":
            journal = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())
            integrity = str(connection.exec_driver_sql("PRAGMA quick_check").scalar())
            checks.append(Check("journal", journal == "wal", journal))
            checks.append(Check("integrity", integrity == "ok", integrity))
        counts = {
            name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() or 0
            for name, table in schema.TABLES.items()
        }
        orphans = _orphans(connection)
    checks.append(Check("rows", True, ", ".join(f"{count:,} {name}" for name, count in counts.items())))
    checks.append(Check("rows without a run", orphans == 0, f"{orphans:,}"))
    running = store.read(queries.open_runs)
    checks.append(Check("running", True, f"{len(running):,} runs"))
    waiting = spool.waiting(store.spool_dir)
    checks.append(Check("waiting", True, f"{len(waiting):,} spool files in {store.spool_dir}"))
    return checks


def _orphans(connection: sa.Connection) -> int:
    """Ends of runs that are not there: a sign that rows were lost."""
    known = sa.select(schema.run.c.run_id).where(schema.run.c.run_id == schema.end.c.run_id).exists()
    return connection.execute(sa.select(sa.func.count()).select_from(schema.end).where(~known)).scalar() or 0
