"""The database itself refuses to change or delete a row of the record."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = ("ledger_run", "ledger_checkpoint", "ledger_phase", "ledger_episode", "ledger_profile", "ledger_end")


def upgrade() -> None:
    """Create a trigger per table and verb."""
    postgres = op.get_bind().dialect.name == "postgresql"
    if postgres:
        op.execute(
            "CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$"
        )
    refuse = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    action = "FOR EACH ROW EXECUTE FUNCTION ledger_append_only()" if postgres else refuse
    for table in TABLES:
        for verb in ("UPDATE", "DELETE"):
            op.execute(f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {action}")
    op.execute(sa.text("INSERT INTO ledger_schema_history VALUES ('0002', '0.1.0', :now)").bindparams(now=time.time()))
