"""What do the presets come to whose budget takes minutes? A few seeds each, to the end of the budget, not timed.

    PYTHONPATH=src python benchmarks/preset_returns.py --keep preset_returns.jsonl
    PYTHONPATH=src python benchmarks/preset_returns.py --only ppo/Hopper-v5 --seeds 1

Each run is `mileage.PPO(env, seed=s, threads=1).learn()` and nothing else; what counts is the evaluation at its end.
Needs the extras mujoco and box2d. `--keep` remembers runs that are done; the table shows what is there.
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

from _harness import Report, markdown_table
from mileage.algorithms.registry import algorithms
from mileage.training.agents import agent_class
from preset_seeds import TARGETS


def shipped() -> Iterator[tuple[str, str]]:
    """Algorithm and environment of every preset without a target that is reached in seconds."""
    folder = resources.files("mileage.training").joinpath("presets")
    for algorithm in algorithms():
        file = folder.joinpath(f"{algorithm.name}.toml")
        for env in tomllib.loads(file.read_text()) if file.is_file() else ():
            if env not in TARGETS:
                yield algorithm.name, env


def run_one(algorithm: str, env: str, seed: int) -> dict[str, Any]:
    """One run to the end of its budget."""
    start = time.process_time()
    with agent_class(algorithm)(env, seed=seed, threads=1) as agent:
        record = agent.learn()
    assert record.final is not None
    return {
        "algorithm": algorithm,
        "env": env,
        "seed": seed,
        "steps": record.steps,
        "episodes": len(record.final.returns),
        "mean_return": record.final.mean_return,
        "cpu_seconds": time.process_time() - start,
    }


def row_of(algorithm: str, env: str, runs: list[dict[str, Any]]) -> list[str]:
    """A line of the table."""
    returns = [run["mean_return"] for run in runs]
    return [
        algorithm, env, f"{max(run['steps'] for run in runs):,}", str(len(runs)), f"{statistics.median(returns):,.0f}",
        f"{min(returns):,.0f}", f"{max(returns):,.0f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="algorithm/environment to train; the table shows all that is kept")
    parser.add_argument("--keep", type=Path, help="file of runs that are done, which grows")
    options = parser.parse_args()
    lines = options.keep.read_text().splitlines() if options.keep and options.keep.exists() else []
    done = {(run["algorithm"], run["env"], run["seed"]): run for run in map(json.loads, lines)}
    rows, data = [], {}
    for algorithm, env in shipped():
        for seed in range(options.seeds):
            key = (algorithm, env, seed)
            if key not in done and (not options.only or f"{algorithm}/{env}" in options.only):
                done[key] = run_one(*key)
                print(done[key], flush=True)
                if options.keep:
                    with options.keep.open("a") as file:
                        file.write(json.dumps(done[key]) + "\n")
        if runs := [run for key, run in sorted(done.items()) if key[:2] == (algorithm, env)]:
            rows.append(row_of(algorithm, env, runs))
            data[f"{algorithm}/{env}"] = runs
    header = ["algorithm", "environment", "steps", "seeds", "median of mean returns", "lowest", "highest"]
    table = markdown_table(header, rows)
    report = Report("preset_returns", "Presets whose budget takes minutes", [table], data)
    print(table, *report.write(), sep="\n")


if __name__ == "__main__":
    main()
