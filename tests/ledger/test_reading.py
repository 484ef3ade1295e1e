"""Reading a ledger that cannot be written to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_rows import make_checkpoint, make_end, make_run

import mileage
from mileage.errors import LedgerError
from mileage.ledger import queries
from mileage.ledger.checks import check_store
from mileage.ledger.database import connect, migrate, open_read_only
from mileage.ledger.store import Store


def _fill(db: Path) -> None:
    run = make_run(name="kept", launched_at=1000.0)
    with Store(db) as store:
        store.deliver([run, make_checkpoint(run, 1), make_end(run)])


def _read_only_file(db: Path) -> None:
    db.chmod(0o444)


def _read_only_directory(db: Path) -> None:
    db.chmod(0o444)
    db.parent.chmod(0o555)


def _unsettled(db: Path) -> None:
    """Rows that are in the journal alone, as a killed writer leaves them, in a directory that is closed."""
    with Store(db) as store:
        run = make_run(name="in the journal", launched_at=2000.0)
        store.deliver([run, make_end(run)])
        for suffix in ("", "-wal"):
            path = db.with_name(db.name + suffix)
            path.with_name("copy.db" + suffix).write_bytes(path.read_bytes())
    for path in (db, db.with_name(db.name + "-wal"), db.with_name(db.name + "-shm")):
        path.unlink(missing_ok=True)
    for suffix in ("", "-wal"):
        os.replace(db.with_name("copy.db" + suffix), db.with_name(db.name + suffix))
        db.with_name(db.name + suffix).chmod(0o444)
    db.parent.chmod(0o555)


def _old_schema(db: Path) -> None:
    db.unlink()
    engine = connect(f"sqlite:///{db}")
    migrate(engine, "0003")
    engine.dispose()
    _read_only_directory(db)


def _bound_by_permissions(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of the ledger such that the permissions of files hold it back, even as root."""
    root = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    source = str(Path(mileage.__file__).parent.parent)
    return subprocess.run(
        [*root, sys.executable, "-m", "mileage", "ledger", *arguments],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], "PYTHONPATH": source},
    )  # fmt: skip


@pytest.mark.skipif(os.getuid() == 0 and shutil.which("setpriv") is None, reason="root without setpriv (util-linux)")
@pytest.mark.parametrize("harm", [_read_only_file, _read_only_directory, _unsettled, _old_schema])
def test_list_show_and_doctor_read_what_they_cannot_write(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    db = tmp_path / "mileage.db"
    _fill(db)
    harm(db)
    try:
        expected = {_old_schema: [], _unsettled: ["in the journal", "kept"]}.get(harm, ["kept"])
        listed = _bound_by_permissions(["list", "--db", str(db)])
        assert listed.returncode == 0, listed.stderr
        assert [line.split("  ")[1] for line in listed.stdout.splitlines()[1:]] == expected
        doctor = _bound_by_permissions(["doctor", "--db", str(db)])
        assert "integrity: ok" in doctor.stdout, doctor.stderr
        assert "Traceback" not in doctor.stderr
        if expected:
            shown = _bound_by_permissions(["show", "kept", "--db", str(db)])
            assert "total compute cost: $0.06" in shown.stdout, shown.stderr
    finally:
        tmp_path.chmod(0o755)


def test_waiting_rows_that_cannot_be_delivered_do_not_keep_others_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "mileage.db"
    _fill(db)

    def full(_: Store, *, patience: float) -> list[str]:
        raise LedgerError("the ledger cannot be written: database or disk is full")

    monkeypatch.setattr(Store, "recover", full)
    with Store.reader(db) as store:
        assert [record.run.name for record in store.read(queries.records)] == ["kept"]
        assert store.trouble is not None
        assert [check.name for check in check_store(store) if not check.ok] == ["writable"]
    with pytest.raises(LedgerError, match="disk is full"):
        Store(db)


def test_what_is_no_ledger_is_still_refused(tmp_path: Path) -> None:
    (tmp_path / "mileage.db").write_text("this is no database, however long one looks at it")
    with pytest.raises(LedgerError, match="cannot be opened"):
        Store.reader(tmp_path / "mileage.db")
    with pytest.raises(LedgerError, match="there is no ledger"):
        Store.reader(tmp_path / "missing.db")


def test_a_copy_that_was_read_is_removed(tmp_path: Path) -> None:
    import gc

    from mileage.ledger.database import _engine_on_copy

    _fill(tmp_path / "mileage.db")
    engine = _engine_on_copy(tmp_path / "mileage.db", str(tmp_path))
    (copy,) = tmp_path.glob("mileage-ledger-*")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM ledger_run").scalar() == 1
    engine.dispose()
    del engine, connection
    gc.collect()
    assert not copy.exists()


def test_the_doctor_tries_to_write(tmp_path: Path) -> None:
    _fill(tmp_path / "mileage.db")
    with Store(tmp_path / "mileage.db") as store:
        assert {check.name: check.ok for check in check_store(store)}["writable"]
        # As on a read-only file system, where opening needs nothing to be written.
        store.engine = open_read_only(store.url)
        (writable,) = [check for check in check_store(store) if check.name == "writable"]
    assert not writable.ok
    assert "cannot be written: attempt to write a readonly database" in writable.found
