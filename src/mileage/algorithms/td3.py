"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, arXiv:1802.09477).

The update is one native call (`mileage.kernels.td3`) for any number of gradient steps per environment step.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mileage.algorithms.configs import OffPolicyConfig
from mileage.algorithms.twin_critic import TwinCritic
from mileage.config import Count, Weight
from mileage.kernels import td3 as kernel
from mileage.kernels.machine.frames import Frame
from mileage.policies.off_policy import DeterministicActor
from mileage.types import F32, Array


@dataclasses.dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Hyperparameters of TD3."""

    tau: float = 0.005
    """Share that target networks move towards the learned ones per policy update."""
    policy_delay: Count = 2
    """Critic updates per policy update."""
    exploration_noise: Weight = 0.1
    """Deviation of the noise on actions taken, in units of half the action range."""
    target_noise: Weight = 0.2
    """Deviation of the noise that smooths target actions."""
    noise_limit: Weight = 0.5
    """Where that noise is clipped."""


class TD3(TwinCritic):
    """TD3 on built parts: a vector environment, a policy, a team of threads."""

    Config, Policy = TD3Config, DeterministicActor
    update_kernel, act_kernel = staticmethod(kernel.td3_update), staticmethod(kernel.td3_act)
    config: TD3Config
    stages, judges = kernel.STAGES, 1

    def _build(self) -> None:
        self.target_actor_params = self.policy.params.copy()
        super()._build()

    def _act_frame(self) -> Frame:
        return Frame(kernel.ACT, **self._acting_fields(), exploration_noise=self.config.exploration_noise)

    def _update_frame(self) -> Frame:
        config = self.config
        return Frame(
            kernel.TD3, **self._learning_fields(), stage=kernel.LAST_STAGE,
            target_actor_params=self.target_actor_params,
            noise=np.zeros((self.batch.size, self.policy.action_size), np.float32), policy_delay=config.policy_delay,
            target_noise=config.target_noise, noise_limit=config.noise_limit,
        )  # fmt: skip

    def _losses(self) -> dict[str, float]:
        totals, samples = self.totals, max(self.totals[kernel.SAMPLES], 1.0)
        return {
            "critic_loss": totals[kernel.CRITIC_LOSS] / samples,
            "actor_loss": totals[kernel.ACTOR_LOSS] / max(totals[kernel.ACTOR_SAMPLES], 1.0),
            "q_value": totals[kernel.Q_VALUE] / samples,
        }

    @classmethod
    def actor_every(cls, config: TD3Config) -> int:
        """Updates of the critics per update of the actor."""
        return config.policy_delay

    def target_arrays(self) -> list[F32]:
        """The parameters of all target networks."""
        return [*super().target_arrays(), self.target_actor_params]

    def _learner_arrays(self) -> dict[str, Array]:
        return super()._learner_arrays() | {"target_actor_params": self.target_actor_params}
