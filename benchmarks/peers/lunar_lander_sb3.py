"""Stable-Baselines3's PPO on LunarLander-v3 with its own defaults: steps and seconds of `learn`, as a line of JSON."""

from __future__ import annotations

import argparse
import json
import time


def main() -> None:
    import stable_baselines3
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = stable_baselines3.PPO("MlpPolicy", "LunarLander-v3", seed=options.seed, device="cpu")
    started, cpu = time.perf_counter(), time.process_time()
    model.learn(options.steps)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    name = f"Stable-Baselines3 {stable_baselines3.__version__}"
    print(json.dumps({"name": name, "steps": model.num_timesteps, "seconds": seconds, "cpu_seconds": cpu}))


if __name__ == "__main__":
    main()
