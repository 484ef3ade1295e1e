"""A ledger to look at: arms of several seeds, one that failed, one that goes on, one whose words are attacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sample_rows import (
    make_checkpoint,
    make_dead_run,
    make_end,
    make_kpi,
    make_phases,
    make_profile,
    make_run,
    make_sample,
)

from mileage.ledger.panels import Panel
from mileage.ledger.rows import Episode, Run
from mileage.ledger.store import Store

EVIL = (
    "</script><script>window.hit=1</script><img src=x onerror=window.hit=1>'\"; DROP TABLE ledger_run; --\x1b[31m\u202e"
)
CURVE = (120.0, 260.0, 380.0, 450.0, 498.0)


def exam(env: str = "CartPole-v1", target: str = "mean_return>=475.0") -> dict[str, Any]:
    panel = Panel.default(env, 10)
    return {"panel": panel.to_json(), "panel_id": panel.panel_id, "success": None, "target": target, "env_id": env}


def rows(run: Run, *, speed: float = 1.0, reached: bool = True, end: bool = True) -> list[Any]:
    """A run with five evaluations, the last of which meets the target if `reached`."""
    values = [value * (1.0 if reached else 0.6) + 2.0 * (run.seed or 0) for value in CURVE]
    made: list[Any] = [run]
    for seq, value in enumerate(values, 1):
        wall = 2.0 * seq / speed
        made.append(
            make_checkpoint(
                run,
                seq,
                wall_seconds=wall,
                train_seconds=0.9 * wall,
                eval_seconds=0.1 * wall,
                cost_usd=wall * run.price_usd_per_hour / 3600.0,
                success_rate=None,
                mean_return=value,
                target_value=value,
                target_met=value >= 475.0,
                path=None,
                sha256=None,
                peak_rss_gb=0.2 + 0.01 * seq,
            )
        )
        made += [Episode(run.run_id, seq, i, 2**31 + i, value + 3.0 * (i - 4.5), 100 + i, None) for i in range(10)]
        made += make_phases(run, 10 + seq, init=0.1 * wall, rollout=0.3 * wall, learn=0.5 * wall, eval=0.1 * wall)
    if end:
        wall, cost = 10.0 / speed, 10.0 / speed * run.price_usd_per_hour / 3600.0
        found: dict[str, Any] = {
            "state": "reached" if reached else "not_reached", "wall_seconds": wall, "train_seconds": 0.9 * wall,
            "eval_seconds": 0.1 * wall, "init_seconds": 0.1 * wall, "compile_seconds": 0.0, "billable_seconds": wall,
            "cost_usd": cost, "mean_return": values[-1], "success_rate": None, "ended_at": run.launched_at + wall,
            "wall_to_target": wall if reached else None, "cost_to_target": cost if reached else None,
            "steps_to_target": 5000 if reached else None, "target_seq": 5 if reached else None,
        }  # fmt: skip
        made.append(make_end(run, **found))
    return made


def fill(db: Path) -> dict[str, Run]:
    """Write the ledger; the runs by what is special about them."""
    found: dict[str, Run] = {}
    everything: list[Any] = []
    for seed in range(5):
        run = make_run(name="fast", seed=seed, launched_at=1_790_000_000.0 + seed, **exam())
        everything += rows(run, speed=2.0)
        found[f"fast-{seed}"] = run
    for seed in range(5):
        run = make_run(name="slow", seed=seed, launched_at=1_790_000_100.0 + seed, config='{"lr":0.5}', **exam())
        everything += rows(run, speed=0.5, reached=seed != 4)
        found[f"slow-{seed}"] = run
    other = make_run(name="pendulum", seed=0, launched_at=1_790_000_200.0, **exam("Pendulum-v1", "mean_return>=-200.0"))
    everything += rows(other)
    evil = make_dead_run(
        name=EVIL, seed=0, launched_at=1_790_000_300.0, algorithm=EVIL, config=json.dumps({EVIL: EVIL}), command=EVIL,
        git_revision=EVIL, machine=json.dumps({"cpu": EVIL, "cores": 2, "versions": {EVIL: EVIL}, "gpus": [EVIL]}),
        instance=EVIL, launched_by=EVIL, framework=EVIL, **exam(),
    )  # fmt: skip
    everything += [*rows(evil, end=False), make_end(evil, state="failed", reason=EVIL, wall_to_target=None)]
    builds = make_run(name="builds", seed=None, launched_at=1_790_000_400.0, env_id="", target=None, panel_id=None)
    everything += [builds, make_kpi(builds, 0), *(make_sample(builds, i) for i in range(3)), make_end(builds)]
    profiled = make_profile(found["fast-0"], 50)._replace(
        summary=json.dumps(
            {"verdict": f"LEARN-BOUND {EVIL}", "findings": [{"bottleneck": "learner_bound", "share": 0.5}]}
        )
    )
    with Store(db) as store:
        store.deliver([*everything, profiled])
    return found | {"pendulum": other, "evil": evil, "builds": builds}
