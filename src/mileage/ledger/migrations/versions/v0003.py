"""Samples and KPIs of build benchmarks: `rl_sample`, `rl_kpi`, and the view `rl_run`.

An earlier rl-bench had a database of its own with tables of these names, and other tools write an `rl_kpi` too. A table
of KPIs that is already there only gains columns; runs and samples of an earlier rl-bench become rows of the ledger.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from mileage.ledger.liveness import host_name

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TEXTS = ("project", "mode", "verdict", "pass_rate_source", "revision", "ts")
_KPI = (
    "project", "mode", "baseline_cold_secs", "slicer_cold_secs", "speedup", "speedup_low", "speedup_high", "verdict",
    "baseline_throughput_per_hr", "slicer_throughput_per_hr", "baseline_incr_secs", "slicer_incr_secs", "incr_speedup",
    "pass_rate", "pass_rate_source", "secs_per_valid_sample", "usd_per_valid_sample", "gpus", "rollout_fraction",
    "rollout_bound_per_cluster_hr", "training_loop_per_cluster_hr", "training_loop_gain", "revision", "ts",
)  # fmt: skip
_SAMPLE = (
    "run_id", "arm", "kind", "round", "order", "outcome", "exit_code", "wall_seconds", "cpu_seconds", "peak_rss_bytes",
    "diagnostic", "ts",
)  # fmt: skip
_REVISION = {"sqlite": "json_extract(r.config, '$.revision')", "postgresql": "r.config::json ->> 'revision'"}
_UTC = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%SZ', {}, 'unixepoch')",
    "postgresql": "to_char(to_timestamp({}) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')",
}


def upgrade() -> None:
    """Create what is missing, and take in what an earlier rl-bench left."""
    there = set(sa.inspect(op.get_bind()).get_table_names())
    before = _take_away(there)
    _create_samples()
    _create_kpis("rl_kpi" in there)
    _create_view()
    # Another tool may change rows of a table that it made.
    _protect("rl_sample", *(["rl_kpi"] if "rl_run" in there or "rl_kpi" not in there else []))
    for run, samples in before:
        _take_in(run, samples)
    op.execute(sa.text("INSERT INTO ledger_schema_history VALUES ('0003', '0.1.0', :now)").bindparams(now=time.time()))


def _create_samples() -> None:
    integers, reals = ("round", "order", "exit_code", "peak_rss_bytes"), ("wall_seconds", "cpu_seconds")
    kinds = {name: sa.BigInteger if name in integers else sa.Double if name in reals else sa.Text for name in _SAMPLE}
    op.create_table(
        "rl_sample",
        *(sa.Column(name, kind(), nullable=False) for name, kind in kinds.items()),
        sa.PrimaryKeyConstraint("run_id", "order"),
        sqlite_with_rowid=False,
    )


def _kpi_column(name: str) -> sa.Column[Any]:
    kind: type[Any] = sa.Text if name in _TEXTS else sa.BigInteger if name == "gpus" else sa.Double
    return sa.Column(name, kind(), nullable=True)


def _create_kpis(there: bool) -> None:
    if not there:
        op.create_table(
            "rl_kpi",
            sa.Column("run_id", sa.Text(), nullable=False),
            sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
            *(_kpi_column(name) for name in _KPI),
            sa.PrimaryKeyConstraint("run_id", "seq"),
            sqlite_with_rowid=False,
        )
        return
    have = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("rl_kpi")}
    own: list[sa.Column[Any]] = [sa.Column("run_id", sa.Text()), sa.Column("seq", sa.BigInteger())]
    for column in (*own, *(_kpi_column(name) for name in _KPI)):
        if column.name not in have:
            op.add_column("rl_kpi", column)
    op.create_index("rl_kpi_once", "rl_kpi", ["run_id", "seq"], unique=True)


def _create_view() -> None:
    dialect = op.get_bind().dialect.name
    utc, state = _UTC[dialect], "COALESCE(own.state, presumed.state, 'running')"
    op.execute(
        f"CREATE VIEW rl_run AS SELECT r.run_id, r.env_id AS project, {_REVISION[dialect]} AS revision, "
        f"CASE WHEN {state} IN ('reached', 'not_reached') THEN 'finished' ELSE {state} END AS status, "
        f"{utc.format('r.launched_at')} AS started_at, "
        f"{utc.format('COALESCE(own.ended_at, presumed.ended_at)')} AS ended_at, r.config AS setup "
        "FROM ledger_run r "
        "LEFT JOIN ledger_end own ON own.run_id = r.run_id AND own.closed_by = 'self' "
        "LEFT JOIN ledger_end presumed ON presumed.run_id = r.run_id AND presumed.closed_by = 'opener' "
        "WHERE r.algorithm = 'rl-bench'"
    )


def _protect(*tables: str) -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    refuse = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    action = "FOR EACH ROW EXECUTE FUNCTION ledger_append_only()" if postgres else refuse
    for table in tables:
        for verb in ("UPDATE", "DELETE"):
            op.execute(f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {action}")


# A database of an earlier rl-bench


def _take_away(there: set[str]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The runs of an earlier rl-bench with their samples; their tables make room."""
    if "rl_run" not in there:
        return []
    bind = op.get_bind()
    runs = [dict(row) for row in bind.execute(sa.text("SELECT * FROM rl_run ORDER BY started_at")).mappings()]
    samples: dict[str, list[dict[str, Any]]] = {}
    if "rl_sample" in there:
        for row in bind.execute(sa.text('SELECT * FROM rl_sample ORDER BY run_id, "order"')).mappings():
            samples.setdefault(row["run_id"], []).append(dict(row))
        op.drop_table("rl_sample")
    op.drop_table("rl_run")
    return [(run, samples.get(run["run_id"], [])) for run in runs]


def _take_in(run: dict[str, Any], samples: list[dict[str, Any]]) -> None:
    started = _seconds(run["started_at"])
    _insert("ledger_run", _run_values(run, started))
    for sample in samples:
        _insert("rl_sample", {name: sample[name] for name in _SAMPLE})
    if run["status"] != "running":  # one that is, is closed by whoever opens the ledger, as its process is gone
        ended = started if run["ended_at"] is None else _seconds(run["ended_at"])
        _insert("ledger_end", _end_values(run, ended, ended - started, len(samples)))


def _run_values(run: dict[str, Any], started: float) -> dict[str, Any]:
    config = json.dumps({"revision": run["revision"], **json.loads(run["setup"])}, sort_keys=True)
    return {
        "run_id": run["run_id"], "name": f"rl-bench {run['project']}"[:200], "launched_at": started,
        "started_at": started, "launched_by": "", "host": host_name(), "pid": 0, "process_token": "gone",
        "framework": "custom", "algorithm": "rl-bench", "env_id": run["project"], "config": config,
        "git_revision": None, "command": "mileage rl-bench", "seed": None, "panel": None, "panel_id": None,
        "success": None, "target": None, "eval_every_steps": None, "batch_size": None, "step_budget": None,
        "step_rule": "timed builds", "accounting_window": "wall-clock", "machine": "{}", "machine_id": "",
        "instances": 1, "instance": None, "price_usd_per_hour": 0.0, "price": "{}", "parent_run_id": None,
        "mileage_version": "0.1.0", "format_version": 1,
    }  # fmt: skip


def _end_values(run: dict[str, Any], ended: float, wall: float, samples: int) -> dict[str, Any]:
    state = {"finished": "not_reached", "crashed": "crashed"}.get(run["status"], "failed")
    closed_by = "opener" if state == "crashed" else "self"
    return {
        "run_id": run["run_id"], "closed_by": closed_by, "state": state, "reason": "recorded by an earlier rl-bench",
        "ended_at": ended, "env_steps": samples, "wall_seconds": wall, "train_seconds": wall, "eval_seconds": 0.0,
        "init_seconds": 0.0, "compile_seconds": 0.0, "billable_seconds": wall, "cost_usd": 0.0, "success_rate": None,
        "mean_return": None, "steps_to_target": None, "wall_to_target": None, "cost_to_target": None,
        "target_seq": None, "checkpoints": 0, "peak_rss_gb": None, "peak_gpu_gb": None, "gpus": None,
    }  # fmt: skip


def _insert(table: str, values: dict[str, Any]) -> None:
    op.get_bind().execute(sa.table(table, *(sa.column(name) for name in values)).insert().values(values))


def _seconds(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
