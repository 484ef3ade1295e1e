"""Does DQN at the settings of Stable-Baselines3's zoo learn as well here as there? Many seeds of both, not timed.

    PYTHONPATH=src python benchmarks/dqn_seeds.py --peer-python PYTHON --keep runs.jsonl

CartPole-v1, 50,000 steps, the arms of `dqn_cartpole.py`. These settings let a policy rise and fall again, so that the
last network alone says little: every run is also evaluated on the way, always on 100 held-out episodes. A run's *late*
return is the mean over its evaluations in the last fifth of the training. `--keep` remembers runs that are done.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from _harness import Kept, Report, markdown_table
from ppo_cartpole import HERE, OURS, ArmCommand, Record, by_arm, run_process

PEER = "Stable-Baselines3"
STEPS, EVALUATE_EVERY = 50_000, 2048
LATE = 0.8
TARGET = 475.0
RESAMPLES = 10_000


def late_returns(record: Record) -> list[float]:
    """Held-out returns of the last fifth of a run, that of the last network included."""
    first = LATE * record["steps"]
    between = [value for steps, value in record["evaluations"] if first <= steps < record["steps"]]
    return [*between, record["held_out_mean_return"]]


def late_mean(record: Record) -> float:
    return statistics.mean(late_returns(record))


def best(record: Record) -> float:
    """The best evaluation of a run."""
    return max(record["held_out_mean_return"], *(value for _, value in record["evaluations"]))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Difference of the means, and its 95 % interval by bootstrap over runs."""
    rng = np.random.default_rng(0)

    def means(values: Sequence[float]) -> np.ndarray:
        return rng.choice(np.asarray(values), (RESAMPLES, len(values))).mean(axis=1)

    low, high = np.quantile(means(ours) - means(theirs), [0.025, 0.975])
    return statistics.mean(ours) - statistics.mean(theirs), float(low), float(high)


def distribution_table(records: Sequence[Record]) -> str:
    """Quartiles of the final and of the late returns, and how often the target was met."""
    rows = []
    for name, runs in by_arm(records).items():
        cells = [name, str(len(runs))]
        for values in ([run["held_out_mean_return"] for run in runs], [late_mean(run) for run in runs]):
            quartiles = np.quantile(values, [0.25, 0.5, 0.75])
            cells += [f"{statistics.mean(values):.0f}", " / ".join(f"{each:.0f}" for each in quartiles)]
        late = [value for run in runs for value in late_returns(run)]
        cells += [f"{np.mean(np.asarray(late) >= TARGET):.0%}", f"{np.mean([best(run) >= TARGET for run in runs]):.0%}"]
        rows.append(cells)
    header = ["arm", "seeds", "final, mean", "quartiles", "late, mean", "quartiles", "late evaluations ≥ 475"]
    return markdown_table([*header, "runs that met 475 once"], rows)


def verdict(records: Sequence[Record]) -> str:
    """The differences in words, and every final return."""
    groups = by_arm(records)
    lines = []
    for name, value in (("final", lambda run: run["held_out_mean_return"]), ("late", late_mean)):
        ours, theirs = ([value(run) for run in groups[arm]] for arm in (OURS, PEER))
        gap, low, high = difference(ours, theirs)
        lines.append(f"{OURS} minus {PEER}, mean {name} return: {gap:+.0f} (95 % interval {low:+.0f} to {high:+.0f}).")
    for name, runs in groups.items():
        finals = " ".join(f"{run['held_out_mean_return']:.0f}" for run in runs)
        lines.append(f"Final returns of {name}: {finals}.")
    return "\n\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable, help="the Python that has Stable-Baselines3")
    parser.add_argument("--seeds", type=int, nargs="+", default=[20, 20], help="how many at each width")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256], help="of both hidden layers")
    parser.add_argument("--keep", type=Path, help="file of runs that are done, which grows")
    options = parser.parse_args()
    extra = ("--threads", "1", "--steps", str(STEPS), "--evaluate-every", str(EVALUATE_EVERY))
    arms = [
        ArmCommand(OURS, (sys.executable, str(HERE / "arm_off_policy.py"), "--algorithm", "dqn", *extra)),
        ArmCommand(PEER, (options.peer_python, str(HERE / "peers" / "dqn_sb3.py"), *extra)),
    ]
    done = Kept(options.keep, "arm", "width", "seed")
    tables, data = [], {}
    for width, seeds in zip(options.widths, options.seeds, strict=True):
        records = []
        for seed in range(seeds):
            for arm in arms:
                key = (arm.name, width, seed)
                if key not in done:
                    wide = ArmCommand(arm.name, (*arm.command, "--width", str(width)))
                    done[key] = run_process(wide, "matched", seed, timeout=None) | {"width": width}
                    print(*key, f"{done[key]['held_out_mean_return']:.0f} {late_mean(done[key]):.0f}", flush=True)
                records.append(done[key])
        tables += [f"## {width} × {width}", distribution_table(records), verdict(records)]
        data[str(width)] = records
    report = Report("dqn_seeds", "DQN on CartPole-v1 at the zoo's settings, many seeds", tables, data)
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    main()
