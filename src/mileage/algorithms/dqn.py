"""Deep Q-learning (Mnih et al., 2015) with the parts of Rainbow (Hessel et al., 2018, arXiv:1710.02298) that pay on
small problems: double and dueling networks, n-step returns, prioritised replay.

The update is one native call (`mileage.kernels.dqn`) for any number of gradient steps per environment step.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mileage.algorithms.configs import OffPolicyConfig
from mileage.algorithms.describe import Sizes, native, network_buffers, one_forward, q_learn
from mileage.algorithms.off_policy import OffPolicy, SplitBatch
from mileage.buffers import PrioritizedReplay, ReplayBuffer
from mileage.config import Bound, Count, Share
from mileage.contracts import EnvSpec
from mileage.description import Description, Work
from mileage.errors import UsageError
from mileage.kernels import dqn as kernel
from mileage.kernels import optim
from mileage.kernels.machine.frames import Frame
from mileage.kernels.machine.memory import aligned_zeros
from mileage.policies.mlp import ACTIVATIONS
from mileage.policies.off_policy import QNetwork
from mileage.records import ReadRecord, Record, named
from mileage.types import F64, Array


@dataclasses.dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """Hyperparameters of DQN."""

    train_every: int = 4
    batch: int = 64
    capacity: int = 100_000
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (64, 64)
    tau: float = 1.0
    """Share that the target network moves towards the online one when it moves."""
    target_every: Count = 250
    """Updates (not steps) between moves of the target network."""
    double: bool = True
    """Choose the bootstrap action with the online network."""
    dueling: bool = False
    """Separate the state's value from the actions' advantages."""
    prioritised: bool = False
    """Sample transitions in proportion to their last error."""
    priority_exponent: Share = 0.6
    """How much priorities matter, 0 to 1."""
    priority_beta: Share = 0.4
    """How far sampling is corrected at the start, 0 to 1; rises to 1 linearly."""
    priority_updates: Count = 10_000
    """Updates over which it rises."""
    epsilon_start: Share = 1.0
    """Share of random actions at the start."""
    epsilon_end: Share = 0.05
    """Share of random actions after exploration."""
    exploration: Share = 0.1
    """Share of the training over which it falls."""
    huber: Bound = 1.0
    """Error beyond which the loss is linear."""

    def epsilon(self, progress: float) -> float:
        """Share of random actions after a share `progress` of the training."""
        done = min(1.0, progress / self.exploration) if self.exploration else 1.0
        return float(self.epsilon_start + done * (self.epsilon_end - self.epsilon_start))


def make_replay(config: DQNConfig, arguments: ReadRecord) -> ReplayBuffer:
    """The replay buffer of a configuration; `arguments` are those that every kind of it takes."""
    if not config.prioritised:
        return ReplayBuffer(**arguments)
    beta, samples = (config.priority_beta, 1.0), config.priority_updates
    return PrioritizedReplay(**arguments, alpha=config.priority_exponent, beta=beta, beta_samples=samples)


class DQN(OffPolicy):
    """DQN on built parts: a vector environment, a policy, a team of threads.

    `update_frame` and `act_frame` are the arguments of its kernels, `pieces` what the update's threads share out.
    """

    Config = DQNConfig
    config: DQNConfig
    policy: QNetwork

    @classmethod
    def kernels(cls, native: bool) -> tuple[str, ...]:
        """Kernels that a run needs, by their names in `precompile`; the first takes longest to compile."""
        return ("dqn_update", "dqn_act", *(("evaluate",) if native else ()))

    @classmethod
    def check_spec(cls, spec: EnvSpec) -> None:
        """UsageError if actions are not discrete."""
        if spec.branches:
            raise UsageError("dqn needs a single discrete action: use ppo or a2c for actions of several parts")
        if not spec.n_actions:
            raise UsageError("dqn needs discrete actions: use sac, td3 or ppo for continuous ones")

    @classmethod
    def make_policy(cls, config: DQNConfig, spec: EnvSpec, seed: int) -> QNetwork:
        """The networks for an environment."""
        network = named(config, "hidden activation dueling") | named(spec, "masked")
        return QNetwork(spec.obs_size, spec.n_actions, **network, seed=seed)

    def _make_replay(self) -> ReplayBuffer:
        return make_replay(self.config, self._replay_arguments())

    def _build(self) -> None:
        config, policy = self.config, self.policy
        self.target_params = aligned_zeros(policy.params.size)
        self.target_params[:] = policy.params
        n_params = policy.params.size
        # Priorities of one update decide what the next one samples: then batches are drawn one by one.
        self._updates_per_call = 1 if config.prioritised else max(1, config.gradient_steps)
        samples = config.batch * self._updates_per_call
        self.batch = self.replay.batch(samples)
        split = SplitBatch(self.batch, policy.obs_size, policy.n_actions) if policy.structured_actions else None
        self._split, seen = split, split or self.batch
        self._td_errors = np.zeros(samples, np.float32)
        self.adam = {"adam_mean": aligned_zeros(n_params), "adam_square": aligned_zeros(n_params)}
        self.totals: F64 = np.zeros(kernel.N_STATS)
        self.pieces = kernel.n_pieces(config.batch, policy.actor_sizes)
        ahead_rows = min(kernel.AHEAD_ROWS, samples)
        layout = kernel.layout(config.batch, ahead_rows, policy.actor_sizes, self.pieces)
        network: Record = named(policy, "params n_actions obs_size") | {
            "sizes": np.array(policy.actor_sizes, np.int64),
            "n_sizes": len(policy.actor_sizes),
            "activation": ACTIVATIONS[policy.activation],
            "dueling": int(policy.dueling),
        }
        self.update_frame = Frame(
            kernel.MASKED_DQN if split else kernel.DQN,
            **(network | self.adam | optim.adam_fields(config.learning_rate, 1e-8, config.max_grad_norm)),
            **named(self, "target_params totals pieces"), **named(seen, "obs next_obs"),
            **named(self.batch, "actions rewards terminated discounts weights"),
            **(named(split, "masks") if split else {}),
            **named(config, "batch target_every tau huber"), td_errors=self._td_errors,
            next_q=np.zeros((samples, policy.n_actions), np.float32), grads=aligned_zeros(n_params),
            squares=np.zeros(self.pieces, np.float32), works=aligned_zeros(self.team.n_ranks * layout["work_floats"]),
            shared=aligned_zeros(layout.pop("shared_floats")), n_params=n_params, double=int(config.double),
            n_updates=self._updates_per_call, ahead_rows=ahead_rows, steps=0, stage=kernel.LAST_STAGE, **layout,
        )  # fmt: skip
        self._choices = np.zeros(self.n_envs, np.int64)
        self.act_frame = Frame(
            kernel.MASKED_ACT if split else kernel.ACT, **(named(self, "masks") if split else {}),
            **(network | named(self, "action_rng n_envs")), obs=self.shown, actions=self._choices,
            works=np.zeros(self.n_envs * sum(policy.actor_sizes), np.float32), epsilon=config.epsilon_start,
        )  # fmt: skip

    def act(self, progress: float) -> Array:
        """Write `actions` as they are stored, and return them as the environment wants them."""
        kernel.dqn_act(self.act_frame.set(epsilon=self.config.epsilon(progress)).record)
        self.actions[:, 0] = self._choices
        return self._choices

    def _set_rate(self, rate: float) -> None:
        super()._set_rate(rate)
        self.update_frame.set(rate=rate)

    def learn(self, n_updates: int) -> dict[str, float]:
        """Do `n_updates` updates on batches from the replay buffer; return mean losses."""
        config = self.config
        self.totals[:] = 0.0
        for _ in range(n_updates // self._updates_per_call):
            self.replay.sample(config.batch, out=self.batch, batches=self._updates_per_call)
            self.scale_batch()
            if self._split:
                self._split.take()
            self.updates = int(
                self.team.run(kernel.dqn_update, self.update_frame.set(steps=self.updates).record, self.pieces)
            )
            if isinstance(self.replay, PrioritizedReplay):
                self._set_priorities(self.replay, np.abs(self._td_errors))
        samples = max(self.totals[kernel.SAMPLES], 1.0)
        return {"loss": self.totals[kernel.LOSS] / samples, "q_value": self.totals[kernel.Q_VALUE] / samples}

    @staticmethod
    def learn_work(config: DQNConfig, sizes: Sizes, pieces: int) -> Work:
        """The updates of one iteration, the network cut into `pieces`."""
        updates = max(1, config.gradient_steps)
        return q_learn(sizes, batch=config.batch, updates=updates, pieces=pieces, double=config.double)

    def describe(self) -> Description:
        """Acting and learning: their calls, stages and work."""
        from mileage.algorithms.describe_learners import NativeUpdate, native_off_policy

        config, policy, every = self.config, self.policy, self.config.target_every
        return native_off_policy(
            self,
            NativeUpdate(kernel.dqn_update, self.update_frame, self.pieces, kernel.STAGES, ("rate",), every, True),
            native(kernel, "dqn_act"),
            learn=self.learn_work(config, policy.actor_sizes, self.pieces),
            inference=one_forward(self.n_envs, policy.actor_sizes),
            networks=network_buffers([policy.params], [self.target_params], list(self.adam.values())),
        )

    def _learner_arrays(self) -> dict[str, Array]:
        return super()._learner_arrays() | self.adam | {"target_params": self.target_params}
