"""Stable-Baselines3 PPO on CartPole-v1: at matched settings, or to the target at the settings of its zoo."""

from __future__ import annotations

from typing import Any

from _arm import ENV, MATCHED, TARGET_STEPS, Arm, Panel, TargetWatch

arm = Arm.from_command_line("stable-baselines3")

import torch  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402

torch.set_num_threads(arm.threads)
arm.mark("import")


def actor(model: Any) -> Any:
    """Greedy actions without the checks of `predict`."""
    policy = model.policy

    def act(observations: Any) -> Any:
        with torch.no_grad():
            features = policy.mlp_extractor.forward_actor(torch.from_numpy(observations))
            return policy.action_net(features).argmax(1).numpy()

    return act


class Watch(BaseCallback):
    """Evaluates after the update of every fourth rollout of 8 × 32 = 256 steps."""

    def __init__(self, watch: TargetWatch) -> None:
        super().__init__()
        self.watch, self.done = watch, False

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and self.num_timesteps % 1024 == 0:
            self.done = self.watch.look(self.num_timesteps, actor(self.model))

    def _on_step(self) -> bool:
        return not self.done


def matched() -> None:
    settings = {name: value for name, value in MATCHED.items() if name not in ("n_envs", "clip")}
    envs = make_vec_env(ENV, n_envs=int(MATCHED["n_envs"]), seed=arm.seed)
    net_arch = {"pi": [64, 64], "vf": [64, 64]}
    model = PPO(
        "MlpPolicy",
        envs,
        clip_range=MATCHED["clip"],
        **settings,
        policy_kwargs={"net_arch": net_arch, "activation_fn": torch.nn.Tanh},
        seed=arm.seed,
        device="cpu",
    )
    panel = Panel()
    arm.mark("init")
    model.learn(arm.steps)
    arm.mark("train")
    mean = panel.mean_return(actor(model))
    arm.mark("eval")
    arm.print_matched(model.num_timesteps, mean)


def target() -> None:
    envs = make_vec_env(ENV, n_envs=8, seed=arm.seed)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        seed=arm.seed,
        device="cpu",
    )
    watch = TargetWatch(arm, Panel())
    arm.mark("init")
    model.learn(TARGET_STEPS, callback=Watch(watch))
    arm.print_target(watch)


{"matched": matched, "target": target}[arm.mode]()
