"""How often do the shipped presets reach their target? A hundred seeds of each, not timed.

    PYTHONPATH=src python benchmarks/preset_seeds.py --keep preset_seeds.jsonl
    PYTHONPATH=src python benchmarks/preset_seeds.py --only dqn/CartPole-v1 --seeds 20

One thread, seeds 0 to 99. IMPALA runs in lockstep, because its other mode depends on timing. `--keep` remembers runs
that are done. What rounds differently, as another processor does, changes single runs; the rates hold as far as their
intervals (Wilson) say.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from scipy.stats import binomtest

import _presets
from _harness import Kept, Report, markdown_table
from _presets import TARGETS, shipped
from mileage.training.agents import agent_class


def run_one(algorithm: str, env: str, seed: int) -> dict[str, Any]:
    """One run to the target or to the end of its budget."""
    more = {"mode": "lockstep", "lag": 1} if algorithm == "impala" else {}
    start = time.process_time()
    with agent_class(algorithm)(env, seed=seed, threads=1, **more) as agent:
        record = agent.learn(target=f"mean_return>={TARGETS[env]:g}")
    return {
        "algorithm": algorithm,
        "env": env,
        "seed": seed,
        "reached": record.reached,
        "steps": record.steps,
        "cpu_seconds": time.process_time() - start,
    }


def row_of(algorithm: str, env: str, runs: list[dict[str, Any]]) -> list[str]:
    """A line of the table."""
    reached = sum(run["reached"] for run in runs)
    interval = binomtest(reached, len(runs)).proportion_ci(method="wilson")
    steps = [run["steps"] for run in runs]
    missed = " ".join(str(run["seed"]) for run in runs if not run["reached"])
    return [
        algorithm, env, f"≥ {TARGETS[env]:g}", f"{reached} of {len(runs)}",
        f"{interval.low:.0%} to {interval.high:.0%}",
        f"{statistics.median(steps):,.0f}", f"{np.quantile(steps, 0.9):,.0f}", missed or "none",
    ]  # fmt: skip


def main() -> None:
    options = _presets.options(__doc__, 100, "algorithm/environment")
    done = Kept(options.keep, "algorithm", "env", "seed")
    rows, data = [], {}
    for algorithm, env in shipped(with_target=True):
        if options.only and f"{algorithm}/{env}" not in options.only:
            continue
        runs = []
        for seed in range(options.seeds):
            key = (algorithm, env, seed)
            if key not in done:
                done[key] = run_one(*key)
            runs.append(done[key])
        rows.append(row_of(algorithm, env, runs))
        data[f"{algorithm}/{env}"] = runs
        print(*rows[-1], sep=" | ", flush=True)
    header = ["algorithm", "environment", "target", "reached", "95 % interval", "median steps", "90 %", "seeds missed"]
    table = markdown_table(header, rows)
    report = Report("preset_seeds", "Presets over many seeds", [table], data)
    print(table, *report.write(), sep="\n")


if __name__ == "__main__":
    main()
