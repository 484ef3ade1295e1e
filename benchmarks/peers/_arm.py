"""What the arms of the PPO benchmark share: their command line, their clock, their exam, and the JSON they print.

An arm is a program: `arm.py matched|target --seed S`. Its clock starts when the operating system started its process.
This file imports nothing slow, so that an arm's imports are its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENV = "CartPole-v1"
TARGET = 475.0
# Evaluation starts from a seed that training seeds do not reach.
HELD_OUT_SEED = 2**31
EPISODES, MAX_STEPS = 100, 500
# 49 rollouts of 8 × 128.
MATCHED_STEPS = 50_176
MATCHED = {
    "n_envs": 8,
    "n_steps": 128,
    "n_epochs": 4,
    "batch_size": 256,
    "learning_rate": 2.5e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
PHASES = ("import", "init", "compile", "train", "eval")
# What schedules run over, and when an arm gives up.
TARGET_STEPS = 100_000


def since_process_start() -> float:
    """Seconds since the operating system started this process."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


@dataclass
class Arm:
    """Options and clock of one arm."""

    library: str
    mode: str
    seed: int
    threads: int
    steps: int
    marks: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    @classmethod
    def from_command_line(cls, library: str) -> Arm:
        parser = argparse.ArgumentParser()
        parser.add_argument("mode", choices=("matched", "target"))
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--threads", type=int, default=1)
        parser.add_argument("--steps", type=int, default=MATCHED_STEPS, help="of a matched run")
        options = parser.parse_args()
        # Before anything is imported that makes threads.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(options.threads)
        return cls(library, options.mode, options.seed, options.threads, options.steps)

    def mark(self, phase: str) -> None:
        """Book the time since the last mark (or process start) to `phase`."""
        now = since_process_start()
        self.marks[phase] = self.marks.get(phase, 0.0) + now - self._last
        self._last = now

    def print(self, **results: Any) -> None:
        """Print the result and leave."""
        phases = {f"{phase}_s": round(self.marks.get(phase, 0.0), 4) for phase in PHASES}
        head = {"library": self.library, "mode": self.mode, "seed": self.seed, "threads": self.threads}
        print(json.dumps(head | phases | results))
        sys.stdout.flush()

    def print_matched(self, steps: int, held_out_mean_return: float) -> None:
        """Print the result of a run of a fixed number of steps."""
        self.print(steps=steps, steps_per_second=steps / self.marks["train"], held_out_mean_return=held_out_mean_return)

    def print_target(self, watch: TargetWatch) -> None:
        """Print the result of a run to the target."""
        self.print(
            reached=watch.reached_after is not None,
            wall_to_target_s=watch.reached_after,
            steps=watch.evaluations[-1][0],
            evaluations=watch.evaluations,
        )


@dataclass
class TargetWatch:
    """Evaluates a policy while it trains, and remembers when it first met the target."""

    arm: Arm
    panel: Panel
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    reached_after: float | None = None

    def look(self, steps: int, act: Callable[[Any], Any]) -> bool:
        """Evaluate after `steps`; True if training may stop."""
        self.arm.mark("train")
        self.evaluations.append((steps, self.panel.mean_return(act)))
        self.arm.mark("eval")
        if self.reached_after is None and self.evaluations[-1][1] >= TARGET:
            self.reached_after = since_process_start()
        return self.reached_after is not None


class Panel:
    """100 held-out episodes at once, in Gymnasium's own vectorised CartPole: the fastest way for arms without one."""

    def __init__(self) -> None:
        import gymnasium

        self._envs = gymnasium.make_vec(ENV, num_envs=EPISODES, vectorization_mode="vector_entry_point")

    def mean_return(self, act: Callable[[Any], Any]) -> float:
        """Mean return of `act`, which maps observations (100, 4) to actions (100,)."""
        import numpy as np

        observations, _ = self._envs.reset(seed=HELD_OUT_SEED)
        returns = np.zeros(EPISODES)
        alive = np.ones(EPISODES, bool)
        for _ in range(MAX_STEPS):
            observations, rewards, terminated, truncated, _ = self._envs.step(np.asarray(act(observations)))
            returns[alive] += rewards[alive]
            alive &= ~(terminated | truncated)
            if not alive.any():
                break
        return float(returns.mean())
