"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, arXiv:1802.09477).

The update is one native call (`mileage.kernels.learners.td3`) for any number of gradient steps per environment step.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mileage._types import F64
from mileage.algorithms._config import require
from mileage.algorithms._off_policy import OffPolicy, check_off_policy
from mileage.kernels.arrays import random
from mileage.kernels.learners import optim, twin_critic
from mileage.kernels.learners import td3 as kernel
from mileage.kernels.machine.chunks import chunk_rows, n_chunks
from mileage.kernels.machine.pointers import Frame
from mileage.policies.native import ACTIVATIONS
from mileage.policies.off_policy import DeterministicActor


@dataclasses.dataclass(frozen=True)
class TD3Config:
    """Hyperparameters of TD3."""

    n_envs: int = 1
    """Environments stepped side by side."""
    train_every: int = 1
    """Steps of every environment per iteration."""
    gradient_steps: int = 1
    """Updates per iteration."""
    batch: int = 256
    """Samples per update."""
    learning_rate: float = 1e-3
    """Adam's step size for actor and critics."""
    learning_starts: int = 1000
    """Steps taken at random before learning starts."""
    capacity: int = 1_000_000
    """Transitions that the replay buffer holds."""
    gamma: float = 0.99
    """Discount."""
    n_step: int = 1
    """Steps of reward before bootstrapping."""
    tau: float = 0.005
    """Share that target networks move towards the learned ones per policy update."""
    policy_delay: int = 2
    """Critic updates per policy update."""
    exploration_noise: float = 0.1
    """Deviation of the noise on actions taken, in units of half the action range."""
    target_noise: float = 0.2
    """Deviation of the noise that smooths target actions."""
    noise_limit: float = 0.5
    """Where that noise is clipped."""
    max_grad_norm: float = 0.0
    """Gradients are scaled down to this norm; 0 for no limit."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    activation: str = "relu"
    """`relu` or `tanh`."""

    def __post_init__(self) -> None:
        check_off_policy(self)
        require(self.policy_delay >= 1, "policy_delay", self.policy_delay, "at least 1")
        for name in ("exploration_noise", "target_noise", "noise_limit"):
            require(0.0 <= getattr(self, name) < math.inf, name, getattr(self, name), "0 or more and finite")


class TD3(OffPolicy):
    """TD3 on built parts: a vector environment, a policy, a team of threads."""

    Config = TD3Config
    policy: DeterministicActor

    @staticmethod
    def kernels(native: bool) -> tuple[str, ...]:
        """Kernels that a run needs, by their names in `precompile`; the first takes longest to compile."""
        return ("td3_update", "td3_act", *(("evaluate",) if native else ()))

    @staticmethod
    def make_policy(config: TD3Config, spec: Any, seed: int) -> DeterministicActor:
        """The networks for an environment."""
        if spec.n_actions:
            from mileage._errors import UsageError

            raise UsageError("td3 needs continuous actions: use dqn or ppo for discrete ones")
        return DeterministicActor(
            spec.obs_size,
            spec.action_low,
            spec.action_high,
            hidden=config.hidden,
            activation=config.activation,
            seed=seed,
        )

    def _build(self) -> None:
        config, policy = self.config, self.policy
        self.target_params, self.target_actor_params = policy.critic_params.copy(), policy.params.copy()
        self.noise_rng = random.streams(self.seed, config.batch, "noise")
        n_actor, n_critic = policy.params.size, policy.critic_params.size
        self.adam = {
            name: np.zeros(size, np.float32)
            for name, size in (
                ("actor_mean", n_actor),
                ("actor_square", n_actor),
                ("critic_mean", n_critic),
                ("critic_square", n_critic),
            )
        }
        self._totals: F64 = np.zeros(twin_critic.N_STATS)
        self._frame = self._update_frame()
        self._act_frame = Frame(
            kernel.ACT,
            actor_params=policy.params,
            actor=np.array(policy.actor_sizes, np.int64),
            obs=self.obs,
            env_action=np.zeros_like(self.actions),
            actions=self.actions,
            low=policy.low,
            high=policy.high,
            action_rng=self.action_rng,
            works=np.zeros(self.n_envs * sum(policy.actor_sizes), np.float32),
            n_actor=len(policy.actor_sizes),
            obs_size=policy.obs_size,
            action_size=policy.action_size,
            activation=ACTIVATIONS[policy.activation],
            n_envs=self.n_envs,
            exploration_noise=config.exploration_noise,
        )

    def _update_frame(self) -> Frame:
        config, policy = self.config, self.policy
        n_actor, n_critic = policy.params.size, policy.critic_params.size
        updates = max(1, config.gradient_steps)
        self.batch = self.replay.batch(config.batch * updates)
        everything = n_actor + n_critic
        rows, self._chunks = chunk_rows(config.batch, everything), n_chunks(config.batch, everything)
        layout = twin_critic.layout(rows, policy.actor_sizes, policy.critic_sizes)
        most = max(n_actor, n_critic)
        return Frame(
            kernel.TD3,
            actor_params=policy.params,
            critic_params=policy.critic_params,
            target_actor_params=self.target_actor_params,
            target_params=self.target_params,
            actor=np.array(policy.actor_sizes, np.int64),
            critic=np.array(policy.critic_sizes, np.int64),
            obs=self.batch.obs,
            actions=self.batch.actions,
            rewards=self.batch.rewards,
            next_obs=self.batch.next_obs,
            terminated=self.batch.terminated,
            discounts=self.batch.discounts,
            noise_rng=self.noise_rng,
            noise=np.zeros((config.batch * updates, policy.action_size), np.float32),
            **self.adam,
            grads=np.zeros((self._chunks, most), np.float32),
            squares=np.zeros(-(-most // optim.BLOCK), np.float32),
            stats=np.zeros((self._chunks, twin_critic.N_STATS)),
            totals=self._totals,
            works=np.zeros((self.team.n_ranks, layout["work_floats"]), np.float32),
            n_actor=len(policy.actor_sizes),
            n_critic=len(policy.critic_sizes),
            n_actor_params=n_actor,
            n_critic_params=n_critic,
            obs_size=policy.obs_size,
            action_size=policy.action_size,
            activation=ACTIVATIONS[policy.activation],
            batch=config.batch,
            n_updates=updates,
            chunk_rows=rows,
            steps=0,
            stage=kernel.LAST_STAGE,
            policy_delay=config.policy_delay,
            tau=config.tau,
            actor_rate=config.learning_rate,
            critic_rate=config.learning_rate,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            max_norm=config.max_grad_norm,
            target_noise=config.target_noise,
            noise_limit=config.noise_limit,
            **layout,
        )

    def _act(self, progress: float) -> NDArray[Any]:
        kernel.td3_act(self._act_frame.record)
        return self._act_frame.array("env_action")

    def _learn(self, n_updates: int, progress: float) -> dict[str, float]:
        self.replay.sample(self.config.batch, out=self.batch, batches=n_updates)
        self._totals[:] = 0.0
        self.updates = int(self.team.run(kernel.td3_update, self._frame.set(steps=self.updates).record, self._chunks))
        samples = max(self._totals[kernel.SAMPLES], 1.0)
        return {
            "critic_loss": self._totals[kernel.CRITIC_LOSS] / samples,
            "actor_loss": self._totals[kernel.ACTOR_LOSS] / max(self._totals[kernel.ACTOR_SAMPLES], 1.0),
            "q_value": self._totals[kernel.Q_VALUE] / samples,
        }

    def state_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything that decides how training goes on, by name; the arrays are live."""
        return (
            super().state_arrays()
            | self.adam
            | {
                "critic_params": self.policy.critic_params,
                "target_params": self.target_params,
                "target_actor_params": self.target_actor_params,
                "noise_rng": self.noise_rng,
            }
        )
