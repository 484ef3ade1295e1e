"""The tables."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _text(name: str, *, null: bool = False, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=null, primary_key=key)


def _int(name: str, *, null: bool = False, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=null, primary_key=key, autoincrement=False)


def _real(name: str, *, null: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=null)


def _bool(name: str, *, null: bool = False) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=null)


def upgrade() -> None:
    """Create the tables."""
    _create_run()
    _create_progress()
    _create_end()
    op.create_table(
        "ledger_heartbeat", _text("run_id", key=True), _real("beat_at"), _real("wall_seconds"), sqlite_with_rowid=False
    )
    op.create_table("ledger_schema_history", _text("version", key=True), _text("mileage_version"), _real("applied_at"))
    op.execute(sa.text("INSERT INTO ledger_schema_history VALUES ('0001', '0.1.0', :now)").bindparams(now=time.time()))


def _create_run() -> None:
    op.create_table(
        "ledger_run",
        _text("run_id", key=True),
        _text("name"),
        _real("launched_at"),
        _real("started_at"),
        _text("launched_by"),
        _text("host"),
        _int("pid"),
        _text("process_token"),
        _text("framework"),
        _text("algorithm"),
        _text("env_id"),
        _text("config"),
        _text("git_revision", null=True),
        _text("command"),
        _int("seed", null=True),
        _text("panel", null=True),
        _text("panel_id", null=True),
        _text("success", null=True),
        _text("target", null=True),
        _int("eval_every_steps", null=True),
        _int("batch_size", null=True),
        _int("step_budget", null=True),
        _text("step_rule"),
        _text("accounting_window"),
        _text("machine"),
        _text("machine_id"),
        _int("instances"),
        _text("instance", null=True),
        _real("price_usd_per_hour"),
        _text("price"),
        _text("parent_run_id", null=True),
        _text("mileage_version"),
        _int("format_version"),
        sqlite_with_rowid=False,
    )
    op.create_index("ledger_run_by_launch", "ledger_run", ["launched_at", "run_id"])
    op.create_index("ledger_run_by_name", "ledger_run", ["name", "launched_at"])


def _create_progress() -> None:
    op.create_table(
        "ledger_checkpoint",
        _text("run_id", key=True),
        _int("seq", key=True),
        _int("step"),
        _real("wall_seconds"),
        _real("train_seconds"),
        _real("eval_seconds"),
        _real("cost_usd"),
        _real("success_rate", null=True),
        _real("mean_return", null=True),
        _real("target_value", null=True),
        _bool("target_met", null=True),
        _real("peak_rss_gb", null=True),
        _real("peak_gpu_gb", null=True),
        _text("reset_reasons", null=True),
        _text("path", null=True),
        _text("sha256", null=True),
        _text("claimed", null=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_phase",
        _text("run_id", key=True),
        _int("seq", key=True),
        _text("phase", key=True),
        _real("wall_seconds"),
        _real("seconds"),
        _int("entries"),
        _bool("beside"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_episode",
        _text("run_id", key=True),
        _int("seq", key=True),
        _int("episode", key=True),
        _int("seed"),
        _real("episode_return", null=True),
        _int("length"),
        _bool("success", null=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_profile",
        _text("run_id", key=True),
        _int("seq", key=True),
        _real("wall_seconds"),
        _text("summary"),
        sqlite_with_rowid=False,
    )


def _create_end() -> None:
    op.create_table(
        "ledger_end",
        _text("run_id", key=True),
        _text("closed_by", key=True),
        _text("state"),
        _text("reason"),
        _real("ended_at"),
        _int("env_steps"),
        _real("wall_seconds"),
        _real("train_seconds"),
        _real("eval_seconds"),
        _real("init_seconds"),
        _real("compile_seconds"),
        _real("billable_seconds"),
        _real("cost_usd"),
        _real("success_rate", null=True),
        _real("mean_return", null=True),
        _int("steps_to_target", null=True),
        _real("wall_to_target", null=True),
        _real("cost_to_target", null=True),
        _int("target_seq", null=True),
        _int("checkpoints"),
        _real("peak_rss_gb", null=True),
        _real("peak_gpu_gb", null=True),
        _text("gpus", null=True),
        sqlite_with_rowid=False,
    )
