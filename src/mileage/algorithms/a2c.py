"""Advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783), synchronous.

The same learner as PPO's with one epoch, one minibatch and no clipping, which is the same gradient (Huang et al., 2022,
arXiv:2205.09123); short rollouts make up for learning from each only once.
"""

from __future__ import annotations

import dataclasses

from mileage.algorithms._config import OneStepPerRollout, check_actor_critic, unit_interval
from mileage.algorithms._native_on_policy import NativeOnPolicy


@dataclasses.dataclass(frozen=True)
class A2CConfig(OneStepPerRollout):
    """Hyperparameters of A2C."""

    n_envs: int = 16
    """Environments stepped side by side."""
    n_steps: int = 8
    """Steps of each environment per rollout."""
    learning_rate: float = 2e-3
    """Adam's step size at the start."""
    learning_rate_schedule: str = "constant"
    """`constant`, or `linear` to 0 at the end of training."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 1.0
    """Decay of GAE's traces; 1 is the n-step return."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    value_coef: float = 0.5
    """Weight of the squared value error."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm; 0 for no limit."""
    normalise_advantages: bool = False
    """Centre and scale the advantages of every rollout."""
    normalise_observations: bool = False
    """Centre and scale observations by running statistics, which are frozen into checkpoints."""
    normalise_rewards: bool = False
    """Scale rewards by the running deviation of the discounted return."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: str = "tanh"
    """`tanh` or `relu`."""
    log_std_init: float = 0.0
    """Logarithm of the initial deviation of continuous actions."""

    def __post_init__(self) -> None:
        check_actor_critic(self)
        unit_interval(self, "gae_lambda")

    @property
    def batch_size(self) -> int:
        """Samples of one rollout, which one update learns from."""
        return self.n_envs * self.n_steps


class A2C(NativeOnPolicy):
    """A2C on built parts: a vector environment, a policy, a team of threads."""

    Config = A2CConfig
