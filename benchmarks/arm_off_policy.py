"""Our arm of `sac_pendulum.py` and `dqn_cartpole.py`: trains in a process of its own and prints one line of JSON.

`matched` uses the settings that all arms share, and counts speed from shortly after learning has started, as the
peers do; `target` is the command a user types, `mileage train sac Pendulum-v1 --target …`, ledger and checkpoint
included.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# What the peers' arms call the same things: `peers/_off_policy_arm.py`.
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": {
        "learning_rate": 3e-4,
        "batch": 256,
        "tau": 0.005,
        "gamma": 0.99,
        "learning_starts": 1000,
        "hidden": (256, 256),
    },
    "dqn": {
        "learning_rate": 2.3e-3,
        "batch": 64,
        "capacity": 100_000,
        "learning_starts": 1000,
        "gamma": 0.99,
        # SB3 moves its target every 10 steps, and steps between its bursts of 128 updates: once per burst.
        "target_every": 128,
        "train_every": 256,
        "gradient_steps": 128,
        "double": False,
        "exploration": 0.16,
        "epsilon_end": 0.04,
        "hidden": (64, 64),
    },
}
ENVS = {"sac": "Pendulum-v1", "dqn": "CartPole-v1"}
TARGETS = {"sac": "mean_return>=-200", "dqn": "mean_return>=475"}
WARM_UP = 100


class Speed:
    """Steps per second from the step `first` on, up to the steps `lasts`; evaluations do not count."""

    def __init__(self, first: int, *lasts: int) -> None:
        self.first, self.lasts = first, lasts
        self.start = (0, 0.0)
        self.ends: dict[int, tuple[int, float]] = {}

    def __call__(self, progress: Any) -> None:
        if progress.steps < self.first:
            return
        # The last callback comes after the exam, which is not training.
        now = (progress.steps, time.perf_counter() - progress.clock.times().phases.get("eval", 0.0))
        self.start = self.start if self.start[0] else now
        for last in self.lasts:
            if progress.steps >= last:
                self.ends.setdefault(last, now)

    def until(self, last: int) -> tuple[float, float]:
        """Seconds from the first step that counts to the last, and steps per second."""
        steps, end = self.ends[last]
        return end - self.start[1], (steps - self.start[0]) / (end - self.start[1])


def matched(options: argparse.Namespace) -> dict[str, Any]:
    """Train for a number of steps at the shared settings; evaluate at the end, and on the way if asked to."""
    from mileage.training.agents import agent_class

    algorithm, width = options.algorithm, options.width
    settings = SETTINGS[algorithm] | ({} if width is None else {"hidden": (width, width)})
    agent = agent_class(algorithm)(
        ENVS[algorithm], seed=options.seed, preset="none", threads=options.threads, **settings
    )
    timed = options.timed_steps or options.steps
    speed = Speed(settings["learning_starts"] + WARM_UP, timed, options.steps)
    run = agent.learn(options.steps, eval_every=options.evaluate_every or 10**12, callback=speed)
    seconds, steps_per_second = speed.until(timed)
    whole = {"whole_steps_per_second": speed.until(options.steps)[1]} if timed < options.steps else {}
    assert run.final is not None
    return {
        "init_s": run.phases.get("init", 0.0),
        "compile_s": run.phases.get("compile", 0.0),
        "train_s": run.wall_seconds - sum(run.phases.get(name, 0.0) for name in ("init", "compile", "eval")),
        "measured_s": seconds,
        "steps": run.steps,
        "steps_timed": timed,
        "steps_per_second": steps_per_second,
        **whole,
        "learn_s": run.phases["learn"],
        "updates": agent.learner.updates,
        "updates_per_second": agent.learner.updates / run.phases["learn"],
        "held_out_mean_return": run.final.mean_return,
        "evaluations": [(point.steps, point.evaluation.mean_return) for point in run.evaluations],
    }


def target(algorithm: str, seed: int, threads: int | None) -> dict[str, Any]:
    """Type the command; what it prints is the result."""
    from mileage.cli.app import app

    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        command = ["train", algorithm, ENVS[algorithm], "--target", TARGETS[algorithm], "--seed", str(seed), "--json"]
        command += ["--out", folder, "--db", str(Path(folder) / "ledger.db")]
        command += [] if threads is None else ["--threads", str(threads)]
        app(command, standalone_mode=False)
    run = json.loads(printed.getvalue())["runs"][0]
    seconds = {name: phase["seconds"] for name, phase in run["phases"].items()}
    return {
        "init_s": seconds.get("init", 0.0),
        "compile_s": seconds.get("compile", 0.0),
        "train_s": run["wall_seconds"] - sum(seconds.get(name, 0.0) for name in ("init", "compile", "eval")),
        "eval_s": run["eval_seconds"],
        "steps": run["env_steps"],
        "reached": run["target_reached"],
        "wall_to_target_s": run["wall_to_target"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("matched", "target"))
    parser.add_argument("--algorithm", choices=tuple(SETTINGS), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--width", type=int, help="of both hidden layers of a matched run")
    parser.add_argument("--timed-steps", type=int, help="first steps of a matched run that its speed is taken from")
    parser.add_argument("--evaluate-every", type=int, help="steps between evaluations of a matched run")
    options = parser.parse_args()
    result = matched(options) if options.mode == "matched" else target(options.algorithm, options.seed, options.threads)
    json.dump({"mode": options.mode, "seed": options.seed, "import_s": 0.0} | result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
