"""What compiled methods that the interpreter calls itself are worth in whole training runs.

    git worktree add ../with REVISION
    PYTHONPATH=src python benchmarks/interpreter_entries.py with=../with/src without=src

Up to revision 0c7c15b `VecEnv.step`, `ReplayBuffer.push` and `push_batch` were compiled functions that read arrays and
numbers by their place in CPython's and NumPy's structures. This compares source trees with and without them. Every arm
trains in a process of its own, one thread, and stops after each block of steps until it is its turn again; the order
changes from round to round. The figure is CPU time per environment step, which neighbours disturb least.
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

SAC = {"learning_rate": 3e-4, "batch": 256, "tau": 0.005, "gamma": 0.99, "learning_starts": 1000, "hidden": (256, 256)}
DQN = {
    "learning_rate": 2.3e-3, "batch": 64, "capacity": 100_000, "learning_starts": 1000, "target_every": 128,
    "train_every": 256, "gradient_steps": 128, "double": False, "exploration": 0.16, "epsilon_end": 0.04,
}  # fmt: skip
RUNS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "DQN CartPole, as dqn_cartpole.py": ("DQN", "CartPole-v1", DQN, 2560),
    "DQN CartPole, defaults": ("DQN", "CartPole-v1", {}, 2000),
    "SAC Pendulum, as sac_pendulum.py": ("SAC", "Pendulum-v1", SAC, 60),
    "TD3 Pendulum": ("TD3", "Pendulum-v1", SAC, 80),
}
WARM_UP = 2000


def train(name: str) -> None:
    """Train until killed: one line of seconds and steps for each line that comes in."""
    import mileage

    algorithm, env, settings, block = RUNS[name]
    agent = getattr(mileage, algorithm)(env, seed=0, preset="none", threads=1, **settings)
    start: list[tuple[float, int]] = []

    def callback(progress: Any) -> None:
        if progress.steps < (start[0][1] + block if start else WARM_UP):
            return
        now = time.process_time()
        if start:
            print(json.dumps([now - start[0][0], progress.steps - start[0][1]]), flush=True)
        sys.stdin.readline()
        start[:] = [(time.process_time(), progress.steps)]

    agent.learn(10**9, eval_every=10**12, callback=callback)


def measure(name: str, arms: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Microseconds of CPU time per step, of every block of every arm."""
    processes = {
        arm: subprocess.Popen(
            [sys.executable, __file__, "--train", name],
            env=os.environ | {"PYTHONPATH": str(Path(source).resolve()), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for arm, source in arms.items()
    }
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    try:
        for number in range(rounds + 1):
            for arm in list(arms) if number % 2 else list(reversed(arms)):
                pipe = processes[arm]
                assert pipe.stdin is not None
                assert pipe.stdout is not None
                print(file=pipe.stdin, flush=True)
                seconds, steps = json.loads(pipe.stdout.readline())
                found[arm].append(1e6 * seconds / steps)
    finally:
        for each in processes.values():
            each.kill()
            each.communicate()
    return {arm: samples[1:] for arm, samples in found.items()}


def row(name: str, found: dict[str, list[float]]) -> list[str]:
    """Medians, and the median over rounds of each arm by the first, with its quartiles."""
    first = next(iter(found.values()))
    cells = [name]
    for samples in found.values():
        ratios = [one / other for one, other in zip(samples, first, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells.append(f"{statistics.median(samples):.1f} µs")
        cells += [] if samples is first else [f"{middle:.3f} ({low:.3f} to {high:.3f})"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="*", help="NAME=SOURCE, a name and the folder that holds the package")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    from _harness import Report, markdown_table  # not in an arm, whose package may be another

    arms = dict(arm.split("=", 1) for arm in options.arms)
    found = {}
    for name in options.runs:
        found[name] = measure(name, arms, options.rounds)
        print(" | ".join(row(name, found[name])), flush=True)
    first, *others = arms
    header = ["run", first, *(cell for arm in others for cell in (arm, f"{arm} / {first}"))]
    tables = [
        markdown_table(header, [row(name, each) for name, each in found.items()]),
        f"CPU time per environment step, median of {options.rounds} blocks in turn; the ratio is the median over "
        "rounds, with quartiles.",
    ]
    report = Report("interpreter_entries", "Compiled methods that the interpreter calls itself", tables, found)
    print(*report.write(), sep="\n")


if __name__ == "__main__":
    main()
