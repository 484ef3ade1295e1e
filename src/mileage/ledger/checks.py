"""Is the ledger well? One check per thing that can go wrong, each with what was found."""

from __future__ import annotations

from pathlib import Path
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
            well = journal == "wal" or store.trouble is not None
            checks.append(Check("journal", well, _journal_words(store, journal)))
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
    waiting = spool.waiting(*store.spool_dirs)
    checks.append(Check("waiting", True, f"{len(waiting):,} spool files in {store.spool_dirs[0]}"))
    trouble = store.trouble or store.refusal()
    checks.append(Check("writable", trouble is None, trouble or "yes"))
    return checks


def _journal_words(store: Store, journal: str) -> str:
    """The journal's mode, and how much of the ledger a copy of its file alone would miss."""
    path = Path(store.url.removeprefix("sqlite:///"))
    beside = path.with_name(path.name + "-wal")
    size = beside.stat().st_size if beside.is_file() else 0
    held = f", up to {size / 1e3:,.0f} kB of the last seconds are in {beside.name}" if size else ""
    return f"{journal}{held}; copy a ledger with `mileage ledger backup FILE`, not its file alone"


def _orphans(connection: sa.Connection) -> int:
    """Ends of runs that are not there: a sign that rows were lost."""
    known = sa.select(schema.run.c.run_id).where(schema.run.c.run_id == schema.end.c.run_id).exists()
    return connection.execute(sa.select(sa.func.count()).select_from(schema.end).where(~known)).scalar() or 0
