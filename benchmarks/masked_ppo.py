"""Does PPO with action masks learn as well here as sb3-contrib's MaskablePPO at the same settings? Ten seeds each.

    PYTHONPATH=src python benchmarks/masked_ppo.py --peer-python PYTHON --keep runs.jsonl

The task is to order eight jobs on a machine, where a job that is done cannot be done again (`peers/_masked.py`): the
mask shrinks with every step, and the best order is known. What is compared is the cost above that of the best orders on
held-out problems after 61,440 steps. Seconds are not compared: arms share the machine with whatever else runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from _harness import Kept, Report, markdown_table
from dqn_seeds import difference
from peers._masked import EPISODES, JOBS, SETTINGS
from ppo_cartpole import HERE, OURS, ArmCommand, Record, by_arm, run_process

PEER = "sb3-contrib"
TORCH = f"{OURS}, torch"


def table(records: Sequence[Record]) -> str:
    """Every arm's excess costs: mean, median, smallest and largest."""
    rows = []
    for name, runs in by_arm(records).items():
        found = [100.0 * run["excess"] for run in runs]
        cells = (statistics.mean(found), statistics.median(found), min(found), max(found))
        rows.append([name, str(len(runs)), *(f"{each:.2f} %" for each in cells)])
    return markdown_table(["arm", "seeds", "excess cost, mean", "median", "smallest", "largest"], rows)


def verdict(records: Sequence[Record]) -> str:
    """Differences from the peer, with their intervals."""
    groups = by_arm(records)
    lines = []
    for name in (OURS, TORCH):
        values = ([100.0 * run["excess"] for run in groups[each]] for each in (name, PEER))
        gap, low, high = difference(*values)
        word = "no difference seen" if low <= 0.0 <= high else "less is better"
        interval = f"95 % interval {low:+.2f} to {high:+.2f}"
        lines.append(f"{name} minus {PEER}, mean excess cost: {gap:+.2f} points ({interval}): {word}.")
    return "\n\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable, help="the Python that has sb3-contrib")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="file of runs that are done, which grows")
    options = parser.parse_args()
    ours = str(HERE / "arm_masked.py")
    arms = [
        ArmCommand(OURS, (sys.executable, ours)),
        ArmCommand(TORCH, (sys.executable, ours, "--backend", "torch")),
        ArmCommand(PEER, (options.peer_python, str(HERE / "peers" / "masked_ppo_sb3.py"))),
    ]
    done = Kept(options.keep, "arm", "seed")
    for seed in range(options.seeds):
        for arm in arms:
            key = (arm.name, seed)
            if key not in done:
                done[key] = run_process(arm, "matched", seed, timeout=None)
                print(*key, f"{done[key]['excess']:.4f}", flush=True)
    records = list(done.values())
    settings = ", ".join(f"{name} {value:g}" for name, value in SETTINGS.items())
    told = (
        f"{JOBS} jobs; cost above that of the best orders on {EPISODES} held-out problems. Settings of all: {settings}."
    )
    tables = [told, table(records), verdict(records)]
    report = Report("masked_ppo", "PPO with action masks", tables, records)
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    main()
