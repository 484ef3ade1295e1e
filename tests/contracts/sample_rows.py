"""Rows with every field filled, and short ways to change one."""

from __future__ import annotations

import os
import time
from typing import Any

from mileage.ledger import liveness
from mileage.ledger.rows import BuildKpi, BuildSample, Checkpoint, End, Episode, Note, Phase, Profile, Run, new_run_id


def make_run(**changes: Any) -> Run:
    now = changes.get("launched_at", time.time())
    values: dict[str, Any] = {
        "run_id": new_run_id(now), "name": "arm", "launched_at": now, "started_at": now - 5.0, "launched_by": "me",
        "host": liveness.host_name(), "pid": os.getpid(), "process_token": liveness.own_token(),
        "framework": "mileage", "algorithm": "ppo", "env_id": "CartPole-v1", "config": '{"lr":0.1}',
        "git_revision": "abc", "command": "train", "seed": 0, "panel": None, "panel_id": "p",
        "success": "return>=475.0", "target": "mean_return>=475.0",
        "eval_every_steps": 1000, "batch_size": 1024, "step_budget": 50_000,
        "step_rule": "env_steps", "accounting_window": "wall-clock", "machine": "{}", "machine_id": "m", "instances": 1,
        "instance": None, "price_usd_per_hour": 3.6, "price": "{}", "parent_run_id": None, "mileage_version": "0.1.0",
        "format_version": 1,
    }  # fmt: skip
    return Run(**(values | changes))


def make_dead_run(**changes: Any) -> Run:
    """A run whose process is certainly gone: its id may be in use, its token is not."""
    return make_run(**({"process_token": "gone"} | changes))


def make_checkpoint(run: Run, seq: int, **changes: Any) -> Checkpoint:
    values: dict[str, Any] = {
        "run_id": run.run_id, "seq": seq, "step": 1000 * seq, "wall_seconds": 10.0 * seq, "train_seconds": 8.0 * seq,
        "eval_seconds": 2.0 * seq, "cost_usd": 0.01 * seq, "success_rate": 0.5, "mean_return": 100.0 * seq,
        "target_value": 100.0 * seq, "target_met": 100.0 * seq >= 475.0, "peak_rss_gb": 0.25, "peak_gpu_gb": None,
        "reset_reasons": '{"terminated":3}', "path": "policy.safetensors", "sha256": "ff", "claimed": None,
    }  # fmt: skip
    return Checkpoint(**(values | changes))


def make_end(run: Run, **changes: Any) -> End:
    values: dict[str, Any] = {
        "run_id": run.run_id, "closed_by": "self", "state": "reached", "reason": "", "ended_at": run.launched_at + 60.0,
        "env_steps": 5000, "wall_seconds": 60.0, "train_seconds": 50.0, "eval_seconds": 10.0, "init_seconds": 1.0,
        "compile_seconds": 2.0, "billable_seconds": 60.0, "cost_usd": 0.06, "success_rate": 1.0, "mean_return": 500.0,
        "steps_to_target": 5000, "wall_to_target": 50.0, "cost_to_target": 0.05, "target_seq": 5, "checkpoints": 5,
        "peak_rss_gb": 0.25, "peak_gpu_gb": None, "gpus": None,
    }  # fmt: skip
    return End(**(values | changes))


def make_phases(run: Run, seq: int, **seconds: float) -> list[Phase]:
    wall = sum(seconds.values())
    return [Phase(run.run_id, seq, name, wall, value, 3, False) for name, value in seconds.items()]


def make_episode(run: Run, seq: int, episode: int) -> Episode:
    return Episode(run.run_id, seq, episode, 2**31 + episode, 1.5 * episode, 10 + episode, episode % 2 == 0)


def make_profile(run: Run, seq: int) -> Profile:
    return Profile(run.run_id, seq, 12.5, '{"rollout":0.6}')


def make_sample(run: Run, order: int) -> BuildSample:
    return BuildSample(
        run.run_id, "baseline", "cold", order, order, "ok", 0, 1.5, 2.5, 1 << 20, "", "2026-04-01T00:00:00Z"
    )


def make_kpi(run: Run, seq: int) -> BuildKpi:
    values: dict[str, Any] = dict.fromkeys(BuildKpi._fields, 1.5)
    texts = ("project", "mode", "verdict", "pass_rate_source", "revision")
    values |= dict.fromkeys(texts, "x") | {"run_id": run.run_id, "seq": seq, "gpus": 8, "ts": "2026-04-01T00:00:00Z"}
    return BuildKpi(**values)


def make_note(run: Run, note_id: str = "20260401-000000-0a0b0c0d", **changes: Any) -> Note:
    values: dict[str, Any] = {
        "run_id": run.run_id, "note_id": note_id, "noted_at": 1000.0, "noted_by": "me", "kind": "annotation",
        "field": None, "text": "a word",
    }  # fmt: skip
    return Note(**(values | changes))
