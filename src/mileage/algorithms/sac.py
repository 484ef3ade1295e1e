"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1812.05905) with automatic temperature and twin critics.

The update is one native call (`mileage.kernels.sac`) for any number of gradient steps per environment step.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from mileage.algorithms.configs import OffPolicyConfig
from mileage.algorithms.twin_critic import TwinCritic
from mileage.config import Finite
from mileage.errors import require
from mileage.kernels import sac as kernel
from mileage.kernels.machine.frames import Frame
from mileage.policies.off_policy import SquashedActor
from mileage.types import F64, Array


@dataclasses.dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Hyperparameters of SAC."""

    learning_rate: float = 3e-4
    """Adam's step size for actor, critics and temperature."""
    temperature: float = 0.0
    """Fixed weight of the entropy; 0 learns it."""
    target_entropy: Finite = 0.0
    """Entropy that a learned temperature aims at; 0 is minus the number of action dimensions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0.0 <= self.temperature < math.inf, "temperature", self.temperature, "0 (learned) or more, and finite")


class SAC(TwinCritic):
    """SAC on built parts: a vector environment, a policy, a team of threads."""

    Config, Policy = SACConfig, SquashedActor
    update_kernel, act_kernel = staticmethod(kernel.sac_update), staticmethod(kernel.sac_act)
    config: SACConfig
    stages, judges = kernel.STAGES, 2
    rates = (*TwinCritic.rates, "temperature_rate")

    def _build(self) -> None:
        self.temperature = initial_temperature(self.config, self.policy.action_size)
        super()._build()

    def _act_frame(self) -> Frame:
        return Frame(kernel.ACT, **self._acting_fields(), deterministic=0)

    def _update_frame(self) -> Frame:
        config = self.config
        return Frame(
            kernel.SAC, **self._learning_fields(), stage=kernel.LAST_STAGE,
            noise=np.zeros((2, self.batch.size, self.policy.action_size), np.float32), temperature=self.temperature,
            learn_temperature=int(config.temperature == 0.0), temperature_rate=config.learning_rate,
        )  # fmt: skip

    def _losses(self) -> dict[str, float]:
        totals, samples = self.totals, max(self.totals[kernel.SAMPLES], 1.0)
        return {
            "critic_loss": totals[kernel.CRITIC_LOSS] / samples,
            "actor_loss": totals[kernel.ACTOR_LOSS] / samples,
            "entropy": -totals[kernel.LOG_PROB] / samples,
            "q_value": totals[kernel.Q_VALUE] / samples,
            "temperature": math.exp(self.temperature[kernel.LOG_ALPHA]),
        }

    def _learner_arrays(self) -> dict[str, Array]:
        return super()._learner_arrays() | {"temperature": self.temperature}


def initial_temperature(config: SACConfig, action_size: int) -> F64:
    """The temperature's state (4,): its logarithm, Adam's mean and square, and the entropy to aim at."""
    entropy = config.target_entropy or -float(action_size)
    return np.array([math.log(config.temperature) if config.temperature else 0.0, 0.0, 0.0, entropy])
