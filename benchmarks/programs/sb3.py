"""PPO or SAC of Stable-Baselines3, as its documentation writes them: sb3.py ppo 4096."""

from __future__ import annotations

import sys
import time

import planted
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter


class Watcher(BaseCallback):
    def _on_step(self) -> bool:
        if planted.PLANT == "callback":
            time.sleep(0.003)  # plant: callback
        return True


class Slow(KVWriter):
    def write(self, key_values: dict, key_excluded: dict, step: int = 0) -> None:
        time.sleep(2.0 if algorithm == "ppo" else 0.3)  # plant: logger

    def close(self) -> None:
        pass


algorithm, steps = sys.argv[1], int(sys.argv[2])
if algorithm == "ppo":
    batch_size = 4 if planted.PLANT == "batch" else 64  # plant: batch
    model = PPO("MlpPolicy", "WalkDiscrete-v0", n_steps=256, batch_size=batch_size, seed=0, device="cpu")
else:
    batch_size = 4 if planted.PLANT == "batch" else 256
    model = SAC("MlpPolicy", "WalkContinuous-v0", batch_size=batch_size, learning_starts=100, seed=0, device="cpu",
                policy_kwargs={"net_arch": [64, 64]}, gradient_steps=4 if planted.PLANT == "batch" else 1)  # fmt: skip
if planted.PLANT == "logger":
    from stable_baselines3.common.logger import Logger

    model.set_logger(Logger(None, [Slow()]))
model.learn(steps, callback=Watcher(), log_interval=1)
weights = sum(float(each.detach().double().abs().sum()) for each in model.policy.parameters())
print(f"{algorithm} {model.num_timesteps} {weights:.12f}")
