"""DQN on CartPole-v1 against Stable-Baselines3, whole processes in alternation.

    PYTHONPATH=src python benchmarks/dqn_cartpole.py --peers --peer-python PYTHON

*matched*: 50,000 steps at the settings of Stable-Baselines3's zoo (batches of 64, 128 updates after every 256 steps)
for both arms, with the library's default network (two hidden layers of 64) and with its zoo's (256): updates per
second while learning, steps per second over all. *target*: how long from process start until the mean over 100
held-out episodes is at least 475, with our preset and with the zoo's settings. Arms are as in `ppo_cartpole.py`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from _harness import Report, markdown_table
from ppo_cartpole import HERE, OURS, ArmCommand, Record, alternate, by_arm, median, ratio, run_process, target_table

PEERS = {"Stable-Baselines3": "dqn_sb3.py"}


def matched_table(records: list[Record]) -> str:
    """Speed and quality of the runs at matched settings."""
    rows = [
        [
            name,
            f"{median(runs, 'updates_per_second'):,.0f}",
            ratio(records, OURS, name, "updates_per_second"),
            f"{median(runs, 'steps_per_second'):,.0f}",
            ratio(records, OURS, name, "steps_per_second"),
            f"{median(runs, 'updates'):,.0f}",
            " ".join(f"{run['held_out_mean_return']:.0f}" for run in runs),
        ]
        for name, runs in by_arm(records).items()
    ]
    header = ["arm", "updates/s", f"{OURS} is faster by", "steps/s", f"{OURS} is faster by", "updates"]
    return markdown_table([*header, "held-out return by seed"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true", help="also run Stable-Baselines3")
    parser.add_argument("--peer-python", default=sys.executable, help="the Python that has it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-threads", type=int, default=1, help="what is faster for it, found beforehand")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3, help="rounds at matched settings, 0 for none")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256], help="of both hidden layers")
    parser.add_argument("--target-rounds", type=int, default=0, help="rounds to the target")
    parser.add_argument("--name", default="dqn_cartpole", help="name of the result files")
    options = parser.parse_args()
    ours = (sys.executable, str(HERE / "arm_off_policy.py"), "--algorithm", "dqn", "--threads", str(options.threads))
    arms = [ArmCommand(OURS, ours)]
    for name, script in PEERS.items() if options.peers else ():
        extra = ("--threads", str(options.peer_threads))
        arms.append(ArmCommand(name, (options.peer_python, str(HERE / "peers" / script), *extra)))
    tables, data = [], {}
    if options.rounds:
        for width in options.widths:
            extra = ("--steps", str(options.steps), "--width", str(width))
            timed = [replace(arm, command=(*arm.command, *extra)) for arm in arms]
            records = alternate(timed, "matched", options.rounds, run_process)
            tables += [f"## Matched settings, {options.steps:,} steps, {width} × {width}", matched_table(records)]
            data[f"matched_{width}"] = records
    if options.target_rounds:
        records = alternate(arms, "target", options.target_rounds, run_process)
        tables += ["## To a mean return of 475 on 100 held-out episodes", target_table(records)]
        data["target"] = records
    tables.append(f"Threads: {OURS} {options.threads}, peer {options.peer_threads}.")
    report = Report(options.name, "DQN on CartPole-v1", tables, data)
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    main()
