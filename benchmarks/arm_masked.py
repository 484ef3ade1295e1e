"""Mileage's PPO with masks on the scheduling task: `arm_masked.py matched --seed S`, prints JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import mileage
from mileage.envs import GymnasiumEnv

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from _masked import SETTINGS, STEPS, Schedule, excess

parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=("matched",))
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=STEPS)
parser.add_argument("--backend", default="native")
options = parser.parse_args()
names = {"n_epochs": "epochs", "batch_size": "minibatch", "ent_coef": "entropy_coef", "vf_coef": "value_coef"}
agent = mileage.PPO(
    GymnasiumEnv("Schedule", make=Schedule),
    seed=options.seed,
    preset="none",
    threads=1,
    backend=options.backend,
    hidden=(64, 64),
    **{names.get(name, name): value for name, value in SETTINGS.items()},
)
agent.prepare()
start = time.perf_counter()
agent.learn(options.steps, eval_every=10**9, panel=agent.default_panel(episodes=1))
seconds = time.perf_counter() - start
found = excess(lambda observation, mask: agent.predict(observation, action_masks=mask)[0])
print(json.dumps({"seed": options.seed, "steps": agent.steps, "train_s": seconds, "excess": found}))
