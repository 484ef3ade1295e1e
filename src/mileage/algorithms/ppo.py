"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347).

Collects `n_steps` from `n_envs` environments, estimates advantages with GAE, and takes `epochs` passes of minibatch
steps on the clipped surrogate loss, the squared value error and an entropy bonus. The loss as the paper has it is
`mileage.kernels.reference.losses.loss_terms`; its gradient is in `mileage.kernels.actor_critic`.
"""

from __future__ import annotations

import dataclasses

from mileage.algorithms.configs import OnPolicyConfig, Schedule
from mileage.algorithms.rollouts import NativeOnPolicy
from mileage.config import Bound, Count, Limit, Share
from mileage.errors import require


@dataclasses.dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Hyperparameters of PPO."""

    n_envs: int = 8
    n_steps: int = 128
    learning_rate: float = 2.5e-4
    entropy_coef: float = 0.01
    normalise_advantages: bool = True
    """Centre and scale the advantages of every minibatch."""
    epochs: Count = 4
    """Passes over a rollout."""
    minibatch: Count = 256
    """Samples per optimizer step."""
    gae_lambda: Share = 0.95
    """Decay of GAE's traces."""
    clip: Bound = 0.2
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_schedule: Schedule = "constant"
    """`constant`, or `linear` to 0 at the end of training."""
    value_clip: Limit = 0.0
    """How far a value may move from the old one before its gradient is cut; 0 for no limit."""
    target_kl: Limit = 0.0
    """An update stops once the policy has moved 1.5 times this far; 0 for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.batch_size > 1, "n_envs * n_steps", self.batch_size, "at least 2")


class PPO(NativeOnPolicy):
    """PPO on built parts: a vector environment, a policy, a team of threads."""

    Config = PPOConfig
