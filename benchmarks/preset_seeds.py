"""How often do the shipped presets reach their target? A hundred seeds of each, not timed.

    PYTHONPATH=src python benchmarks/preset_seeds.py --keep preset_seeds.jsonl
    PYTHONPATH=src python benchmarks/preset_seeds.py --only dqn/CartPole-v1 --seeds 20

One thread, seeds 0 to 99. IMPALA runs in lockstep, because its other mode depends on timing. `--keep` remembers runs
that are done. What rounds differently, as another processor does, changes single runs; the rates hold as far as their
intervals (Wilson) say.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from _harness import Report, markdown_table
from mileage.algorithms.registry import algorithms
from mileage.training.agents import agent_class

TARGETS = {
    "CartPole-v1": 475.0,
    "Acrobot-v1": -100.0,
    "MountainCar-v0": -115.0,
    "MountainCarContinuous-v0": 90.0,
    "Pendulum-v1": -200.0,
}


def shipped() -> Iterator[tuple[str, str]]:
    """Algorithm and environment of every preset with a target that is reached in seconds."""
    folder = resources.files("mileage.training").joinpath("presets")
    for algorithm in algorithms():
        file = folder.joinpath(f"{algorithm.name}.toml")
        for env in tomllib.loads(file.read_text()) if file.is_file() else ():
            if env in TARGETS:
                yield algorithm.name, env


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--only", nargs="+", help="algorithm/environment")
    parser.add_argument("--keep", type=Path, help="file of runs that are done, which grows")
    options = parser.parse_args()
    lines = options.keep.read_text().splitlines() if options.keep and options.keep.exists() else []
    done = {(run["algorithm"], run["env"], run["seed"]): run for run in map(json.loads, lines)}
    rows, data = [], {}
    for algorithm, env in shipped():
        if options.only and f"{algorithm}/{env}" not in options.only:
            continue
        runs = []
        for seed in range(options.seeds):
            key = (algorithm, env, seed)
            if key not in done:
                done[key] = run_one(*key)
                if options.keep:
                    with options.keep.open("a") as file:
                        file.write(json.dumps(done[key]) + "\n")
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
