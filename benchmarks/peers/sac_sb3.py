"""Stable-Baselines3 SAC on Pendulum-v1: at matched settings, or to the target at the settings of its zoo."""

from __future__ import annotations

from typing import Any

from _arm import Arm
from _off_policy_arm import SAC_MATCHED, WARM_UP, PendulumPanel, Speed, Watch, print_matched

arm = Arm.from_command_line("stable-baselines3")

import torch  # noqa: E402
from stable_baselines3 import SAC  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402

torch.set_num_threads(arm.threads)
arm.mark("import")


def actor(model: Any) -> Any:
    """Greedy actions without the checks of `predict`."""

    def act(observations: Any) -> Any:
        with torch.no_grad():
            squashed = model.actor(torch.from_numpy(observations), deterministic=True).numpy()
            return model.policy.unscale_action(squashed)

    return act


class Steps(BaseCallback):
    """Hands every step to a function; False stops training."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.look = look

    def _on_step(self) -> bool:
        return self.look(self.num_timesteps) is not True


def matched() -> None:
    model = SAC("MlpPolicy", "Pendulum-v1", **SAC_MATCHED, seed=arm.seed, device="cpu")
    speed = Speed(SAC_MATCHED["learning_starts"] + WARM_UP)
    arm.mark("init")
    model.learn(arm.steps, callback=Steps(speed.step))
    print_matched(arm, speed, model.num_timesteps, lambda: PendulumPanel().mean_return(actor(model)))


def target() -> None:
    model = SAC("MlpPolicy", "Pendulum-v1", learning_rate=1e-3, seed=arm.seed, device="cpu")
    watch = Watch(arm, PendulumPanel(), -200.0, 500)
    arm.mark("init")
    model.learn(20_000, callback=Steps(lambda steps: watch.look(steps, actor(model))))
    watch.print()


{"matched": matched, "target": target}[arm.mode]()
