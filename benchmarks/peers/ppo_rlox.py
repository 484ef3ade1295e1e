"""rlox PPO (its `Trainer`) on CartPole-v1: at matched settings, or to the target at its defaults."""

from __future__ import annotations

from typing import Any

from _arm import ENV, MATCHED, TARGET_STEPS, Arm, Panel, TargetWatch

arm = Arm.from_command_line("rlox")

import torch  # noqa: E402
from rlox import Callback, Trainer  # noqa: E402

torch.set_num_threads(arm.threads)
arm.mark("import")


def actor(trainer: Any) -> Any:
    def act(observations: Any) -> Any:
        return trainer.predict(observations, deterministic=True).numpy()

    return act


class Watch(Callback):
    """Evaluates after every rollout, which is 8 × 128 = 1,024 steps."""

    def __init__(self, watch: TargetWatch) -> None:
        super().__init__()
        self.watch, self.rollouts = watch, 0

    def on_step(self, **arguments: Any) -> bool:
        self.rollouts += 1
        return not self.watch.look(1024 * self.rollouts, actor(arguments["algo"]))


def matched() -> None:
    # Its `seed` reaches the environments only.
    torch.manual_seed(arm.seed)
    settings = {name: value for name, value in MATCHED.items() if name != "clip"}
    config = settings | {"clip_eps": MATCHED["clip"], "anneal_lr": False, "clip_vloss": False}
    trainer = Trainer("ppo", env=ENV, config=config, seed=arm.seed)
    panel = Panel()
    arm.mark("init")
    trainer.train(total_timesteps=arm.steps)
    arm.mark("train")
    mean = panel.mean_return(actor(trainer))
    arm.mark("eval")
    # It trains whole rollouts, rounding down.
    arm.print_matched(arm.steps // 1024 * 1024, mean)


def target() -> None:
    torch.manual_seed(arm.seed)
    watch = TargetWatch(arm, Panel())
    trainer = Trainer("ppo", env=ENV, seed=arm.seed, callbacks=[Watch(watch)])
    arm.mark("init")
    trainer.train(total_timesteps=TARGET_STEPS)
    arm.print_target(watch)


{"matched": matched, "target": target}[arm.mode]()
