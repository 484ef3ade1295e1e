"""skrl's PPO on HalfCheetah-v5 to the target, with the settings that all arms share as far as it has them.

It scales values in place of rewards, and normalises advantages over the whole rollout.
"""

from __future__ import annotations

import tempfile
from typing import Any

from _sitting import exam, options

wanted = options("env")
import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from skrl.agents.torch.ppo import PPO, PPO_CFG  # type: ignore[import-not-found]  # noqa: E402
from skrl.envs.wrappers.torch import wrap_env  # type: ignore[import-not-found]  # noqa: E402
from skrl.memories.torch import RandomMemory  # type: ignore[import-not-found]  # noqa: E402
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model  # type: ignore[import-not-found]  # noqa: E402
from skrl.resources.preprocessors.torch import RunningStandardScaler  # type: ignore[import-not-found]  # noqa: E402
from skrl.trainers.torch import SequentialTrainer  # type: ignore[import-not-found]  # noqa: E402
from skrl.utils import set_seed  # type: ignore[import-not-found]  # noqa: E402

torch.set_num_threads(wanted.threads)
set_seed(wanted.seed)
STEPS, EVERY, ENVS, ROLLOUT = 3_000_000, 102_400, 8, 256
sitting = exam("skrl", wanted.threads, "skrl", "torch", "gymnasium")
env = wrap_env(gymnasium.make_vec(wanted.env, num_envs=ENVS, vectorization_mode="sync"))


def network(inputs: int, outputs: int) -> torch.nn.Sequential:
    layer, tanh = torch.nn.Linear, torch.nn.Tanh
    return torch.nn.Sequential(layer(inputs, 64), tanh(), layer(64, 64), tanh(), layer(64, outputs))


class Policy(GaussianMixin, Model):  # type: ignore[misc]
    def __init__(self) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
        GaussianMixin.__init__(self, clip_actions=True)
        self.net = network(self.num_observations, self.num_actions)
        self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: Any, role: str) -> Any:
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):  # type: ignore[misc]
    def __init__(self) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = network(self.num_observations, 1)

    def compute(self, inputs: Any, role: str) -> Any:
        return self.net(inputs["observations"]), {}


class ReachedError(Exception):
    """The examiner says that training may stop."""


class Watched(PPO):  # type: ignore[misc]
    """Asks for an exam after updates, once so many steps have passed since the last."""

    next_exam = EVERY

    def post_interaction(self, *, timestep: int, timesteps: int) -> None:
        super().post_interaction(timestep=timestep, timesteps=timesteps)
        steps = (timestep + 1) * ENVS
        if steps >= self.next_exam and (timestep + 1) % ROLLOUT == 0:
            self.next_exam = steps // EVERY * EVERY + EVERY
            if sitting.look(steps, self.greedy):
                raise ReachedError

    def greedy(self, rows: list[list[float]]) -> Any:
        with torch.no_grad():
            seen = self._observation_preprocessor(torch.as_tensor(np.asarray(rows, np.float32)))
            return self.policy.net(seen).numpy()


cfg = PPO_CFG(
    rollouts=ROLLOUT, learning_epochs=10, mini_batches=ENVS * ROLLOUT // 256, discount_factor=0.99, gae_lambda=0.95,
    learning_rate=3e-4, grad_norm_clip=0.5, ratio_clip=0.2, value_clip=0.0, entropy_loss_scale=0.0,
    value_loss_scale=0.5, time_limit_bootstrap=True, observation_preprocessor=RunningStandardScaler,
    observation_preprocessor_kwargs={"size": env.observation_space, "device": "cpu"},
    value_preprocessor=RunningStandardScaler, value_preprocessor_kwargs={"size": 1, "device": "cpu"},
)  # fmt: skip
cfg.experiment.write_interval = 0
cfg.experiment.checkpoint_interval = 0
cfg.experiment.directory = tempfile.mkdtemp()
agent = Watched(
    models={"policy": Policy(), "value": Value()},
    memory=RandomMemory(memory_size=ROLLOUT, num_envs=ENVS, device="cpu"),
    observation_space=env.observation_space, action_space=env.action_space, device="cpu", cfg=cfg,
)  # fmt: skip
trainer = SequentialTrainer(
    cfg={"timesteps": STEPS // ENVS, "headless": True, "disable_progressbar": True}, env=env, agents=agent
)
try:
    trainer.train()
except ReachedError:
    env.close()
