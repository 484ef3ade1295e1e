"""What the arms of the benchmark of masks share: the task, the settings and the exam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

JOBS = 8
STEPS = 61_440
EPISODES = 500
HELD_OUT_SEED = 2**31
SETTINGS = {
    "n_envs": 8,
    "n_steps": 128,
    "n_epochs": 4,
    "batch_size": 256,
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}


class Schedule(gymnasium.Env[Any, Any]):
    """One machine, eight jobs with weights and durations; each step does a job that is not done yet.

    Every job costs its weight times the time at which it is done. The best order is known (Smith, 1956): by weight per
    duration, largest first.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3 * JOBS,))
    action_space = gymnasium.spaces.Discrete(JOBS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.weights, self.durations = self.np_random.uniform(0.1, 1.0, (2, JOBS))
        self.done, self.time = np.zeros(JOBS, bool), 0.0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.done[action]:
            raise ValueError(f"job {action} is done")
        self.time += self.durations[action]
        self.done[action] = True
        return self._shown(), -float(self.weights[action] * self.time), bool(self.done.all()), False, {}

    def action_masks(self) -> Any:
        """True for jobs that are not done."""
        return np.ones(JOBS, bool) if self.done.all() else ~self.done

    def best(self) -> float:
        """Return of the best order."""
        order = np.argsort(-self.weights / self.durations)
        return -float((self.weights[order] * np.cumsum(self.durations[order])).sum())

    def _shown(self) -> Any:
        return np.concatenate([self.weights, self.durations, self.done]).astype(np.float32)


def excess(act: Callable[[Any, Any], Any]) -> float:
    """Cost above that of the best orders, as a share of it, over held-out episodes of `act(observation, mask)`."""
    env, cost, least = Schedule(), 0.0, 0.0
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=HELD_OUT_SEED + episode)
        least -= env.best()
        over = False
        while not over:
            observation, reward, over, _, _ = env.step(int(act(observation, env.action_masks())))
            cost -= reward
    return cost / least - 1.0
