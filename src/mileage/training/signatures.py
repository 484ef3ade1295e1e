"""What agents may be given, for editors and type checkers; what it means is said in `Agent` and in configurations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

Scheduled = float | Callable[[float], float]
"""A number, or a function of the share of the training that is left."""


class Options(TypedDict, total=False):
    """What every agent takes."""

    env: Any
    seed: int | None
    preset: str
    threads: int | None
    env_kwargs: dict[str, Any] | None
    processes: bool
    backend: str
    policy: Any
    device: str
    compile: bool | str
    verbose: int
    tensorboard_log: str | None
    n_envs: int
    learning_rate: Scheduled
    learning_rate_schedule: str
    gamma: float
    max_grad_norm: float
    normalise_observations: bool
    normalise_rewards: bool
    hidden: Sequence[int]
    activation: str


class OnPolicy(Options, total=False):
    """What learners from rollouts take."""

    n_steps: int
    entropy_coef: float
    value_coef: float
    normalise_advantages: bool
    adam_eps: float
    log_std_init: float


class A2COptions(OnPolicy, total=False):
    """What `A2C` takes."""

    gae_lambda: float


class PPOOptions(A2COptions, total=False):
    """What `PPO` takes."""

    epochs: int
    minibatch: int
    clip: Scheduled
    clip_schedule: str
    value_clip: float
    target_kl: float


class RPOOptions(PPOOptions, total=False):
    """What `RPO` takes."""

    perturbation: float


class IMPALAOptions(OnPolicy, total=False):
    """What `IMPALA` takes."""

    collectors: int
    mode: str
    queue: int
    lag: int
    trace_lambda: float
    rho_bar: float
    c_bar: float


class OffPolicy(Options, total=False):
    """What learners from replay take."""

    train_every: int
    gradient_steps: int
    batch: int
    learning_starts: int
    hold: int
    capacity: int
    n_step: int
    tau: float


class SACOptions(OffPolicy, total=False):
    """What `SAC` takes."""

    temperature: float
    target_entropy: float


class TD3Options(OffPolicy, total=False):
    """What `TD3` takes."""

    policy_delay: int
    exploration_noise: float
    target_noise: float
    noise_limit: float


class DQNOptions(OffPolicy, total=False):
    """What `DQN` takes."""

    target_every: int
    double: bool
    dueling: bool
    prioritised: bool
    priority_exponent: float
    priority_beta: float
    priority_updates: int
    epsilon_start: float
    epsilon_end: float
    exploration: float
    huber: float
