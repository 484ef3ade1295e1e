"""PPO with a convolutional network on a pixel environment: the torch back end against Stable-Baselines3.

    flock /tmp/mileage-bench.lock env PYTHONPATH=src python benchmarks/torch_cnn.py --peer-python PYTHON

Both arms train the same network (Mnih's convolutions, 512 features, linear heads: `policy="cnn"` and `CnnPolicy`) with
the same settings on the same Gymnasium environment, each in a process of its own, in alternation. The first rollout
and update of every process warm up and are not counted. Ours uses all cores. Stable-Baselines3 runs with one thread and
with all, because which is faster depends on what else the machine does; each round counts the faster one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _harness import Report, markdown_table
from pixel_cartpole import SETTINGS, PixelCartPole

HERE = Path(__file__).resolve().parent
OURS, PEER = "mileage", "Stable-Baselines3"
ROLLOUT = SETTINGS["n_envs"] * SETTINGS["n_steps"]
TIMEOUT_SECONDS = 600.0


def train(seed: int, steps: int, threads: int | None) -> dict[str, Any]:
    """Our arm, in this process."""
    import mileage
    from mileage.envs.gymnasium.bridge import GymnasiumEnv

    spec = GymnasiumEnv("PixelCartPole", make=PixelCartPole)
    first: list[float] = []

    def note(progress: Any) -> None:
        first.append(time.perf_counter())

    with mileage.PPO(spec, policy="cnn", preset="none", seed=seed, threads=threads, device="cpu", **SETTINGS) as agent:
        agent.learn(steps + ROLLOUT, eval_every=10**9, panel=agent.default_panel(episodes=1), callback=note)
        parameters = sum(each.numel() for each in agent.policy.module.parameters())
    # Callbacks come after an iteration; evaluation, which the other arm does not do, falls into the last one.
    seconds = first[-2] - first[0]
    return {"steps_per_second": (len(first) - 2) * ROLLOUT / seconds, "seconds": seconds, "parameters": parameters}


def run(command: list[str]) -> dict[str, Any]:
    """One process; what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    record: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return record


def by_arm(records: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Steps per second of each arm, round after round."""
    arms = dict.fromkeys(record["arm"] for record in records)
    rounds = sorted(records, key=lambda record: int(record["seed"]))
    return {arm: [record["steps_per_second"] for record in rounds if record["arm"] == arm] for arm in arms}


def table(records: list[dict[str, Any]]) -> str:
    """Medians, and the median over rounds of the ratio within a round."""
    speeds = by_arm(records)
    peers = [found for arm, found in speeds.items() if arm != OURS]
    if len(peers) > 1:
        speeds[f"{PEER}, the faster of each round"] = [max(found) for found in zip(*peers, strict=True)]
    rows = []
    for arm, found in speeds.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(speeds[OURS], found, strict=True))
        by_round = " ".join(f"{each:.0f}" for each in found)
        rows.append([arm, f"{statistics.median(found):,.0f}", f"{ratio:.2f}×", by_round])
    return markdown_table(["arm", "steps/s", f"{OURS} is faster by", "by round"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="the Python that has Stable-Baselines3; ours alone without")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=3, help="of 1,024 steps each, the first of them not counted")
    parser.add_argument("--threads", type=int, help="ours; all cores by default")
    parser.add_argument("--train", action="store_true", help="be our arm: train once and print JSON")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    steps = options.rollouts * ROLLOUT
    if options.train:
        print(json.dumps(train(options.seed, steps, options.threads)))
        return
    arms = {OURS: [sys.executable, str(HERE / "torch_cnn.py"), "--train", "--rollouts", str(options.rollouts)]}
    if options.peer_python:
        peer = [options.peer_python, str(HERE / "peers" / "ppo_cnn_sb3.py")]
        for n in sorted({1, len(os.sched_getaffinity(0))}):
            arms[f"{PEER}, {n} thread{'s' if n > 1 else ''}"] = [*peer, "--steps", str(steps), "--threads", str(n)]
    records = []
    for seed in range(options.rounds):
        names = list(arms)
        for arm in (*names[seed % len(names) :], *names[: seed % len(names)]):
            records.append({"arm": arm, "seed": seed} | run([*arms[arm], "--seed", str(seed)]))
            print(f"round {seed}: {arm}: {records[-1]['steps_per_second']:,.0f} steps/s", flush=True)
    assert len({record["parameters"] for record in records}) == 1, "the networks differ"
    tables = [table(records), f"Parameters of the network: {records[0]['parameters']:,}."]
    report = Report("torch_cnn", "PPO with a convolutional network on pixels", tables, records)
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    main()
