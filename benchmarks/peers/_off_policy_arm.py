"""What the arms of the SAC and DQN benchmarks share: settings, held-out exams and the JSON they print.

An arm is a program: `arm.py matched|target --seed S`. Speed is counted from the step `WARM_UP` steps after learning
has started, so that compilation and random steps at the start count for nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from _arm import EPISODES, HELD_OUT_SEED, Arm, since_process_start

PENDULUM_STEPS = 200
WARM_UP = 100
SAC_MATCHED = {"learning_rate": 3e-4, "batch_size": 256, "tau": 0.005, "gamma": 0.99, "learning_starts": 1000}
# SB3's zoo trains CartPole with these; the two of the schedule are shares of 50,000 steps.
DQN_ZOO = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}


@dataclass
class Speed:
    """Steps per second from a given step on."""

    first: int
    started: float | None = None

    def step(self, steps: int) -> None:
        """Called after every step with the number of steps so far."""
        if self.started is None and steps >= self.first:
            self.started, self.first = time.perf_counter(), steps

    def of(self, steps: int) -> tuple[float, float]:
        """Seconds since the first step that counts, and steps per second."""
        assert self.started is not None, "too few steps to measure"
        seconds = time.perf_counter() - self.started
        return seconds, (steps - self.first) / seconds


class PendulumPanel:
    """100 held-out episodes of Pendulum-v1 at once, as array code: Gymnasium has no vectorised one."""

    def mean_return(self, act: Callable[[Any], Any]) -> float:
        """Mean return of `act`, which maps observations (100, 3) to torques (100, 1)."""
        import numpy as np

        rng = np.random.default_rng(HELD_OUT_SEED)
        angle = rng.uniform(-np.pi, np.pi, EPISODES)
        speed = rng.uniform(-1.0, 1.0, EPISODES)
        total = np.zeros(EPISODES)
        for _ in range(PENDULUM_STEPS):
            obs = np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)
            torque = np.clip(np.asarray(act(obs)).reshape(EPISODES), -2.0, 2.0)
            upright = (angle + np.pi) % (2.0 * np.pi) - np.pi
            total -= upright**2 + 0.1 * speed**2 + 0.001 * torque**2
            speed = np.clip(speed + (15.0 * np.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
            angle = angle + speed * 0.05
        return float(total.mean())


@dataclass
class Watch:
    """Evaluates a policy every so many steps, and remembers when it first met the target."""

    arm: Arm
    panel: Any
    target: float
    every: int
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    reached_after: float | None = None

    def look(self, steps: int, act: Callable[[Any], Any]) -> bool:
        """Evaluate if it is time; True if training may stop."""
        if steps % self.every:
            return False
        self.arm.mark("train")
        self.evaluations.append((steps, self.panel.mean_return(act)))
        self.arm.mark("eval")
        if self.reached_after is None and self.evaluations[-1][1] >= self.target:
            self.reached_after = since_process_start()
        return self.reached_after is not None

    def print(self) -> None:
        """Print the result of a run to the target."""
        self.arm.print(
            reached=self.reached_after is not None,
            wall_to_target_s=self.reached_after,
            steps=self.evaluations[-1][0],
            evaluations=self.evaluations,
        )


def print_matched(arm: Arm, speed: Speed, steps: int, mean_return: Callable[[], float], **more: Any) -> None:
    """Print the result of a run of a fixed number of steps; the exam is taken after the clock has stopped."""
    seconds, rate = speed.of(steps)
    arm.mark("train")
    held_out = mean_return()
    arm.mark("eval")
    arm.print(measured_s=seconds, steps=steps, steps_per_second=rate, held_out_mean_return=held_out, **more)
