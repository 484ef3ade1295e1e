"""Empty ledgers on both databases, with a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, cannot_serve

from mileage.ledger.store import Store

BACKENDS = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    missing = cannot_serve()
    if missing is not None:
        pytest.skip(missing)
    running = PostgresServer()
    running.start()
    yield running
    running.stop()
    running.remove()


_databases = iter(range(1_000_000))


@pytest.fixture(params=BACKENDS)
def db(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty ledger."""
    monkeypatch.setenv("MILEAGE_SPOOL", str(tmp_path / "spool"))
    if request.param == "sqlite":
        return str(tmp_path / "mileage.db")
    server: PostgresServer = request.getfixturevalue("server")
    return server.empty_ledger(f"ledger{next(_databases)}")


@pytest.fixture
def store(db: str) -> Iterator[Store]:
    with Store(db) as opened:
        yield opened
