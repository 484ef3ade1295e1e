"""LunarLander-v3 with PPO as it comes: return after 300,000 steps, share of evaluation, and speed beside a peer.

    PYTHONPATH=src python benchmarks/lunar_lander.py --keep lunar_lander.jsonl
    PYTHONPATH=src python benchmarks/lunar_lander.py --peer-python PYTHON --peer-steps 20000

Needs the box2d extra. Each run is `mileage.PPO("LunarLander-v3", seed=s).learn()` and nothing else. The peer is
Stable-Baselines3's PPO with its own defaults, not evaluated: steps over seconds of `learn`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _harness import Kept, Report, markdown_table

HERE = Path(__file__).parent
ENV, TARGET = "LunarLander-v3", 200.0


def run_one(seed: int, threads: int | None) -> dict[str, Any]:
    import mileage

    with mileage.PPO(ENV, seed=seed, threads=threads) as agent:
        started, cpu = time.perf_counter(), time.process_time()
        record = agent.learn()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert record.final is not None
    return {
        "seed": seed,
        "steps": record.steps,
        "mean_return": record.final.mean_return,
        "evaluations": len(record.evaluations),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "eval_share": record.phases.get("eval", 0.0) / record.wall_seconds,
        "phases": dict(record.phases),
    }


def peer_speed(python: str, steps: int) -> dict[str, Any]:
    command = [python, str(HERE / "peers" / "lunar_lander_sb3.py"), "--steps", str(steps)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--keep", type=Path, help="file of runs that are done, which grows")
    parser.add_argument("--peer-python", help="the Python that has Stable-Baselines3")
    parser.add_argument("--peer-steps", type=int, default=20_000)
    options = parser.parse_args()
    done = Kept(options.keep, "seed")
    keys = [(seed,) for seed in range(options.seeds)]
    for key in keys:
        if key not in done:
            done[key] = run_one(*key, options.threads)
            print(done[key], file=sys.stderr, flush=True)
    runs = [done[key] for key in keys]
    rows = [
        [run["seed"], f"{run['steps']:,}", f"{run['mean_return']:.0f}", run["evaluations"], f"{run['eval_share']:.0%}",
         f"{run['seconds']:.0f}", f"{run['cpu_seconds']:.0f}", f"{run['steps'] / run['cpu_seconds']:,.0f}"]
        for run in runs
    ]  # fmt: skip
    header = ["seed", "steps", "mean return", "evaluations", "of it evaluation", "seconds", "CPU seconds"]
    tables = [markdown_table([*header, "steps per CPU second"], rows)]
    met = sum(run["mean_return"] >= TARGET for run in runs)
    tables.append(f"{met} of {len(runs)} seeds ended at {TARGET:g} or more.")
    data: dict[str, Any] = {"runs": runs}
    if options.peer_python:
        data["peer"] = peer = peer_speed(options.peer_python, options.peer_steps)
        ours = statistics.median(run["steps"] / run["cpu_seconds"] for run in runs)
        theirs = peer["steps"] / peer["cpu_seconds"]
        tables.append(f"{peer['name']}: {theirs:,.0f} steps per CPU second; {ours / theirs:.1f} times as many here.")
    report = Report("lunar_lander", f"PPO on {ENV} as it comes", tables, data)
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    main()
