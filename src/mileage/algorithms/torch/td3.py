"""TD3 on torch; see `mileage.algorithms.td3`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mileage.algorithms.torch.off_policy import TorchOffPolicy, bootstrap
from mileage.algorithms.torch.on_policy import normals
from mileage.kernels.arrays import random
from mileage.meter import Phase
from mileage.policies.torch.tensors import Inbox


class TorchTD3(TorchOffPolicy):
    """TD3 with any modules `actor(obs)` and `critic(obs, action)`."""

    def _build_networks(self) -> None:
        config, policy = self.config, self.policy
        actor, critic = policy.module.get_submodule("actor"), policy.module.get_submodule("critic")
        self._actor, self._critic = policy.fast(actor), policy.fast(critic)
        self._target_critic, self._target_actor = (policy.fast(self._target_of(each)) for each in (critic, actor))
        own = dict(critic.named_parameters(prefix="critic"))
        shared = {id(each) for each in own.values()}
        rest = {name: each for name, each in actor.named_parameters(prefix="actor") if id(each) not in shared}
        self._critic_adam = self._optimizer("critic_adam", own)
        self._actor_adam = self._optimizer("actor_adam", rest)
        self.noise_rng = random.streams(self.seed, config.batch, "noise")
        self._noise = np.zeros((config.batch, policy.action_size), np.float32)
        self._noise_inbox = Inbox({"noise": self._noise}, policy.device, separate=self.separate)

    @torch.no_grad()
    def _act(self, progress: float) -> NDArray[Any]:
        noise = normals(random.uniform_rows(self.action_rng, 2 * self.policy.action_size))
        action = torch.tanh(self._actor(self._seen()))
        if self._inbox.separate:
            with self._clock.phase(Phase.TRANSFER):
                action = action.cpu()
        deviation = np.float32(self.config.exploration_noise)
        np.clip(action.numpy() + deviation * noise, -1.0, 1.0, out=self.actions)
        return self.policy.to_env(self.actions)

    def _update(self, batch: dict[str, Any]) -> Tensor:
        config = self.config
        draws = normals(random.uniform_rows(self.noise_rng, 2 * self.policy.action_size))
        np.clip(draws * np.float32(config.target_noise), -config.noise_limit, config.noise_limit, out=self._noise)
        self._noise_inbox.send()
        with torch.no_grad():
            action = torch.tanh(self._target_actor(batch["next_obs"]))
            action = (action + self._noise_inbox.tensors["noise"]).clamp(-1.0, 1.0)
            first, second = self._target_critic(batch["next_obs"], action)
            targets = bootstrap(batch, torch.minimum(first, second))
        first, second = self._critic(batch["obs"], batch["actions"])
        critic_loss = (first - targets).square().mean() + (second - targets).square().mean()
        value = 0.5 * (first.detach().mean() + second.detach().mean())
        self._critic_adam.step(critic_loss, config.learning_rate, config.max_grad_norm)
        actor_loss, learnt = torch.zeros_like(value), torch.zeros_like(value)
        if self.updates % config.policy_delay == 0:
            actor_loss = -self._critic(batch["obs"], torch.tanh(self._actor(batch["obs"])))[0].mean()
            self._actor_adam.step(actor_loss, config.learning_rate, config.max_grad_norm)
            self._follow()
            learnt += 1.0
        return torch.stack([critic_loss.detach(), actor_loss.detach(), learnt, value])

    def _named_losses(self, means: NDArray[np.float64]) -> dict[str, float]:
        critic_loss, actor_loss, learnt, value = (float(mean) for mean in means)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss / learnt if learnt else 0.0, "q_value": value}

    def state_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything that decides how training goes on, by name; call `set_counters` after writing to it."""
        return super().state_arrays() | {"noise_rng": self.noise_rng}


ENGINE = TorchTD3
