"""PPO on CartPole-v1, whole processes against each other, in alternation.

    flock /tmp/mileage-bench.lock env PYTHONPATH=src python benchmarks/ppo_cartpole.py --peers --peer-python PYTHON

Two questions. *matched*: with the same settings and 50,176 steps, how many steps per second does training do,
compilation and start-up apart, and what does the policy return on 100 held-out episodes? *target*: with each library's
best documented settings, how long from process start until the mean over 100 held-out episodes is at least 475, looked
at about every 1,000 steps?

A few seeds say little of returns, which differ much from seed to seed. `--return-seeds 40` therefore runs that many
seeds of ours and of Stable-Baselines3 at matched settings for their returns alone; it needs no quiet machine.

An arm is a name and a command that prints one line of JSON (see `peers/_arm.py`). Peers run with the number of threads
that makes them faster, found beforehand. Round r uses seed r for every arm.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from _harness import Report, markdown_table
from mileage.measure import schedule

HERE = Path(__file__).resolve().parent
OURS, OURS_COLD, RIVAL = "mileage", "mileage, empty cache", "Stable-Baselines3"
PEERS = {"rejax": "ppo_rejax.py", "rlox": "ppo_rlox.py", "Stable-Baselines3": "ppo_sb3.py"}
# Against hanging; a process that is paused for a while is not hanging.
TIMEOUT_SECONDS = 1800.0
# Enough for a thread count to show, few enough to be quick.
CALIBRATION_STEPS = 10_240
BOOTSTRAP_DRAWS, SOLVED = 10_000, 475


@dataclass(frozen=True)
class ArmCommand:
    """A program that trains and prints JSON."""

    name: str
    command: tuple[str, ...]
    # The kernel cache is emptied before every run.
    cold: bool = False

    def line(self, mode: str, seed: int) -> list[str]:
        """The command line of one run."""
        return [*self.command[:2], mode, "--seed", str(seed), *self.command[2:]]


Record = dict[str, Any]
Runner = Callable[[ArmCommand, str, int], Record]


def run_process(arm: ArmCommand, mode: str, seed: int, timeout: float | None = TIMEOUT_SECONDS) -> Record:
    """Run an arm once; what it printed, plus the wall-clock of its whole process."""
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | ({"MILEAGE_CACHE_DIR": empty} if arm.cold else {})
        start = time.perf_counter()
        done = subprocess.run(
            arm.line(mode, seed), env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(arm.line(mode, seed))} failed:\n{done.stderr.strip()[-2000:]}")
    record: Record = json.loads(done.stdout.strip().splitlines()[-1])
    return record | {"arm": arm.name, "process_s": seconds}


def alternate(arms: Sequence[ArmCommand], mode: str, rounds: int, runner: Runner) -> list[Record]:
    """Run every arm once per round, each round starting with the next arm."""
    by_name = {arm.name: arm for arm in arms}
    records = []
    for turn in schedule(list(by_name), rounds):
        records.append(runner(by_name[turn.arm], mode, turn.round))
        print(f"{mode} round {turn.round}: {turn.arm}: {_short(records[-1])}", flush=True)
    return records


def _short(record: Record) -> str:
    if record["mode"] == "matched":
        return f"{record['steps_per_second']:,.0f} steps/s, held-out {record['held_out_mean_return']:.0f}"
    reached = f"{record['wall_to_target_s']:.2f} s" if record["reached"] else "not reached"
    return f"{reached} after {record['steps']:,} steps"


def better_threads(arm: ArmCommand, cores: int, runner: Runner) -> ArmCommand:
    """The arm with the number of threads, one or all, at which it does more steps per second."""
    candidates = [replace(arm, command=(*arm.command, "--threads", str(n))) for n in sorted({1, cores})]
    short = [replace(each, command=(*each.command, "--steps", str(CALIBRATION_STEPS))) for each in candidates]
    speeds = [runner(each, "matched", 0)["steps_per_second"] for each in short]
    return candidates[speeds.index(max(speeds))]


def matched_table(records: Sequence[Record], ours: str = OURS) -> str:
    """Speed and quality of the runs at matched settings."""
    rows = []
    for name, runs in by_arm(records).items():
        returns = [run["held_out_mean_return"] for run in runs]
        rows.append(
            [
                name,
                f"{median(runs, 'steps_per_second'):,.0f}",
                ratio(records, ours, name, "steps_per_second"),
                f"{median(runs, 'train_s'):.2f}",
                f"{median(runs, 'import_s') + median(runs, 'init_s'):.2f}",
                f"{median(runs, 'compile_s'):.2f}",
                f"{median(runs, 'process_s'):.2f}",
                f"{statistics.mean(returns):.0f}",
                " ".join(f"{each:.0f}" for each in returns),
            ]
        )
    header = ["arm", "steps/s", f"{ours} is faster by", "training s", "import + init s", "compile s", "process s"]
    return markdown_table([*header, "held-out return, mean", "by seed"], rows)


def returns_table(records: Sequence[Record], ours: str = OURS, rival: str = RIVAL) -> str:
    """Held-out returns of many seeds, and the difference of their means with a 95 % bootstrap interval."""
    groups = {name: [run["held_out_mean_return"] for run in runs] for name, runs in by_arm(records).items()}
    rng = np.random.default_rng(0)
    means = {name: rng.choice(found, (BOOTSTRAP_DRAWS, len(found))).mean(1) for name, found in groups.items()}
    rows = []
    for name, found in groups.items():
        low, high = np.quantile(means[name], (0.025, 0.975))
        solved = sum(each >= SOLVED for each in found)
        row = [name, len(found), f"{statistics.mean(found):.0f} [{low:.0f}, {high:.0f}]"]
        rows.append([*row, f"{statistics.median(found):.0f}", f"{min(found):.0f}", f"{solved} of {len(found)}"])
    table = markdown_table(["arm", "seeds", "mean held-out return", "median", "least", f"at least {SOLVED}"], rows)
    if not {ours, rival} <= set(groups):
        return table
    gap = statistics.mean(groups[ours]) - statistics.mean(groups[rival])
    low, high = np.quantile(means[ours] - means[rival], (0.025, 0.975))
    return f"{table}\n\n{ours} − {rival}: {gap:+.1f} [{low:+.1f}, {high:+.1f}], 95 % interval."


def target_table(records: Sequence[Record], ours: str = OURS) -> str:
    """Wall-clock to the target; runs that did not reach it are counted, not averaged in."""
    rows = []
    for name, runs in by_arm(records).items():
        reached = [run for run in runs if run["reached"]]
        cells = ["–"] * 5
        if reached:
            cells = [
                f"{median(reached, 'wall_to_target_s'):.2f}",
                ratio([run for run in records if run["reached"]], name, ours, "wall_to_target_s"),
                f"{median(reached, 'train_s'):.2f}",
                f"{median(reached, 'eval_s'):.2f}",
                f"{median(reached, 'steps'):,.0f}",
            ]
        rows.append([name, f"{len(reached)} of {len(runs)}", *cells, f"{median(runs, 'process_s'):.2f}"])
    header = ["arm", "reached", "wall-clock to target s", f"times {ours}", "training s", "evaluation s", "steps"]
    return markdown_table([*header, "process s"], rows)


def by_arm(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of each arm, in order of seed."""
    groups: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda each: each["seed"]):
        groups.setdefault(record["arm"], []).append(record)
    return groups


def median(records: Sequence[Record], key: str) -> float:
    return statistics.median(record[key] for record in records)


def ratio(records: Sequence[Record], over: str, under: str, key: str) -> str:
    """Median over rounds of the ratio of two arms within a round."""
    groups = by_arm(records)
    below = {record["seed"]: record[key] for record in groups.get(under, [])}
    ratios = [record[key] / below[record["seed"]] for record in groups.get(over, []) if record["seed"] in below]
    return f"{statistics.median(ratios):,.1f}×" if ratios else "–"


def arms_of(options: argparse.Namespace, runner: Runner) -> list[ArmCommand]:
    """The arms asked for, peers at their better number of threads."""
    arms = [ArmCommand(OURS, (sys.executable, str(HERE / "arm_mileage.py")))] if options.ours else []
    if options.peers:
        for name, script in PEERS.items():
            arm = ArmCommand(name, (options.peer_python, str(HERE / "peers" / script)))
            arms.append(better_threads(arm, len(os.sched_getaffinity(0)), runner))
    return arms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true", help="also run rejax, rlox and Stable-Baselines3")
    parser.add_argument("--peer-python", default=sys.executable, help="the Python that has them")
    parser.add_argument("--no-ours", dest="ours", action="store_false", help="peers only")
    parser.add_argument("--rounds", type=int, default=5, help="rounds at matched settings, 0 for none")
    parser.add_argument("--target-rounds", type=int, default=10, help="rounds to the target, 0 for none")
    parser.add_argument("--return-seeds", type=int, default=0, help="seeds of the comparison of returns, 0 for none")
    parser.add_argument("--cold", action="store_true", help="also time ours to the target with an empty kernel cache")
    parser.add_argument("--name", default="ppo_cartpole", help="name of the result files")
    options = parser.parse_args()
    arms = arms_of(options, run_process)
    tables, data = [], []
    if options.rounds:
        records = alternate(arms, "matched", options.rounds, run_process)
        tables += ["## Matched settings, 50,176 steps", matched_table(records)]
        data += records
    if options.return_seeds:
        pair = [arm for arm in arms if arm.name in (OURS, RIVAL)]
        records = alternate(pair, "matched", options.return_seeds, run_process)
        tables += ["## Held-out return at matched settings, many seeds", returns_table(records)]
        data += records
    if options.target_rounds:
        cold = [replace(arm, name=OURS_COLD, cold=True) for arm in arms if arm.name == OURS and options.cold]
        records = alternate([*arms, *cold], "target", options.target_rounds, run_process)
        tables += ["## To a mean return of 475 on 100 held-out episodes", target_table(records)]
        data += records
    threads = [f"{arm.name} {arm.command[-1]}" for arm in arms if "--threads" in arm.command]
    if threads:
        tables.append(f"Threads: {', '.join(threads)}.")
    report = Report(options.name, "PPO on CartPole-v1", tables, data)
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    main()
