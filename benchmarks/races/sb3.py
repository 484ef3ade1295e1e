"""Stable-Baselines3, or sbx (the same on JAX), to the target: `sb3.py --library sb3|sbx --algorithm ppo|sac …`.

Settings are those of the authors' RL Zoo for the task; on HalfCheetah-v5 those of `halfcheetah.toml`.
"""

from __future__ import annotations

from typing import Any

from _sitting import exam, options

wanted = options("library", "algorithm", "env")
import numpy as np  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(wanted.threads)
if wanted.library == "sbx":
    from sbx import PPO, SAC  # type: ignore[import-not-found]
else:
    from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402

NAMES = {"sb3": ("stable-baselines3", "torch", "gymnasium"), "sbx": ("sbx-rl", "jax", "stable-baselines3", "gymnasium")}
# Steps after which an arm gives up, and between two exams.
STEPS = {"CartPole-v1": (100_000, 1024), "Pendulum-v1": (20_000, 500), "HalfCheetah-v5": (3_000_000, 102_400)}


class Watch(BaseCallback):  # type: ignore[misc]
    """Asks for an exam between updates, once so many steps have passed since the last."""

    def __init__(self, sitting: Any, every: int) -> None:
        super().__init__()
        self.sitting, self.every, self.next, self.done = sitting, every, every, False

    def act(self, rows: list[list[float]]) -> Any:
        observations = np.asarray(rows, np.float32)
        statistics = self.model.get_vec_normalize_env()
        if statistics is not None:
            observations = statistics.normalize_obs(observations)
        return np.asarray(self.model.predict(observations, deterministic=True)[0])

    def look(self) -> None:
        if self.num_timesteps >= self.next:
            self.next = self.num_timesteps // self.every * self.every + self.every
            self.done = self.sitting.look(self.num_timesteps, self.act)

    def _on_rollout_start(self) -> None:
        self.look()

    def _on_training_end(self) -> None:
        if not self.done:
            self.next = 0
            self.look()

    def _on_step(self) -> bool:
        return not self.done


def made() -> Any:
    if wanted.env == "CartPole-v1":
        return PPO(
            "MlpPolicy", make_vec_env(wanted.env, n_envs=8, seed=wanted.seed), n_steps=32, batch_size=256,
            gae_lambda=0.8, gamma=0.98, n_epochs=20, ent_coef=0.0, learning_rate=lambda left: left * 1e-3,
            clip_range=(lambda left: left * 0.2) if wanted.library == "sb3" else 0.2, seed=wanted.seed, device="cpu",
        )  # fmt: skip
    if wanted.env == "Pendulum-v1":
        return SAC("MlpPolicy", wanted.env, learning_rate=1e-3, seed=wanted.seed, device="cpu")
    envs = VecNormalize(
        make_vec_env(wanted.env, n_envs=8, seed=wanted.seed), gamma=0.99, clip_obs=10.0, clip_reward=10.0
    )
    return PPO(
        "MlpPolicy", envs, n_steps=256, n_epochs=10, batch_size=256, learning_rate=3e-4, gamma=0.99, gae_lambda=0.95,
        clip_range=0.2, ent_coef=0.0, vf_coef=0.5, max_grad_norm=0.5, seed=wanted.seed, device="cpu",
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
    )  # fmt: skip


sitting = exam("Stable-Baselines3" if wanted.library == "sb3" else "sbx", wanted.threads, *NAMES[wanted.library])
horizon, every = STEPS[wanted.env]
made().learn(horizon, callback=Watch(sitting, every))
