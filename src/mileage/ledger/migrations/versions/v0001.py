"""The tables."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


_KINDS = {"text": sa.Text, "int": sa.BigInteger, "real": sa.Double, "bool": sa.Boolean}
_TABLES = {
    "ledger_run": (
        "text run_id key, text name, real launched_at, real started_at, text launched_by, text host, int pid, "
        "text process_token, text framework, text algorithm, text env_id, text config, text git_revision null, "
        "text command, int seed null, text panel null, text panel_id null, text success null, text target null, "
        "int eval_every_steps null, int batch_size null, int step_budget null, text step_rule, text accounting_window, "
        "text machine, text machine_id, int instances, text instance null, real price_usd_per_hour, text price, "
        "text parent_run_id null, text mileage_version, int format_version"
    ),
    "ledger_checkpoint": (
        "text run_id key, int seq key, int step, real wall_seconds, real train_seconds, real eval_seconds, "
        "real cost_usd, real success_rate null, real mean_return null, real target_value null, bool target_met null, "
        "real peak_rss_gb null, real peak_gpu_gb null, text reset_reasons null, text path null, text sha256 null, "
        "text claimed null"
    ),
    "ledger_phase": (
        "text run_id key, int seq key, text phase key, real wall_seconds, real seconds, int entries, bool beside"
    ),
    "ledger_episode": (
        "text run_id key, int seq key, int episode key, int seed, real episode_return null, int length, "
        "bool success null"
    ),
    "ledger_profile": "text run_id key, int seq key, real wall_seconds, text summary",
    "ledger_end": (
        "text run_id key, text closed_by key, text state, text reason, real ended_at, int env_steps, "
        "real wall_seconds, real train_seconds, real eval_seconds, real init_seconds, real compile_seconds, "
        "real billable_seconds, real cost_usd, real success_rate null, real mean_return null, "
        "int steps_to_target null, real wall_to_target null, real cost_to_target null, int target_seq null, "
        "int checkpoints, real peak_rss_gb null, real peak_gpu_gb null, text gpus null"
    ),
    "ledger_heartbeat": "text run_id key, real beat_at, real wall_seconds",
    "ledger_schema_history": "text version key, text mileage_version, real applied_at",
}
"""Columns by table: kind, name, and whether it is part of the key or may be null."""


def _column(words: str) -> sa.Column[Any]:
    kind, name, *more = words.split()
    return sa.Column(name, _KINDS[kind], nullable="null" in more, primary_key="key" in more, autoincrement=False)


def upgrade() -> None:
    """Create the tables."""
    for table, columns in _TABLES.items():
        rowless = {} if table == "ledger_schema_history" else {"sqlite_with_rowid": False}
        op.create_table(table, *(_column(words) for words in columns.split(", ")), **rowless)
    op.create_index("ledger_run_by_launch", "ledger_run", ["launched_at", "run_id"])
    op.create_index("ledger_run_by_name", "ledger_run", ["name", "launched_at"])
    op.execute(sa.text("INSERT INTO ledger_schema_history VALUES ('0001', '0.1.0', :now)").bindparams(now=time.time()))
