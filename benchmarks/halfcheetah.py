"""What both arms of `ppo_halfcheetah.py` share: settings, the held-out panel, the target and the price."""

from __future__ import annotations

from typing import Any

from mileage.ledger import Panel

ENV = "HalfCheetah-v5"
TOTAL_STEPS = 1_000_000
EVAL_EVERY = 100_000
EPISODES = 20
TARGET = "mean_return>=1000"
# Nothing is billed. With one price for both arms dollars are seconds, and their installed packages may differ.
PRICE = 0.10
SETTINGS: dict[str, Any] = {
    "n_envs": 8,
    "n_steps": 256,
    "epochs": 10,
    "minibatch": 256,
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy_coef": 0.0,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "hidden": (64, 64),
    "activation": "tanh",
    "log_std_init": 0.0,
    "normalise_observations": True,
    "normalise_rewards": True,
}
ROLLOUT = SETTINGS["n_envs"] * SETTINGS["n_steps"]


def panel() -> Panel:
    """Twenty episodes of 1,000 steps, greedy."""
    return Panel.default(ENV, EPISODES, env_version="5", success="return>=1000")
