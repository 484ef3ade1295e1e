"""DQN on torch; see `mileage.algorithms.dqn`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mileage.algorithms.describe import Sizes
from mileage.algorithms.dqn import DQN, DQNConfig, make_replay
from mileage.algorithms.torch.off_policy import TorchOffPolicy, bootstrap
from mileage.buffers import PrioritizedReplay, ReplayBuffer
from mileage.description import Boundary, Work
from mileage.kernels import random
from mileage.measure import Phase
from mileage.policies.torch.policy import TorchQ
from mileage.records import Record
from mileage.types import F64, I64, Array


class TorchDQN(TorchOffPolicy):
    """DQN with any module from observations to action values."""

    Native, Config, Policy = DQN, DQNConfig, TorchQ
    config: DQNConfig
    passes = 5

    def _make_replay(self) -> ReplayBuffer:
        return make_replay(self.config, self._replay_arguments())

    def _build_networks(self) -> None:
        module = self.policy.module
        self._online, self._target = self.policy.fast(), self.policy.fast(self._target_of(module))
        self._adam = self._optimizer("adam", dict(module.named_parameters()))

    @torch.no_grad()
    def act(self, progress: float) -> Array:
        """Write `actions` as they are stored, and return them as the environment wants them."""
        values = self._online(self._seen())
        if self.policy.structured_actions:
            values = possible(values, torch.from_numpy(self.masks).to(values.device))
        best = values.argmax(1)
        if self._inbox.separate:
            with self._clock.phase(Phase.TRANSFER):
                best = best.cpu()
        draws = random.uniform_rows(self.action_rng, 2)
        random_ones = self._anywhere(draws[:, 1])
        choices: I64 = np.where(draws[:, 0] < self.config.epsilon(progress), random_ones, best.numpy())
        self.actions[:, 0] = choices
        return choices

    def _update(self, batch: Record) -> Tensor:
        config = self.config
        with torch.no_grad():
            values = self._target(batch["next_obs"])
            judge = self._online(batch["next_obs"]) if config.double else values
            if self.policy.structured_actions:
                judge = possible(judge, batch["masks"])
            targets = bootstrap(batch, values.gather(1, judge.argmax(1, keepdim=True))[:, 0])
        value = self._online(batch["obs"]).gather(1, batch["actions"].long())[:, 0]
        loss = torch.nn.functional.huber_loss(value, targets, reduction="none", delta=config.huber)
        loss = (loss * batch["weights"]).mean()
        self._adam.step(loss, self.rate, config.max_grad_norm)
        if self.updates % config.target_every == 0:
            self._follow()
        if isinstance(self.replay, PrioritizedReplay):
            self._set_priorities(self.replay, (value.detach() - targets).abs().cpu().numpy())
        return torch.stack([loss.detach(), value.detach().mean()])

    def _learn_work(self, actor: Sizes, critic: Sizes) -> Work:
        return DQN.learn_work(self.config, actor, 1)

    def _methods(self) -> tuple[Boundary, ...]:
        from mileage.algorithms.torch.describe import stages

        network = stages(self._adam, gradients="network backward", descend="network optimizer")
        return (*super()._methods(), *network)

    def _named_losses(self, means: F64) -> dict[str, float]:
        return {"loss": float(means[0]), "q_value": float(means[1])}


def possible(values: Tensor, masks: Tensor) -> Tensor:
    """Action values (N, n), minus infinity where masks (N, n) are 0."""
    return values.masked_fill(masks == 0, -torch.inf)
