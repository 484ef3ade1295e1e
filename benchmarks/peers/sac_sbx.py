"""sbx (Stable-Baselines3 on JAX) SAC on Pendulum-v1 at matched settings; its compilation does not count."""

from __future__ import annotations

import os
from typing import Any

from _arm import Arm
from _off_policy_arm import SAC_MATCHED, WARM_UP, PendulumPanel, Speed, print_matched

arm = Arm.from_command_line("sbx")
if arm.threads == 1:
    # XLA takes its threads from the cores it may use.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np  # noqa: E402
from sbx import SAC  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402

arm.mark("import")


class Steps(BaseCallback):
    """Hands every step to a function."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.look = look

    def _on_step(self) -> bool:
        self.look(self.num_timesteps)
        return True


model = SAC("MlpPolicy", "Pendulum-v1", **SAC_MATCHED, seed=arm.seed, policy_kwargs={"net_arch": [256, 256]})
speed = Speed(SAC_MATCHED["learning_starts"] + WARM_UP)
arm.mark("init")
model.learn(arm.steps, callback=Steps(speed.step))


def act(observations: Any) -> Any:
    return np.asarray(model.predict(observations, deterministic=True)[0])


print_matched(arm, speed, model.num_timesteps, lambda: PendulumPanel().mean_return(act))
