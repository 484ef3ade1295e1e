"""SAC on torch; see `mileage.algorithms.sac`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mileage.algorithms.sac import SAC, SACConfig, initial_temperature
from mileage.algorithms.torch.off_policy import TorchTwinCriticLearner, bootstrap
from mileage.algorithms.torch.on_policy import normals
from mileage.description import Boundary
from mileage.kernels import random
from mileage.kernels.random import HALF_LOG_TWO_PI, LOG_STD_HIGH, LOG_STD_LOW, SQUASH_EPS
from mileage.kernels.sac import ALPHA_MEAN, ALPHA_SQUARE, LOG_ALPHA, TARGET_ENTROPY
from mileage.policies.torch.policy import TorchSquashed
from mileage.records import Record
from mileage.types import F32, F64

_BETA1, _BETA2, _ADAM_EPS = 0.9, 0.999, 1e-8


class TorchSAC(TorchTwinCriticLearner):
    """SAC with any modules `actor(obs)` and `critic(obs, action)`."""

    Native, Config, Policy = SAC, SACConfig, TorchSquashed
    config: SACConfig
    passes = 12
    noise_shape = (2,)

    def _build_networks(self) -> None:
        super()._build_networks()
        state = initial_temperature(self.config, self.policy.action_size)
        self.temperature = torch.tensor(state, dtype=torch.float64, device=self.policy.device)

    def _more_tensors(self) -> Mapping[str, Tensor]:
        return {"temperature": self.temperature}

    def _explore(self, head: Tensor, noise: F32) -> F32:
        return squashed(head, torch.from_numpy(noise))[0].numpy()

    def _draw_noise(self) -> Tensor:
        """Noise (2, B, A) of target and policy actions, from the streams and in the order of the native update."""
        draws = normals(random.uniform_rows(self.noise_rng, 4 * self.policy.action_size))
        return self._noise.put("noise", draws.reshape(self.config.batch, 2, -1).transpose(1, 0, 2))

    def _update(self, batch: Record) -> Tensor:
        config = self.config
        noise = self._draw_noise()
        alpha = self.temperature[LOG_ALPHA].exp().float()
        with torch.no_grad():
            action, log_prob = squashed(self._actor(batch["next_obs"]), noise[0])
            first, second = self._target_critic(batch["next_obs"], action)
            targets = bootstrap(batch, torch.minimum(first, second) - alpha * log_prob)
        critic_loss, value = self._learn_critics(batch, targets, 0.5)
        self._follow()
        action, log_prob = squashed(self._actor(batch["obs"]), noise[1])
        first, second = self._critic(batch["obs"], action)
        actor_loss = (alpha * log_prob - torch.minimum(first, second)).mean()
        self._actor_adam.step(actor_loss, self.rate, config.max_grad_norm)
        mean_log_prob = log_prob.detach().mean()
        if config.temperature == 0.0:
            self._learn_temperature(mean_log_prob.double())
        return torch.stack([critic_loss, actor_loss.detach(), -mean_log_prob, value])

    @torch.no_grad()
    def _learn_temperature(self, mean_log_prob: Tensor) -> None:
        """One Adam step on the logarithm of the temperature, without waiting for the device."""
        state = self.temperature
        slope = -(mean_log_prob + state[TARGET_ENTROPY])
        state[ALPHA_MEAN].lerp_(slope, 1.0 - _BETA1)
        state[ALPHA_SQUARE].lerp_(slope * slope, 1.0 - _BETA2)
        mean = state[ALPHA_MEAN] / (1.0 - _BETA1**self.updates)
        square = state[ALPHA_SQUARE] / (1.0 - _BETA2**self.updates)
        state[LOG_ALPHA] -= self.rate * mean / (square.sqrt() + _ADAM_EPS)

    def _methods(self) -> tuple[Boundary, ...]:
        from mileage.algorithms.torch.describe import stages

        return (*super()._methods(), *stages(self, _learn_temperature="temperature", _draw_noise="noise"))

    def _named_losses(self, means: F64) -> dict[str, float]:
        names = ("critic_loss", "actor_loss", "entropy", "q_value")
        losses = {name: float(mean) for name, mean in zip(names, means, strict=True)}
        return losses | {"temperature": math.exp(float(self.temperature[LOG_ALPHA]))}


def squashed(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (N, A) in (-1, 1) and their log-densities (N,), from means and log deviations (N, 2A)."""
    mean, raw = head.chunk(2, 1)
    log_std = raw.clamp(LOG_STD_LOW, LOG_STD_HIGH)
    action = torch.tanh(mean + noise * log_std.exp())
    log_prob = 0.5 * noise * noise + log_std + HALF_LOG_TWO_PI + torch.log(1.0 - action * action + SQUASH_EPS)
    return action, -log_prob.sum(1)
