"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347).

Collects `n_steps` from `n_envs` environments, estimates advantages with GAE, and takes `epochs` passes of minibatch
steps on the clipped surrogate loss, the squared value error and an entropy bonus. The loss as the paper has it is
`mileage.kernels.reference.actor_critic.loss_terms`; its gradient is in `mileage.kernels.learners.actor_critic`.
"""

from __future__ import annotations

import dataclasses

from mileage._errors import require
from mileage.algorithms._config import OnPolicyConfig, at_least_one, check_schedules, unit_interval, zero_or_more
from mileage.algorithms._native_on_policy import NativeOnPolicy


@dataclasses.dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Hyperparameters of PPO."""

    n_envs: int = 8
    n_steps: int = 128
    learning_rate: float = 2.5e-4
    entropy_coef: float = 0.01
    normalise_advantages: bool = True
    """Centre and scale the advantages of every minibatch."""
    epochs: int = 4
    """Passes over a rollout."""
    minibatch: int = 256
    """Samples per optimizer step."""
    gae_lambda: float = 0.95
    """Decay of GAE's traces."""
    clip: float = 0.2
    """How far the probability ratio may move from 1 before its gradient is cut."""
    clip_schedule: str = "constant"
    """`constant`, or `linear` to 0 at the end of training."""
    value_clip: float = 0.0
    """How far a value may move from the old one before its gradient is cut; 0 for no limit."""
    target_kl: float = 0.0
    """An update stops once the policy has moved 1.5 times this far; 0 for no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "epochs", "minibatch")
        unit_interval(self, "gae_lambda")
        require(self.clip > 0.0, "clip", self.clip, "above 0")
        zero_or_more(self, "value_clip", "target_kl")
        check_schedules(self, "clip_schedule")
        require(self.batch_size > 1, "n_envs * n_steps", self.batch_size, "at least 2")


class PPO(NativeOnPolicy):
    """PPO on built parts: a vector environment, a policy, a team of threads."""

    Config = PPOConfig
