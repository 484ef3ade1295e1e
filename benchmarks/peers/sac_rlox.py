"""rlox SAC on Pendulum-v1 at matched settings."""

from __future__ import annotations

from typing import Any

from _arm import Arm
from _off_policy_arm import SAC_MATCHED, WARM_UP, PendulumPanel, Speed, print_matched

arm = Arm.from_command_line("rlox")

import torch  # noqa: E402
from rlox import Callback  # noqa: E402
from rlox.algorithms.sac import SAC  # noqa: E402

torch.set_num_threads(arm.threads)
arm.mark("import")


class Steps(Callback):
    """Counts steps."""

    def __init__(self, speed: Speed) -> None:
        super().__init__()
        self.speed, self.steps = speed, 0

    def on_step(self, **_: Any) -> bool:
        self.steps += 1
        self.speed.step(self.steps)
        return True


# Its `seed` reaches neither networks nor environment.
torch.manual_seed(arm.seed)
speed = Speed(SAC_MATCHED["learning_starts"] + WARM_UP)
agent = SAC("Pendulum-v1", hidden=256, **SAC_MATCHED, callbacks=[Steps(speed)])
arm.mark("init")
agent.train(arm.steps)


def act(observations: Any) -> Any:
    with torch.no_grad():
        return agent.actor.deterministic(torch.from_numpy(observations)).numpy() * agent.act_high


print_matched(arm, speed, arm.steps, lambda: PendulumPanel().mean_return(act))
