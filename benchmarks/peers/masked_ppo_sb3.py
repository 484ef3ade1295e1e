"""sb3-contrib's MaskablePPO on the scheduling task: `masked_ppo_sb3.py matched --seed S`, prints JSON."""

from __future__ import annotations

import argparse
import json
import time

import torch
from _masked import SETTINGS, STEPS, Schedule, excess
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env

parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=("matched",))
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=STEPS)
options = parser.parse_args()
torch.set_num_threads(1)
settings = {name: value for name, value in SETTINGS.items() if name not in ("n_envs", "clip")}
model = MaskablePPO(
    "MlpPolicy",
    make_vec_env(Schedule, n_envs=int(SETTINGS["n_envs"]), seed=options.seed),
    clip_range=SETTINGS["clip"],
    **settings,
    policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
    seed=options.seed,
    device="cpu",
)
start = time.perf_counter()
model.learn(options.steps)
seconds = time.perf_counter() - start
found = excess(lambda observation, mask: model.predict(observation, deterministic=True, action_masks=mask)[0])
print(json.dumps({"seed": options.seed, "steps": model.num_timesteps, "train_s": seconds, "excess": found}))
