"""Two revisions of mileage side by side: does anything learn worse than it did? Twenty seeds of both, not timed.

    git worktree add ../before REVISION
    PYTHONPATH=src python benchmarks/revision_returns.py ../before/src

For changes of arithmetic, which change every bit of a training and must change nothing that it learns. Both revisions
train the same seeds with the shipped preset's settings; a run's return is that of its last network on 100 held-out
episodes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _harness import Report, markdown_table
from dqn_seeds import difference
from revisions import _environment

JOBS = {
    "SAC Pendulum": ("SAC", "Pendulum-v1", 6_000),
    "TD3 Pendulum": ("TD3", "Pendulum-v1", 8_000),
    "DQN CartPole": ("DQN", "CartPole-v1", 50_000),
}
_ARM = """
import json, sys, mileage
algorithm, env, steps, seeds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
returns = []
for seed in range(seeds):
    with getattr(mileage, algorithm)(env, seed=seed, threads=1) as agent:
        agent.learn(steps, eval_every=10**9)
        returns.append(agent.evaluate().mean_return)
print(json.dumps(returns))
"""


def returns(source: Path, cache: Path, job: str, seeds: int) -> list[float]:
    """Held-out returns of one revision, a process for all seeds."""
    words = [*map(str, JOBS[job]), str(seeds)]
    variables = _environment(source) | {"MILEAGE_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", _ARM, *words], env=variables, check=True, capture_output=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(job: str, found: dict[str, list[float]]) -> list[str]:
    """Means of both, and their difference with its interval."""
    gap, low, high = difference(found["after"], found["before"])
    means = [f"{statistics.mean(found[arm]):.1f} ± {statistics.stdev(found[arm]):.1f}" for arm in ("before", "after")]
    same = sum(a == b for a, b in zip(found["after"], found["before"], strict=True))
    return [job, f"{JOBS[job][2]:,}", *means, f"{gap:+.1f} ({low:+.1f} to {high:+.1f})", f"{same}"]


def main() -> None:
    """Train, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="source directory of the earlier revision")
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    sources = {"before": options.before.resolve(), "after": options.after.resolve()}
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for job in JOBS:
            found[job] = {
                arm: returns(source, Path(folder) / arm, job, options.seeds) for arm, source in sources.items()
            }
            print(" | ".join(row(job, found[job])), flush=True)
    header = ["job", "steps", "before", "after", "difference of the means (95 %)", "seeds with the same return"]
    table = markdown_table(header, [row(job, each) for job, each in found.items()])
    report = Report("revision_returns", "Returns of two revisions", [table], {"seeds": options.seeds, "jobs": found})
    print(table, *report.write(), sep="\n")


if __name__ == "__main__":
    main()
