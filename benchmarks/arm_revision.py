"""An arm of `revisions.py`: one training through the public interface alone, in a process of its own."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

PPO = {"n_envs": 8, "n_steps": 128, "epochs": 4, "minibatch": 256, "learning_rate": 2.5e-4, "hidden": (64, 64)}
SAC = {"learning_rate": 3e-4, "batch": 256, "learning_starts": 500, "hidden": (256, 256), "capacity": 100_000}
DQN = {
    "learning_rate": 2.3e-3, "batch": 64, "capacity": 100_000, "learning_starts": 1000, "target_every": 128,
    "train_every": 256, "gradient_steps": 128, "exploration": 0.16, "epsilon_end": 0.04, "hidden": (64, 64),
}  # fmt: skip
LEARNING: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "PPO CartPole, matched": ("PPO", "CartPole-v1", 307_200, PPO),
    "PPO CartPole, 64 environments, minibatch 2048": (
        "PPO", "CartPole-v1", 655_360, PPO | {"n_envs": 64, "minibatch": 2048}),
    "SAC Pendulum, 256x256": ("SAC", "Pendulum-v1", 1_500, SAC),
    "SAC Pendulum, 64x64, batch 100": ("SAC", "Pendulum-v1", 6_000, SAC | {"hidden": (64, 64), "batch": 100}),
    "TD3 Pendulum, 64x64, batch 100": ("TD3", "Pendulum-v1", 6_000, SAC | {"hidden": (64, 64), "batch": 100}),
    "DQN CartPole, zoo": ("DQN", "CartPole-v1", 50_000, DQN),
    "DQN CartPole, an update a step, 32x32": (
        "DQN", "CartPole-v1", 20_000,
        {"hidden": (32, 32), "batch": 32, "capacity": 10_000, "learning_starts": 500, "train_every": 1}),
    "A2C CartPole": ("A2C", "CartPole-v1", 102_400, {}),
    "IMPALA CartPole, lockstep": ("IMPALA", "CartPole-v1", 102_400, {"mode": "lockstep", "lag": 1}),
}  # fmt: skip


def learning(name: str) -> dict[str, float]:
    """Wall-clock and CPU of one training without start and exam, and its learning phase."""
    import mileage

    algorithm, env, steps, config = LEARNING[name]
    with getattr(mileage, algorithm)(env, seed=0, preset="none", **config) as agent:
        agent.prepare()
        agent.learn(max(2048, steps // 20), eval_every=10**9)
        cpu = time.process_time()
        run = agent.learn(steps, eval_every=10**9)
        cpu = time.process_time() - cpu
    phases = run.phases
    wall = run.wall_seconds - sum(phases.get(each, 0.0) for each in ("init", "compile", "eval"))
    return {"wall": wall, "cpu": cpu, "learn": phases.get("learn", 0.0)}


if __name__ == "__main__":
    print(json.dumps(learning(sys.argv[1])))
