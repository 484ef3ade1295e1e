"""SAC on Pendulum-v1, whole processes against each other, in alternation.

    PYTHONPATH=src python benchmarks/sac_pendulum.py --peers --peer-python PYTHON

Two questions. *matched*: two hidden layers of 256, batches of 256, one update per environment step; how many steps per
second does training do once it learns, compilation apart? *target*: how long from process start until the mean over
100 held-out episodes is at least -200, with our preset and with the settings of Stable-Baselines3's zoo, looked at
every 500 steps?

Peers are slow: with `--peer-steps` they are timed over their first steps only, and so are we, in a run that goes on to
the end. Nothing in these settings depends on how many steps are to come, so that the speed is the same.

Arms are as in `ppo_cartpole.py`. Beside the speeds stands the roofline: floating-point operations of the update's
matrix products against what BLAS does on matrices of the same shapes on this machine.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np

from _harness import Report, markdown_table
from ppo_cartpole import HERE, OURS, ArmCommand, Record, alternate, by_arm, median, ratio, run_process, target_table

PEERS = {"Stable-Baselines3": "sac_sb3.py", "rlox": "sac_rlox.py", "sbx": "sac_sbx.py"}
BATCH, WIDTH, OBS, ACTIONS = 256, 256, 3, 1


def update_flops() -> int:
    """Floating-point operations of the matrix products of one update."""
    actor, critic = (OBS, WIDTH, WIDTH, 2 * ACTIONS), (OBS + ACTIONS, WIDTH, WIDTH, 1)

    def layers(sizes: tuple[int, ...], first: int = 0) -> int:
        return 2 * BATCH * sum(a * b for a, b in list(itertools.pairwise(sizes))[first:])

    # Forward, gradient by the weights, gradient by the inputs of every layer but the first.
    targets = layers(actor) + 2 * layers(critic)
    critics = 2 * (2 * layers(critic) + layers(critic, 1))
    # Both critics forward, and back to the action through the smaller one in each row; then the actor's own gradients.
    policy = layers(actor) + 3 * layers(critic) + layers(actor) + layers(actor, 1)
    return targets + critics + policy


def blas_rate(threads: int, seconds: float = 0.5) -> float:
    """Floating-point operations per second of (256, 256) by (256, 256) products, one per thread at a time."""
    from mileage.kernels.machine.blas import sgemm, single_threaded_blas
    from mileage.kernels.machine.frames import pointer_to
    from mileage.kernels.machine.jit import kernel

    @kernel
    def products(a: Any, b: Any, out: Any, times: Any) -> None:
        for _ in range(times):
            sgemm(0, 0, 256, 256, 256, pointer_to(a), 256, pointer_to(b), 256, pointer_to(out), 256)

    arrays = [[np.ones(WIDTH * WIDTH, np.float32) for _ in range(3)] for _ in range(threads)]
    products(*arrays[0], 1)
    per_product = 2 * 256**3
    times = max(1, int(seconds * 5e10 / per_product))
    best = 0.0
    with single_threaded_blas():
        for _ in range(5):
            workers = [threading.Thread(target=products, args=(*each, times)) for each in arrays]
            start = time.perf_counter()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            best = max(best, threads * times * per_product / (time.perf_counter() - start))
    return best


def matched_table(records: list[Record]) -> str:
    """Speed and quality of the runs at matched settings."""
    rows = [
        [
            name,
            f"{median(runs, 'steps_per_second'):,.0f}",
            ratio(records, OURS, name, "steps_per_second"),
            " ".join(f"{run['steps_per_second']:,.0f}" for run in runs),
            f"{runs[0].get('steps_timed', runs[0]['steps']):,}",
            f"{runs[0]['steps']:,}",
            " ".join(f"{run['held_out_mean_return']:.0f}" for run in runs),
        ]
        for name, runs in by_arm(records).items()
    ]
    header = ["arm", "steps/s", f"{OURS} is faster by", "steps/s by seed", "steps timed", "steps taken"]
    return markdown_table([*header, "held-out return by seed"], rows)


def whole_run(records: list[Record]) -> str:
    """Our speed over all steps where the comparison is over the first ones."""
    runs = [run for run in by_arm(records)[OURS] if "whole_steps_per_second" in run]
    if not runs:
        return ""
    speeds = " ".join(f"{run['whole_steps_per_second']:,.0f}" for run in runs)
    return f"{OURS} over all {runs[0]['steps']:,} steps, by seed: {speeds} steps/s."


def roofline(records: list[Record], threads: int) -> tuple[str, dict[str, float]]:
    """What share of BLAS's own speed the update reaches."""
    runs = by_arm(records)[OURS]
    flops, peak = update_flops(), blas_rate(threads)
    share = flops * median(runs, "updates_per_second") / peak
    text = (
        f"One update is {flops / 1e6:,.0f} million floating-point operations in matrix products. At "
        f"{median(runs, 'updates_per_second'):,.0f} updates/s that is "
        f"{flops * median(runs, 'updates_per_second') / 1e9:,.0f} GFLOP/s, {share:.0%} of the {peak / 1e9:,.0f} "
        f"GFLOP/s that BLAS reaches on 256 × 256 matrices with {threads} threads."
    )
    return text, {"update_flops": flops, "blas_flops_per_second": peak, "share": share}


def arms_of(options: argparse.Namespace) -> list[ArmCommand]:
    """Our arm and the peers asked for, all with the same number of threads."""
    extra = ("--threads", str(options.threads))
    arms = [ArmCommand(OURS, (sys.executable, str(HERE / "arm_off_policy.py"), "--algorithm", "sac", *extra))]
    wanted = options.only.split(",") if options.only else list(PEERS)
    peers = wanted if options.peers else []
    return arms + [ArmCommand(name, (options.peer_python, str(HERE / "peers" / PEERS[name]), *extra)) for name in peers]


def steps_of(arm: ArmCommand, options: argparse.Namespace) -> tuple[str, ...]:
    """How far an arm trains, and over which of its steps its speed is taken."""
    if options.peer_steps is None:
        return ("--steps", str(options.steps))
    if arm.name != OURS:
        return ("--steps", str(options.peer_steps))
    return ("--steps", str(options.steps), "--timed-steps", str(options.peer_steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true", help="also run Stable-Baselines3, rlox and sbx")
    parser.add_argument("--peer-python", default=sys.executable, help="the Python that has them")
    parser.add_argument("--only", default="", help="these peers, by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--peer-steps", type=int, help="steps that peers take and speeds are measured over")
    parser.add_argument("--rounds", type=int, default=3, help="rounds at matched settings, 0 for none")
    parser.add_argument("--target-rounds", type=int, default=3, help="rounds to the target, 0 for none")
    parser.add_argument("--name", default="sac_pendulum", help="name of the result files")
    options = parser.parse_args()
    arms = arms_of(options)
    tables, data = [], {}
    if options.rounds:
        timed = [replace(arm, command=(*arm.command, *steps_of(arm, options))) for arm in arms]
        records = alternate(timed, "matched", options.rounds, run_process)
        text, numbers = roofline(records, options.threads)
        tables += [f"## Matched settings, {options.steps:,} steps", matched_table(records)]
        tables += [part for part in (whole_run(records), text) if part]
        data |= {"matched": records, "roofline": numbers}
    if options.target_rounds:
        records = alternate(
            [arm for arm in arms if arm.name in (OURS, "Stable-Baselines3")],
            "target",
            options.target_rounds,
            run_process,
        )
        tables += ["## To a mean return of -200 on 100 held-out episodes", target_table(records)]
        data |= {"target": records}
    tables.append(f"Threads: {options.threads} for every arm.")
    report = Report(options.name, "SAC on Pendulum-v1", tables, data)
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    main()
