"""An arm of `revisions.py`: one training through the public interface alone, in a process of its own.

It trains a slice for every line it reads and answers with what the slice took, so that the arms of two revisions can
take turns every few tenths of a second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

PPO = {"n_envs": 8, "n_steps": 128, "epochs": 4, "minibatch": 256, "learning_rate": 2.5e-4, "hidden": (64, 64)}
SAC = {"learning_rate": 3e-4, "batch": 256, "learning_starts": 500, "hidden": (256, 256), "capacity": 100_000}
DQN = {
    "learning_rate": 2.3e-3, "batch": 64, "capacity": 100_000, "learning_starts": 1000, "target_every": 128,
    "train_every": 256, "gradient_steps": 128, "exploration": 0.16, "epsilon_end": 0.04, "hidden": (64, 64),
}  # fmt: skip
LEARNING: dict[str, tuple[str, str, int, dict[str, Any]]] = {  # the number is the steps of a slice
    "PPO CartPole, matched": ("PPO", "CartPole-v1", 81_920, PPO),
    "PPO CartPole, 64 environments, minibatch 2048": (
        "PPO", "CartPole-v1", 131_072, PPO | {"n_envs": 64, "minibatch": 2048}),
    "SAC Pendulum, 256x256": ("SAC", "Pendulum-v1", 48, SAC),
    "SAC Pendulum, 64x64, batch 100": ("SAC", "Pendulum-v1", 500, SAC | {"hidden": (64, 64), "batch": 100}),
    "TD3 Pendulum, 64x64, batch 100": ("TD3", "Pendulum-v1", 600, SAC | {"hidden": (64, 64), "batch": 100}),
    "DQN CartPole, zoo": ("DQN", "CartPole-v1", 10_240, DQN),
    "DQN CartPole, an update a step, 32x32": (
        "DQN", "CartPole-v1", 3_000,
        {"hidden": (32, 32), "batch": 32, "capacity": 10_000, "learning_starts": 500, "train_every": 1}),
    "DQN CartPole, an update a step, 64x64": (
        "DQN", "CartPole-v1", 2_000,
        {"hidden": (64, 64), "batch": 64, "capacity": 10_000, "learning_starts": 500, "train_every": 1}),
    "PPO Pendulum, minibatch 64": ("PPO", "Pendulum-v1", 49_152, PPO | {"minibatch": 64}),
    "A2C CartPole": ("A2C", "CartPole-v1", 40_960, {}),
    "IMPALA CartPole, lockstep": ("IMPALA", "CartPole-v1", 40_960, {"mode": "lockstep", "lag": 1}),
}  # fmt: skip


def slices(name: str, threads: int | None = None) -> Iterator[dict[str, float]]:
    """Wall-clock and CPU of one slice of training after the other, without start and exam, and its learning phase."""
    import mileage

    algorithm, env, steps, config = LEARNING[name]
    with getattr(mileage, algorithm)(env, seed=0, preset="none", threads=threads, **config) as agent:
        agent.prepare()
        agent.learn(max(2048, 2 * steps), eval_every=10**9)
        while True:
            cpu = time.process_time()
            run = agent.learn(steps, eval_every=10**9)
            cpu = time.process_time() - cpu
            phases = run.phases
            wall = run.wall_seconds - sum(phases.get(each, 0.0) for each in ("init", "compile", "eval"))
            yield {"wall": wall, "cpu": cpu, "learn": phases.get("learn", 0.0)}


if __name__ == "__main__":
    trained = slices(sys.argv[1], *map(int, sys.argv[2:]))
    for _ in sys.stdin:
        print(json.dumps(next(trained)), flush=True)
