"""Our arm of `ppo_cartpole.py`: trains PPO on CartPole-v1 in a process of its own and prints one line of JSON.

`matched` uses the settings that all arms share; `target` is the command a user types, `mileage train ppo
CartPole-v1 --target "mean_return>=475"`, ledger and checkpoint included.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()
SETTINGS: dict[str, Any] = {
    "n_envs": 8,
    "n_steps": 128,
    "epochs": 4,
    "minibatch": 256,
    "learning_rate": 2.5e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "hidden": (64, 64),
    "activation": "tanh",
}


def matched(seed: int, steps: int, threads: int | None) -> dict[str, Any]:
    """Train for a number of steps at the shared settings; evaluate once, at the end."""
    import mileage

    imported = time.perf_counter()
    agent = mileage.PPO("CartPole-v1", seed=seed, preset="none", threads=threads, **SETTINGS)
    run = agent.learn(steps, eval_every=10**12)
    phases = run.phases
    train = run.wall_seconds - sum(phases.get(name, 0.0) for name in ("init", "compile", "eval"))
    assert run.final is not None
    return {
        "import_s": imported - STARTED,
        "init_s": phases.get("init", 0.0),
        "compile_s": phases.get("compile", 0.0),
        "train_s": train,
        "steps": run.steps,
        "steps_per_second": run.steps / train,
        "held_out_mean_return": run.final.mean_return,
    }


def target(seed: int, threads: int | None) -> dict[str, Any]:
    """Type the command; what it prints is the result."""
    from mileage.cli.app import app

    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        command = ["train", "ppo", "CartPole-v1", "--target", "mean_return>=475", "--seed", str(seed), "--json"]
        command += ["--out", folder, "--db", str(Path(folder) / "ledger.db")]
        command += [] if threads is None else ["--threads", str(threads)]
        app(command, standalone_mode=False)
    run = json.loads(printed.getvalue())["runs"][0]
    seconds = {name: phase["seconds"] for name, phase in run["phases"].items()}
    return {
        "import_s": 0.0,
        "init_s": seconds.get("init", 0.0),
        "compile_s": seconds.get("compile", 0.0),
        "train_s": run["wall_seconds"] - sum(seconds.get(name, 0.0) for name in ("init", "compile", "eval")),
        "eval_s": run["eval_seconds"],
        "steps": run["env_steps"],
        "reached": run["target_reached"],
        "wall_to_target_s": run["wall_to_target"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("matched", "target"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.mode == "matched":
        result = matched(options.seed, options.steps, options.threads)
    else:
        result = target(options.seed, options.threads)
    json.dump({"mode": options.mode, "seed": options.seed} | result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
