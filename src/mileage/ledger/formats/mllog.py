"""MLLOG lines, so that MLPerf tooling can read a run.

The lines carry what the common rules of MLPerf Training ask for, but for the name of a benchmark: a run is not a
submission, and does not pretend to be one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from mileage._records import Record, strict_json
from mileage.ledger.rows import Checkpoint
from mileage.ledger.runs import RecordedRun
from mileage.ledger.streams import RunStream
from mileage.metrics import Shown, shown, startup_seconds

NAMESPACE = "mileage"


def lines(recorded: RecordedRun) -> list[str]:
    """The lines of one run in order of time."""
    return list(stream_lines(RunStream.of(recorded)))


def stream_lines(stream: RunStream) -> Iterator[str]:
    """The same, one at a time."""
    recorded = stream.recorded
    run, end = recorded.run, recorded.end
    init_seconds = startup_seconds(recorded.totals) if end else 0.0
    for key, value in (
        ("submission_org", "mileage"),
        ("submission_platform", run.instance or run.host),
        ("submission_division", "open"),
        ("submission_status", "research"),
        ("cache_clear", False),
        ("mileage_env", run.env_id),
    ):
        yield _line(recorded, 0.0, "POINT_IN_TIME", key, value)
    yield _line(recorded, 0.0, "INTERVAL_START", "init_start", None)
    for key, value in _settings(recorded).items():
        yield _line(recorded, 0.0, "POINT_IN_TIME", key, value)
    yield _line(recorded, init_seconds, "INTERVAL_END", "init_stop", None)
    yield _line(recorded, init_seconds, "INTERVAL_START", "run_start", None)
    yield from _progress(stream, init_seconds)
    if end is not None:
        status = "success" if end.wall_to_target is not None else "aborted"
        meta = {"status": status, "state": end.state, "samples_count": end.env_steps}
        yield _line(recorded, end.wall_seconds, "INTERVAL_END", "run_stop", None, meta)
        for name in (metric.name for metric in shown(Shown.MLLOG)):
            yield _line(recorded, end.wall_seconds, "POINT_IN_TIME", f"mileage_{name}", recorded.metric(name))


def _settings(recorded: RecordedRun) -> Record:
    run = recorded.run
    panel = json.loads(run.panel) if run.panel else {}
    return {
        "seed": run.seed,
        "global_batch_size": run.batch_size,
        "train_samples": run.step_budget or (recorded.end.env_steps if recorded.end else 0),
        "eval_samples": len(panel.get("seeds", ())),
        "target_accuracy": float(run.target.split(">=")[1]) if run.target else None,
        "mileage_run_id": run.run_id,
        "mileage_panel_id": run.panel_id,
        "mileage_price_usd_per_hour": run.price_usd_per_hour,
    }


def _progress(stream: RunStream, init_seconds: float) -> Iterator[str]:
    recorded = stream.recorded
    before: Checkpoint | None = None
    for checkpoint in stream.rows("checkpoint"):
        started = max(before.wall_seconds if before else init_seconds, init_seconds)
        stopped = max(checkpoint.wall_seconds, started)
        steps_before = before.step if before else 0
        meta = {"samples_count": steps_before, "first_epoch_num": steps_before}
        done = {"samples_count": checkpoint.step, "first_epoch_num": checkpoint.step}
        evaluated = checkpoint.eval_seconds - (before.eval_seconds if before else 0.0)
        eval_start = max(stopped - evaluated, started)
        yield _line(recorded, started, "INTERVAL_START", "block_start", None, meta)
        yield _line(recorded, eval_start, "INTERVAL_END", "block_stop", None, done)
        value = checkpoint.target_value
        value = checkpoint.mean_return if value is None else value
        if value is not None:
            yield _line(recorded, eval_start, "INTERVAL_START", "eval_start", None, done)
            yield _line(recorded, stopped, "POINT_IN_TIME", "eval_accuracy", value, done)
            yield _line(recorded, stopped, "INTERVAL_END", "eval_stop", None, done)
        before = checkpoint


def _line(
    recorded: RecordedRun, wall_seconds: float, event: str, key: str, value: object, metadata: Record | None = None
) -> str:
    record = {
        "namespace": NAMESPACE,
        "time_ms": int((recorded.run.started_at + wall_seconds) * 1000),
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": metadata or {},
    }
    return ":::MLLOG " + strict_json(record)
