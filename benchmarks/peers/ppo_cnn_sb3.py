"""Stable-Baselines3's arm of `torch_cnn.py`: PPO with `CnnPolicy` on a pixel environment; prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from pixel_cartpole import SETTINGS, PixelCartPole


class FirstRollout(BaseCallback):
    """Notes when the first rollout is over and learnt from, so that warming up is not measured."""

    started = 0.0
    steps = 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and not self.started:
            self.started, self.steps = time.perf_counter(), self.num_timesteps

    def _on_step(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = PPO(
        "CnnPolicy",
        make_vec_env(PixelCartPole, n_envs=SETTINGS["n_envs"], seed=options.seed),
        n_steps=SETTINGS["n_steps"],
        n_epochs=SETTINGS["epochs"],
        batch_size=SETTINGS["minibatch"],
        learning_rate=SETTINGS["learning_rate"],
        ent_coef=SETTINGS["entropy_coef"],
        seed=options.seed,
        device="cpu",
    )
    parameters = sum(each.numel() for each in set(model.policy.parameters()))
    watch = FirstRollout()
    model.learn(options.steps, callback=watch)
    seconds = time.perf_counter() - watch.started
    steps = model.num_timesteps - watch.steps
    print(json.dumps({"steps_per_second": steps / seconds, "seconds": seconds, "parameters": parameters}))


if __name__ == "__main__":
    main()
