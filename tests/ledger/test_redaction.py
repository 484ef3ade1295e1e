from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from sample_rows import make_checkpoint, make_end, make_run

from mileage.errors import UsageError
from mileage.ledger import queries
from mileage.ledger.database import connect, migrate, writing
from mileage.ledger.redaction import FIELDS
from mileage.ledger.store import Store

PASSWORD = "hunter22hunter22"


def _bytes_of(db: Path) -> bytes:
    return b"".join(path.read_bytes() for path in db.parent.glob(f"{db.name}*") if path.is_file())


def test_a_redacted_field_is_gone_from_the_file_and_a_note_says_so(tmp_path: Path) -> None:
    db, run = tmp_path / "mileage.db", make_run(command=f"train {PASSWORD}", config='{"a":{"key":"x"},"b":1}')
    with Store(db) as store:
        store.deliver([run, make_end(run)])
        note = store.redact(run.run_id, "command", "a password")
        assert PASSWORD.encode() not in _bytes_of(db)
        store.redact(run.run_id, "config.a.key", "")
        (recorded,) = store.read(queries.records)
        assert (recorded.run.command, json.loads(recorded.run.config)) == ("***", {"a": {"key": "***"}, "b": 1})
        assert [(each.kind, each.field, each.text) for each in recorded.notes] == [
            ("redaction", "command", "a password"),
            ("redaction", "config.a.key", ""),
        ]
        assert recorded.notes[0] == note
        with pytest.raises(sa.exc.DBAPIError, match="append-only"), writing(store.engine) as connection:
            connection.execute(sa.text("UPDATE ledger_run SET command = 'x'"))


@pytest.mark.parametrize("field", [*FIELDS])
def test_every_field_that_may_be_redacted_can_be(tmp_path: Path, field: str) -> None:
    from sample_rows import make_note, make_profile, make_sample

    run = make_run()
    rows = [run, make_checkpoint(run, 1, claimed="{}"), make_profile(run, 2), make_sample(run, 0), make_note(run)]
    with Store(tmp_path / "mileage.db") as store:
        store.deliver([*rows, make_end(run)])
        store.redact(run.run_id, field, "")
        assert "***" in repr(store.read(queries.rows_of, run.run_id))
        store.read(queries.complete_runs, None)  # and it can still be read


@pytest.mark.parametrize("field", ["cost_usd", "target", "panel", "command.x", "config.none", "run_id; --"])
def test_what_a_run_is_judged_by_cannot_be_redacted(tmp_path: Path, field: str) -> None:
    run = make_run()
    with Store(tmp_path / "mileage.db") as store:
        store.deliver([run, make_end(run)])
        with pytest.raises(UsageError, match="redacted"):
            store.redact(run.run_id, field, "")
        assert store.read(queries.notes_of, [run.run_id]) == {}


def test_a_ledger_of_before_loses_its_passwords_when_it_is_opened_and_so_does_its_backup(tmp_path: Path) -> None:
    db, run = tmp_path / "mileage.db", make_run(config=json.dumps({"db": f"postgresql://u:{PASSWORD}@h/d"}))
    engine = connect(f"sqlite:///{db}")
    migrate(engine, "0003")
    with writing(engine) as connection:
        row = run._replace(command=f"mileage train --db postgresql://u:{PASSWORD}@h/d")
        columns = ", ".join(row._fields)
        connection.exec_driver_sql(
            f"INSERT INTO ledger_run ({columns}) VALUES ({', '.join('?' * len(row))})", tuple(row)
        )
        end = make_end(run, reason=f"OperationalError: postgresql://u:{PASSWORD}@h/d")
        columns = ", ".join(end._fields)
        connection.exec_driver_sql(
            f"INSERT INTO ledger_end ({columns}) VALUES ({', '.join('?' * len(end))})", tuple(end)
        )
    engine.dispose()
    with Store(db) as store:
        (recorded,) = store.read(queries.records)
        assert recorded.run.command == "mileage train --db postgresql://u:***@h/d"
        assert {(note.kind, note.field) for note in recorded.notes} == {
            ("redaction", "command"), ("redaction", "config"), ("redaction", "reason"),
        }  # fmt: skip
    (backup,) = tmp_path.glob("*.backup")
    with closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0003",)
        assert connection.execute("SELECT command FROM ledger_run").fetchone() == (recorded.run.command,)
    assert PASSWORD.encode() not in _bytes_of(db)
