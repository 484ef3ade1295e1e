"""Stable-Baselines3 DQN on CartPole-v1 at the settings of its zoo: updates per second, or time to the target.

`--width` replaces its zoo's networks (256 × 256), 64 being the library's own default. With `--evaluate-every`, a
matched run is evaluated on the way too, after the updates that follow so many steps.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from _arm import Arm, Panel
from _off_policy_arm import DQN_ZOO, Watch


def take_option(name: str, default: int) -> int:
    """Remove an option of this arm alone from the command line, and return its value."""
    if name not in sys.argv:
        return default
    at = sys.argv.index(name)
    value = int(sys.argv[at + 1])
    del sys.argv[at : at + 2]
    return value


WIDTH = take_option("--width", 256)
EVALUATE_EVERY = take_option("--evaluate-every", 0)
arm = Arm.from_command_line("stable-baselines3")

import torch  # noqa: E402
from stable_baselines3 import DQN  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402

torch.set_num_threads(arm.threads)
arm.mark("import")


class Timed(DQN):
    """Adds up the time in `train`, and evaluates after it if asked to."""

    learn_s = 0.0
    evaluations: tuple[tuple[int, float], ...] = ()

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        start = time.perf_counter()
        super().train(gradient_steps, batch_size)
        self.learn_s += time.perf_counter() - start
        if EVALUATE_EVERY and self.num_timesteps // EVALUATE_EVERY > len(self.evaluations):
            self.evaluations += ((self.num_timesteps, panel.mean_return(actor(self))),)


def actor(model: Any) -> Any:
    """Greedy actions without the checks of `predict`."""

    def act(observations: Any) -> Any:
        with torch.no_grad():
            return model.q_net(torch.from_numpy(observations)).argmax(1).numpy()

    return act


class Steps(BaseCallback):
    """Hands every step to a function; True stops training."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.look = look

    def _on_step(self) -> bool:
        return self.look(self.num_timesteps) is not True


model = Timed(
    "MlpPolicy", "CartPole-v1", **DQN_ZOO, policy_kwargs={"net_arch": [WIDTH, WIDTH]}, seed=arm.seed, device="cpu"
)
panel = Panel()
arm.mark("init")
if arm.mode == "matched":
    model.learn(arm.steps)
    arm.mark("train")
    mean = panel.mean_return(actor(model))
    arm.mark("eval")
    arm.print(
        steps=model.num_timesteps,
        steps_per_second=model.num_timesteps / arm.marks["train"],
        learn_s=model.learn_s,
        updates=model._n_updates,
        updates_per_second=model._n_updates / model.learn_s,
        held_out_mean_return=mean,
        evaluations=model.evaluations,
    )
else:
    watch = Watch(arm, panel, 475.0, 1024)
    model.learn(50_000, callback=Steps(lambda steps: watch.look(steps, actor(model))))
    watch.print()
