"""SAC on torch; see `mileage.algorithms.sac`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mileage.algorithms.torch.off_policy import TorchOffPolicy, bootstrap
from mileage.algorithms.torch.on_policy import normals
from mileage.kernels.arrays import random
from mileage.kernels.learners.sac import ALPHA_MEAN, ALPHA_SQUARE, LOG_ALPHA, TARGET_ENTROPY
from mileage.meter import Phase
from mileage.policies.torch.policy import LOG_STD_HIGH, LOG_STD_LOW
from mileage.policies.torch.tensors import Inbox

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SQUASH_EPS = 1e-6
_BETA1, _BETA2, _ADAM_EPS = 0.9, 0.999, 1e-8


class TorchSAC(TorchOffPolicy):
    """SAC with any modules `actor(obs)` and `critic(obs, action)`."""

    def _build_networks(self) -> None:
        config, policy = self.config, self.policy
        actor, critic = policy.module.get_submodule("actor"), policy.module.get_submodule("critic")
        self._actor, self._critic = policy.fast(actor), policy.fast(critic)
        self._target = policy.fast(self._target_of(critic))
        own = dict(critic.named_parameters(prefix="critic"))
        # Features that both share learn from the critic's loss.
        shared = {id(each) for each in own.values()}
        rest = {name: each for name, each in actor.named_parameters(prefix="actor") if id(each) not in shared}
        self._critic_adam = self._optimizer("critic_adam", own)
        self._actor_adam = self._optimizer("actor_adam", rest)
        entropy = config.target_entropy or -float(policy.action_size)
        alpha = math.log(config.temperature) if config.temperature else 0.0
        self.temperature = torch.tensor([alpha, 0.0, 0.0, entropy], dtype=torch.float64, device=policy.device)
        self.noise_rng = random.streams(self.seed, config.batch, "noise")
        self._noise = np.zeros((2, config.batch, policy.action_size), np.float32)
        self._noise_inbox = Inbox({"noise": self._noise}, policy.device, separate=self.separate)

    def _more_tensors(self) -> Mapping[str, Tensor]:
        return {"temperature": self.temperature}

    @torch.no_grad()
    def _act(self, progress: float) -> NDArray[Any]:
        size = self.policy.action_size
        noise = torch.from_numpy(normals(random.uniform_rows(self.action_rng, 2 * size)))
        head = self._actor(self._seen())
        if self._inbox.separate:
            with self._clock.phase(Phase.TRANSFER):
                head = head.cpu()
        self.actions[:] = squashed(head, noise)[0].numpy()
        return self.policy.to_env(self.actions)

    def _draw_noise(self) -> Tensor:
        """Noise (2, B, A) of target and policy actions, from the streams and in the order of the native update."""
        draws = normals(random.uniform_rows(self.noise_rng, 4 * self.policy.action_size))
        self._noise[:] = draws.reshape(self.config.batch, 2, -1).transpose(1, 0, 2)
        self._noise_inbox.send()
        return self._noise_inbox.tensors["noise"]

    def _update(self, batch: dict[str, Any]) -> Tensor:
        config = self.config
        noise = self._draw_noise()
        alpha = self.temperature[LOG_ALPHA].exp().float()
        with torch.no_grad():
            action, log_prob = squashed(self._actor(batch["next_obs"]), noise[0])
            first, second = self._target(batch["next_obs"], action)
            targets = bootstrap(batch, torch.minimum(first, second) - alpha * log_prob)
        first, second = self._critic(batch["obs"], batch["actions"])
        critic_loss = 0.5 * ((first - targets).square().mean() + (second - targets).square().mean())
        value = 0.5 * (first.detach().mean() + second.detach().mean())
        self._critic_adam.step(critic_loss, config.learning_rate, config.max_grad_norm)
        self._follow()
        action, log_prob = squashed(self._actor(batch["obs"]), noise[1])
        first, second = self._critic(batch["obs"], action)
        actor_loss = (alpha * log_prob - torch.minimum(first, second)).mean()
        self._actor_adam.step(actor_loss, config.learning_rate, config.max_grad_norm)
        mean_log_prob = log_prob.detach().mean()
        if config.temperature == 0.0:
            self._learn_temperature(mean_log_prob.double())
        return torch.stack([critic_loss.detach(), actor_loss.detach(), -mean_log_prob, value])

    @torch.no_grad()
    def _learn_temperature(self, mean_log_prob: Tensor) -> None:
        """One Adam step on the logarithm of the temperature, without waiting for the device."""
        state = self.temperature
        slope = -(mean_log_prob + state[TARGET_ENTROPY])
        state[ALPHA_MEAN].lerp_(slope, 1.0 - _BETA1)
        state[ALPHA_SQUARE].lerp_(slope * slope, 1.0 - _BETA2)
        mean = state[ALPHA_MEAN] / (1.0 - _BETA1**self.updates)
        square = state[ALPHA_SQUARE] / (1.0 - _BETA2**self.updates)
        state[LOG_ALPHA] -= self.config.learning_rate * mean / (square.sqrt() + _ADAM_EPS)

    def _named_losses(self, means: NDArray[np.float64]) -> dict[str, float]:
        names = ("critic_loss", "actor_loss", "entropy", "q_value")
        losses = {name: float(mean) for name, mean in zip(names, means, strict=True)}
        return losses | {"temperature": math.exp(float(self.temperature[LOG_ALPHA]))}

    def state_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything that decides how training goes on, by name; call `set_counters` after writing to it."""
        return super().state_arrays() | {"noise_rng": self.noise_rng}


def squashed(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (N, A) in (-1, 1) and their log-densities (N,), from means and log deviations (N, 2A)."""
    mean, raw = head.chunk(2, 1)
    log_std = raw.clamp(LOG_STD_LOW, LOG_STD_HIGH)
    action = torch.tanh(mean + noise * log_std.exp())
    log_prob = 0.5 * noise * noise + log_std + _HALF_LOG_TWO_PI + torch.log(1.0 - action * action + _SQUASH_EPS)
    return action, -log_prob.sum(1)


ENGINE = TorchSAC
