"""rlox to the target at its defaults: `--algorithm ppo` on CartPole-v1 by its `Trainer`, `sac` on Pendulum-v1."""

from __future__ import annotations

from typing import Any

from _sitting import exam, options

wanted = options("algorithm")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from rlox import Callback, Trainer  # noqa: E402
from rlox.algorithms.sac import SAC  # noqa: E402

torch.set_num_threads(wanted.threads)
torch.manual_seed(wanted.seed)  # its own `seed` does not reach torch
np.random.seed(wanted.seed)
sitting = exam("rlox", wanted.threads, "rlox", "torch", "gymnasium")
# Steps of one call of the callback, between exams, and in all.
SIZES = {"ppo": (1024, 1024, 100_000), "sac": (1, 500, 20_000)}
each, every, horizon = SIZES[wanted.algorithm]


class Watch(Callback):  # type: ignore[misc]
    """Asks for an exam every so many steps."""

    steps = 0

    def on_step(self, **arguments: Any) -> bool:
        self.steps += each
        return self.steps % every != 0 or not sitting.look(self.steps, act(arguments.get("algo")))


def act(algorithm: Any) -> Any:
    def chosen(rows: list[list[float]]) -> Any:
        observations = np.asarray(rows, np.float32)
        with torch.no_grad():
            if wanted.algorithm == "ppo":
                return algorithm.predict(observations, deterministic=True).numpy()
            return agent.actor.deterministic(torch.from_numpy(observations)).numpy() * agent.act_high

    return chosen


if wanted.algorithm == "ppo":
    Trainer("ppo", env="CartPole-v1", seed=wanted.seed, callbacks=[Watch()]).train(total_timesteps=horizon)
else:
    agent = SAC("Pendulum-v1", callbacks=[Watch()])
    agent.train(horizon)
