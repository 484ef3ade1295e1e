"""What SAC and TD3 on torch share: actor and critics, their optimizers, and noise of their own."""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from mileage._records import Record
from mileage._types import F32, Array
from mileage.algorithms._describe import Sizes
from mileage.algorithms._twin_critic import TwinCritic
from mileage.algorithms.torch.off_policy import TorchOffPolicy
from mileage.algorithms.torch.on_policy import normals
from mileage.description import Boundary, Work
from mileage.kernels.arrays import random
from mileage.meter import Phase
from mileage.policies.torch.policy import TorchTwinCritic
from mileage.policies.torch.tensors import Inbox


class TorchTwinCriticLearner(TorchOffPolicy):
    """An off-policy learner of modules `actor(obs)` and `critic(obs, action)`."""

    Native: ClassVar[type[TwinCritic]]
    noise_shape: ClassVar[tuple[int, ...]] = ()
    """Of the noise of one update, before samples and entries of an action."""
    policy: TorchTwinCritic

    def _build_networks(self) -> None:
        config, policy = self.config, self.policy
        actor, critic = policy.module.get_submodule("actor"), policy.module.get_submodule("critic")
        self._actor, self._critic = policy.fast(actor), policy.fast(critic)
        self._target_critic = policy.fast(self._target_of(critic))
        own = dict(critic.named_parameters(prefix="critic"))
        # Features that both share learn from the critic's loss.
        shared = {id(each) for each in own.values()}
        rest = {name: each for name, each in actor.named_parameters(prefix="actor") if id(each) not in shared}
        self._critic_adam = self._optimizer("critic_adam", own)
        self._actor_adam = self._optimizer("actor_adam", rest)
        self.noise_rng = random.streams(self.seed, config.batch, "noise")
        noise = np.zeros((*self.noise_shape, config.batch, policy.action_size), np.float32)
        self._noise = Inbox({"noise": noise}, policy.device, separate=self.separate)

    @torch.no_grad()
    def act(self, progress: float) -> Array:
        """Write `actions` as they are stored, and return them as the environment wants them."""
        noise = normals(random.uniform_rows(self.action_rng, 2 * self.policy.action_size))
        head = self._actor(self._seen())
        if self._inbox.separate:
            with self._clock.phase(Phase.TRANSFER):
                head = head.cpu()
        self.actions[:] = self._explore(head, noise)
        return self.policy.to_env(self.actions)

    @abc.abstractmethod
    def _explore(self, head: Tensor, noise: F32) -> F32:
        """Actions (N, A) in [-1, 1] from the actor's output and standard normal draws (N, A)."""

    def _learn_critics(self, batch: Record, targets: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """One step of both critics towards `targets` (B,), their errors weighed; the loss and the mean value."""
        first, second = self._critic(batch["obs"], batch["actions"])
        loss = weight * ((first - targets).square().mean() + (second - targets).square().mean())
        value = 0.5 * (first.detach().mean() + second.detach().mean())
        self._critic_adam.step(loss, self.rate, self.config.max_grad_norm)
        return loss.detach(), value

    def _learn_work(self, actor: Sizes, critic: Sizes) -> Work:
        return self.Native.learn_work(self.config, actor, critic, self.config.batch, 1)

    def _methods(self) -> tuple[Boundary, ...]:
        from mileage.algorithms.torch._describe import stages

        critic = stages(self._critic_adam, gradients="critic backward", descend="critic optimizer")
        actor = stages(self._actor_adam, gradients="actor backward", descend="actor optimizer")
        return (*super()._methods(), *critic, *actor)

    def _learner_arrays(self) -> dict[str, Array]:
        return super()._learner_arrays() | {"noise_rng": self.noise_rng}
