"""Alembic's entry point: run the scripts on the connection the ledger hands over."""

from __future__ import annotations

from alembic import context

from mileage.ledger.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
