"""What do the presets come to whose budget takes minutes? A few seeds each, to the end of the budget, not timed.

    PYTHONPATH=src python benchmarks/preset_returns.py --keep preset_returns.jsonl
    PYTHONPATH=src python benchmarks/preset_returns.py --only ppo/Hopper-v5 --seeds 1

Each run is `mileage.PPO(env, seed=s, threads=1).learn()` and nothing else; what counts is the evaluation at its end.
Needs the extras mujoco and box2d. `--keep` remembers runs that are done; the table shows what is there.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import _presets
from _harness import Kept, Report, markdown_table
from _presets import shipped
from mileage.training.agents import agent_class


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
    options = _presets.options(__doc__, 5, "algorithm/environment to train; the table shows all that is kept")
    done = Kept(options.keep, "algorithm", "env", "seed")
    rows, data = [], {}
    for algorithm, env in shipped(with_target=False):
        for seed in range(options.seeds):
            key = (algorithm, env, seed)
            if key not in done and (not options.only or f"{algorithm}/{env}" in options.only):
                done[key] = run_one(*key)
                print(done[key], flush=True)
        if runs := [run for key, run in sorted(done.items()) if key[:2] == (algorithm, env)]:
            rows.append(row_of(algorithm, env, runs))
            data[f"{algorithm}/{env}"] = runs
    header = ["algorithm", "environment", "steps", "seeds", "median of mean returns", "lowest", "highest"]
    table = markdown_table(header, rows)
    report = Report("preset_returns", "Presets whose budget takes minutes", [table], data)
    print(table, *report.write(), sep="\n")


if __name__ == "__main__":
    main()
