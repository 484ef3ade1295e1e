"""Do the shipped presets reach every native environment's usual target? Steps and wall-clock to it, seed by seed.

One process, kernels compiled before; a run's clock starts when `learn` is called and stops after the evaluation (100
held-out episodes) that first met the target, so it holds building, training and every evaluation. Seeds go round
robin over the environments, so that a noisy minute does not fall on one of them alone.

python benchmarks/solve_native.py --out benchmarks/results
python benchmarks/solve_native.py --algorithm sac --envs Pendulum-v1 --seeds 10 --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _harness import shown_command
from _presets import TARGETS
from mileage.ledger.runs import RecordedRun
from mileage.measure import fingerprint
from mileage.training.agents import agent_class

# No seed of a report, and none of a search.
WARM_UP_SEED = 999


def run_one(algorithm: str, env: str, seed: int) -> RecordedRun:
    with agent_class(algorithm)(env, seed=seed) as agent:
        return agent.learn(target=f"mean_return>={TARGETS[env]:g}")


def warm_up(algorithm: str, envs: Sequence[str]) -> None:
    for env in envs:
        with agent_class(algorithm)(env, seed=WARM_UP_SEED) as agent:
            agent.learn(1)


def row_of(record: RecordedRun) -> dict[str, Any]:
    return {
        "seed": record.seed,
        "reached": record.reached,
        "steps": record.steps,
        "wall_to_target": record.wall_to_target,
        "wall_seconds": record.wall_seconds,
        "eval_seconds": record.phases.get("eval", 0.0),
        "evaluations": len(record.evaluations),
        "mean_return": record.final.mean_return if record.final else None,
    }


def summary_of(env: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and worst over all runs; one that missed the target counts with all it spent, and lowers `reached`."""
    wall = [row["wall_to_target"] or row["wall_seconds"] for row in rows]
    return {
        "env": env,
        "target": TARGETS[env],
        "seeds": len(rows),
        "reached": sum(row["reached"] for row in rows),
        "median_steps": statistics.median(row["steps"] for row in rows),
        "median_wall": statistics.median(wall),
        "worst_wall": max(wall),
        "worst_steps": max(row["steps"] for row in rows),
        "median_eval_share": statistics.median(row["eval_seconds"] / row["wall_seconds"] for row in rows),
    }


def markdown(summaries: Sequence[dict[str, Any]]) -> str:
    head = [
        "| environment | target | seeds reached | median steps | median seconds | worst seconds | of it evaluation |",
        "|---|---|---|---|---|---|---|",
    ]
    body = [
        f"| {row['env']} | ≥ {row['target']:g} | {row['reached']} of {row['seeds']} | {row['median_steps']:,.0f} |"
        f" {row['median_wall']:.2f} | {row['worst_wall']:.2f} | {row['median_eval_share']:.0%} |"
        for row in summaries
    ]
    return "\n".join(head + body) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--envs", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=5, help="how many, from --first-seed on")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="directory for solve_native.json and .md, or solve_ALGORITHM")
    args = parser.parse_args()
    warm_up(args.algorithm, args.envs)
    runs: dict[str, list[dict[str, Any]]] = {env: [] for env in args.envs}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for env in args.envs:
            runs[env].append(row_of(run_one(args.algorithm, env, seed)))
            print(env, runs[env][-1], file=sys.stderr)
    summaries = [summary_of(env, rows) for env, rows in runs.items()]
    table = markdown(summaries)
    print(table)
    if args.out:
        result = {
            "command": shown_command(sys.argv),
            "machine": fingerprint().as_dict(),
            "summaries": summaries,
            "runs": runs,
        }
        args.out.mkdir(parents=True, exist_ok=True)
        name = "solve_native" if args.algorithm == "ppo" else f"solve_{args.algorithm}"
        (args.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        (args.out / f"{name}.md").write_text(table)


if __name__ == "__main__":
    main()
