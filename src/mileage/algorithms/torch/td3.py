"""TD3 on torch; see `mileage.algorithms.td3`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mileage._records import Record
from mileage._types import F32, F64
from mileage.algorithms.td3 import TD3, TD3Config
from mileage.algorithms.torch.off_policy import bootstrap
from mileage.algorithms.torch.on_policy import normals
from mileage.algorithms.torch.twin_critic import TorchTwinCriticLearner
from mileage.kernels.arrays import random
from mileage.policies.torch.policy import TorchDeterministic


class TorchTD3(TorchTwinCriticLearner):
    """TD3 with any modules `actor(obs)` and `critic(obs, action)`."""

    Native, Config, Policy = TD3, TD3Config, TorchDeterministic
    config: TD3Config
    passes = 10

    def _build_networks(self) -> None:
        super()._build_networks()
        self._target_actor = self.policy.fast(self._target_of(self.policy.module.get_submodule("actor")))

    def _explore(self, head: Tensor, noise: F32) -> F32:
        deviation = np.float32(self.config.exploration_noise)
        return np.clip(torch.tanh(head).numpy() + deviation * noise, -1.0, 1.0)

    def _update(self, batch: Record) -> Tensor:
        config = self.config
        draws = normals(random.uniform_rows(self.noise_rng, 2 * self.policy.action_size))
        draws *= np.float32(config.target_noise)
        noise = self._noise.put("noise", np.clip(draws, -config.noise_limit, config.noise_limit))
        with torch.no_grad():
            action = torch.tanh(self._target_actor(batch["next_obs"]))
            action = (action + noise).clamp(-1.0, 1.0)
            first, second = self._target_critic(batch["next_obs"], action)
            targets = bootstrap(batch, torch.minimum(first, second))
        critic_loss, value = self._learn_critics(batch, targets, 1.0)
        actor_loss, learnt = torch.zeros_like(value), torch.zeros_like(value)
        if self.updates % config.policy_delay == 0:
            actor_loss = -self._critic(batch["obs"], torch.tanh(self._actor(batch["obs"])))[0].mean()
            self._actor_adam.step(actor_loss, self.rate, config.max_grad_norm)
            self._follow()
            learnt += 1.0
        return torch.stack([critic_loss, actor_loss.detach(), learnt, value])

    def _named_losses(self, means: F64) -> dict[str, float]:
        critic_loss, actor_loss, learnt, value = (float(mean) for mean in means)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss / learnt if learnt else 0.0, "q_value": value}
