"""Advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783), synchronous.

The same learner as PPO's with one epoch, one minibatch and no clipping, which is the same gradient (Huang et al., 2022,
arXiv:2205.09123); short rollouts make up for learning from each only once.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mileage.algorithms.configs import OnPolicyConfig
from mileage.algorithms.rollouts import NativeOnPolicy
from mileage.config import Share
from mileage.records import Record


@dataclasses.dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Hyperparameters of A2C."""

    gae_lambda: Share = 1.0
    """Decay of GAE's traces; 1 is the n-step return."""


class A2C(NativeOnPolicy):
    """A2C on built parts: a vector environment, a policy, a team of threads."""

    Config = A2CConfig
    image_defaults: ClassVar[Record] = {"learning_rate": 5e-4, "normalise_rewards": True}
    """A convolutional network learns nothing at the rate that suits small ones, nor from returns far above 1: in layers
    that actor and critic share, the squared error of such values drowns the policy's gradient."""
