"""Emptying a field of the record, the one change there is: a note says who did it, when and why."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from mileage.errors import UsageError
from mileage.ledger import schema
from mileage.ledger.liveness import user_name
from mileage.ledger.rows import Note, NoteKind, check_text
from mileage.ledger.secrets import HIDDEN, JSON_TEXTS, TEXT_FIELDS, scrubbed_json, scrubbed_text
from mileage.records import Record

FIELDS: dict[str, str] = {
    "command": "run",
    "config": "run",
    "machine": "run",
    "launched_by": "run",
    "host": "run",
    "git_revision": "run",
    "name": "run",
    "path": "checkpoint",
    "claimed": "checkpoint",
    "reset_reasons": "checkpoint",
    "summary": "profile",
    "diagnostic": "sample",
    "text": "note",
    "reason": "end",
}
"""What may be redacted, and the kind of row that has it. What a run is judged and compared by is not among them."""
EMPTY_JSON = json.dumps({"redacted": HIDDEN})


def new_note(run_id: str, kind: NoteKind, text: str, field: str | None = None) -> Note:
    """A note made now by whoever runs this."""
    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    text = scrubbed_text(check_text("text of a note", text))
    return Note(run_id, f"{stamp}-{os.urandom(4).hex()}", now, user_name(), kind.value, field, text)


def redact(connection: sa.Connection, run_id: str, field: str, why: str) -> Note:
    """Empty `field` in all rows of a run, and leave a note; `config.KEY` empties one entry of the configuration."""
    name, _, key = field.partition(".")
    if name not in FIELDS or (key and name not in JSON_TEXTS):
        raise UsageError(f"field {field[:80]!r} cannot be redacted: use one of {', '.join(FIELDS)}, or config.KEY")
    table = schema.TABLES[FIELDS[name]]
    column = table.c[name]
    mine = (table.c.run_id == run_id) & column.is_not(None)
    values = list(connection.execute(sa.select(column).where(mine).distinct()).scalars())
    if not values:
        raise UsageError(f"run {run_id} has no {name}: nothing was redacted")
    with unprotected(connection, table.name):
        for value in values:
            emptied = _without(value, key) if key else EMPTY_JSON if name in JSON_TEXTS else HIDDEN
            connection.execute(sa.update(table).where(mine & (column == value)).values({name: emptied}))
    note = new_note(run_id, NoteKind.REDACTION, why, field)
    connection.execute(sa.insert(schema.note).values(note._asdict()))
    return note


def _without(text: str, key: str) -> str:
    """JSON text with the entry `key`, a path of names with dots, hidden."""
    values: Any = json.loads(text)
    inner, *names = values, *key.split(".")
    for name in names[:-1]:
        inner = inner.get(name) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or names[-1] not in inner:
        raise UsageError(f"the run has no entry {key[:80]!r}: nothing was redacted")
    inner[names[-1]] = HIDDEN
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def scrub(connection: sa.Connection, why: str, *, noted: bool = True) -> int:
    """Take secrets out of every row that is there, with a note for each changed field; return how many were changed."""
    changed = 0
    there = set(sa.inspect(connection).get_table_names())
    for kind, fields in TEXT_FIELDS.items():
        if schema.TABLE_NAMES[kind] not in there:
            continue
        found = list(_with_secrets(connection, kind, fields))
        if not found:
            continue
        table = schema.TABLES[kind]
        with unprotected(connection, table.name):
            for keys, clean in found:
                where = sa.and_(*(table.c[name] == value for name, value in keys.items()))
                connection.execute(sa.update(table).where(where).values(clean))
        pairs = dict.fromkeys((keys["run_id"], field) for keys, clean in found for field in clean)
        for run_id, field in pairs if noted else ():
            note = new_note(run_id, NoteKind.REDACTION, why, field)
            connection.execute(sa.insert(schema.note).values(note._asdict()))
        changed += len(pairs)
    return changed


def _with_secrets(connection: sa.Connection, kind: str, fields: tuple[str, ...]) -> Iterator[tuple[Record, Record]]:
    """The keys of each row with a secret, and its fields without."""
    table, keys = schema.TABLES[kind], schema.KEYS[kind]
    statement = sa.select(*(table.c[name] for name in (*keys, *fields)))
    if kind == "checkpoint":  # a million rows, hardly any of which says anything
        statement = statement.where(table.c.claimed.is_not(None) | table.c.path.contains("://"))
    for row in connection.execute(statement).mappings():
        texts = {name: row[name] for name in fields if isinstance(row[name], str)}
        clean = {n: scrubbed_json(text) if n in JSON_TEXTS else scrubbed_text(text) for n, text in texts.items()}
        different = {name: text for name, text in clean.items() if text != texts[name]}
        if different:
            yield {name: row[name] for name in keys}, different


@contextlib.contextmanager
def unprotected(connection: sa.Connection, table: str) -> Iterator[None]:
    """Let rows of `table` be changed within this transaction, and by it alone."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        connection.exec_driver_sql(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        return
    asked = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
    triggers = list(connection.exec_driver_sql(asked, (table,)))
    for name, _ in triggers:
        connection.exec_driver_sql(f'DROP TRIGGER "{name}"')
    yield
    for _, sql in triggers:
        connection.exec_driver_sql(sql)
