"""Stepping Gymnasium's MuJoCo environments: mileage on one and two threads, Gymnasium in one process and in many.

    PYTHONPATH=src python benchmarks/mujoco_step.py

All arms start from the same seeds and take the same random actions, alternating in one run; at the end they must have
arrived at the same observations. A call is 100 steps of all environments.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from _harness import Report, markdown_table
from mileage.envs.mujoco import MujocoVecEnv
from mileage.measure import Arm
from mileage.measure.timing import TimingComparison, Work, compare

NAMES = ("HalfCheetah-v5", "Hopper-v5", "Ant-v5")
STEPS = 100
OURS = "mileage, 1 thread"


def stepper(envs: Any, actions: Any) -> Callable[[], Any]:
    """A call that takes the next `STEPS` steps, always through the same `actions`, and returns the observations."""

    def run() -> Any:
        for action in actions:
            obs = envs.step(action)[0]
        return obs

    return run


def vectors(name: str, n: int) -> dict[str, Any]:
    def make() -> Any:
        # Without the wrapper that checks what the environment returns, as a benchmark of Gymnasium should be.
        return gymnasium.make(name, disable_env_checker=True)

    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return {
        OURS: MujocoVecEnv(name, n, threads=1),
        "mileage, 2 threads": MujocoVecEnv(name, n, threads=2),
        "gymnasium, one process": gymnasium.vector.SyncVectorEnv([make] * n, autoreset_mode=mode),
        "gymnasium, a process each": gymnasium.vector.AsyncVectorEnv([make] * n, autoreset_mode=mode),
    }


def run_job(name: str, n: int, rounds: int) -> TimingComparison:
    envs = vectors(name, n)
    space = envs[OURS].single_action_space
    shape = (STEPS, n, *space.shape)
    actions = np.random.default_rng(0).uniform(space.low, space.high, shape).astype(np.float32)
    for each in envs.values():
        each.reset(seed=list(range(n)))
    runs = {arm: stepper(each, actions) for arm, each in envs.items()}
    result = compare(f"{name}, {n} environments", [Arm(arm, Work(run)) for arm, run in runs.items()], rounds=rounds)
    assert {measurement.repeats for measurement in result.measurements} == {1}
    last = [np.asarray(run(), np.float32) for run in runs.values()]
    for obs in last[1:]:
        np.testing.assert_array_equal(obs, last[0])
    for each in envs.values():
        each.close()
    return result


def table(results: list[TimingComparison], n: int) -> str:
    """Steps per second, and how many times as long as ours."""
    arms = [measurement.arm for measurement in results[0].measurements]
    rows = []
    for result in results:
        cells = [f"{STEPS * n / result[arm].median:,.0f} ({result.ratio(arm, OURS):.2f}×)" for arm in arms]
        rows.append([result.job, *cells])
    return markdown_table(["steps per second", *arms], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--dry", action="store_true", help="print, write no result")
    options = parser.parse_args()
    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    results = [run_job(name, options.envs, options.rounds) for name in NAMES]
    note = (
        "Environment steps per second at the median; in brackets how many times as long as mileage on one thread "
        "takes in the same rounds, so that more is slower. All arms ended with the same observations, to the bit."
    )
    tables = [note, table(results, options.envs)]
    print(*tables, sep="\n\n")
    if not options.dry:
        data = [result.record() for result in results]
        print(*Report("mujoco_step", "Stepping MuJoCo environments", tables, data).write(), sep="\n")


if __name__ == "__main__":
    main()
