from __future__ import annotations

from pathlib import Path

import pytest
from shown_runs import fill

from mileage.ledger.rows import Run


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Run]]:
    """A ledger that tests only read, and its runs."""
    db = tmp_path_factory.mktemp("ledger") / "l.db"
    return db, fill(db)


@pytest.fixture
def ledger(filled: tuple[Path, dict[str, Run]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """It, as the one that commands read."""
    monkeypatch.setenv("MILEAGE_DB", str(filled[0]))
    return filled[0]


@pytest.fixture
def runs(filled: tuple[Path, dict[str, Run]], ledger: Path) -> dict[str, Run]:
    """Its runs by name."""
    return filled[1]
