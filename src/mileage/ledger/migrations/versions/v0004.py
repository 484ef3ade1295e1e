"""Notes on runs; no way past the triggers; no secret in what is there."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

from mileage.ledger.redaction import scrub

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

KEYS = {
    "ledger_run": ("run_id",),
    "ledger_checkpoint": ("run_id", "seq"),
    "ledger_phase": ("run_id", "seq", "phase"),
    "ledger_episode": ("run_id", "seq", "episode"),
    "ledger_profile": ("run_id", "seq"),
    "rl_sample": ("run_id", "order"),
    "rl_kpi": ("run_id", "seq"),
    "ledger_note": ("run_id", "note_id"),
    "ledger_end": ("run_id", "closed_by"),
}


def upgrade() -> None:
    """Create the table of notes, complete the protection, and take secrets out of the rows."""
    op.create_table(
        "ledger_note",
        sa.Column("run_id", sa.Text, nullable=False, primary_key=True),
        sa.Column("note_id", sa.Text, nullable=False, primary_key=True),
        sa.Column("noted_at", sa.Double, nullable=False),
        sa.Column("noted_by", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("field", sa.Text, nullable=True),
        sa.Column("text", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "postgresql":
        _protect_postgres()
    else:
        _protect_sqlite()
    scrub(op.get_bind(), "secrets were taken out when the schema became 0004")
    op.execute(sa.text("INSERT INTO ledger_schema_history VALUES ('0004', '0.1.0', :now)").bindparams(now=time.time()))


def _protect_postgres() -> None:
    refuse = "EXECUTE FUNCTION ledger_append_only()"
    for verb in ("UPDATE", "DELETE"):
        op.execute(f"CREATE TRIGGER ledger_note_no_{verb.lower()} BEFORE {verb} ON ledger_note FOR EACH ROW {refuse}")
    asked = sa.text("SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass(:name) AND tgname = :name || '_no_update'")
    for table in KEYS:  # another tool may change rows of a table that it made
        if op.get_bind().execute(asked, {"name": table}).scalar():
            op.execute(f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT {refuse}")


def _protect_sqlite() -> None:
    refuse = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    for verb in ("UPDATE", "DELETE"):
        op.execute(f"CREATE TRIGGER ledger_note_no_{verb.lower()} BEFORE {verb} ON ledger_note {refuse}")
    asked = sa.text("SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name = :name || '_no_update'")
    for table, keys in KEYS.items():  # another tool may change rows of a table that it made
        if not op.get_bind().execute(asked, {"name": table}).scalar():
            continue
        # REPLACE deletes what it replaces without asking the triggers of a deletion.
        same = " AND ".join(f'"{key}" = NEW."{key}"' for key in keys)
        op.execute(
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
            f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) {refuse}"
        )
