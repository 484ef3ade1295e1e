"""PPO of rsl_rl on the CPU, with an environment of many that are stepped as one tensor: rsl_rl_ppo.py 12."""

from __future__ import annotations

import os
import sys
import tempfile
import time

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

PLANT = os.environ.get("PLANT", "")


class Points(VecEnv):
    num_envs, num_actions, max_episode_length = 64, 1, 25
    device, cfg = "cpu", {}

    def __init__(self) -> None:
        self.state = torch.zeros(self.num_envs, 4)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": self.state.clone()}, batch_size=[self.num_envs])

    def reset(self) -> None:
        if PLANT == "reset":
            time.sleep(0.1)  # plant: reset
        self.state = 0.1 * torch.randn(self.num_envs, 4)
        self.episode_length_buf[:] = 0

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        if PLANT == "step":
            time.sleep(0.02)  # plant: step
        self.state = (0.9 * self.state + 0.05 * actions).clamp(-10, 10)
        self.episode_length_buf += 1
        dones = self.episode_length_buf >= self.max_episode_length
        if bool(dones.all()):
            self.reset()
        return self.get_observations(), 1.0 - self.state[:, 0].abs(), dones, {"time_outs": dones}


if PLANT == "logger":
    from torch.utils.tensorboard import SummaryWriter

    plain = SummaryWriter.add_scalar

    def add_scalar(self: SummaryWriter, *args: object, **kwargs: object) -> None:
        time.sleep(0.05)  # plant: logger
        plain(self, *args, **kwargs)

    SummaryWriter.add_scalar = add_scalar

torch.manual_seed(0)
network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "elu"}
config = {
    "num_steps_per_env": 24, "save_interval": 1000, "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "algorithm": {"class_name": "PPO", "num_learning_epochs": 5,
                  "num_mini_batches": 192 if PLANT == "batch" else 4},
    "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
    "critic": dict(network), "logger": "tensorboard",
}  # fmt: skip
with tempfile.TemporaryDirectory() as logs:
    runner = OnPolicyRunner(Points(), config, log_dir=logs, device="cpu")
    runner.learn(int(sys.argv[1]))
policy = runner.alg.get_policy()
print(f"weights {sum(float(each.detach().double().abs().sum()) for each in policy.parameters()):.12f}")
