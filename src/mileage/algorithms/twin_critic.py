"""What SAC and TD3 share: an actor and two critics that learn in one native call, and a target of the critics."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from mileage.algorithms.configs import OffPolicyConfig
from mileage.algorithms.describe import Sizes, native, network_buffers, one_forward, twin_critic_learn
from mileage.algorithms.off_policy import OffPolicy
from mileage.contracts import EnvSpec
from mileage.description import Description, Work
from mileage.errors import UsageError
from mileage.kernels import optim, random, twin_critic
from mileage.kernels.machine.frames import Frame
from mileage.kernels.machine.team import chunk_rows, n_chunks
from mileage.policies.mlp import ACTIVATIONS
from mileage.policies.off_policy import TwinCriticPolicy
from mileage.records import Record, named
from mileage.types import F32, F64, Array


class TwinCritic(OffPolicy):
    """An off-policy learner of an actor and two critics, on native kernels.

    Attributes for whoever measures it:
        update_frame, act_frame: arguments of its kernels.
        chunk_rows: samples of the chunks that a batch is cut into.
        pieces: how many chunks there are, which the update's threads share out.
    """

    Policy: ClassVar[type[TwinCriticPolicy]]
    update_kernel: ClassVar[Callable[..., Any]]
    """Learns from a frame's batch, on a team."""
    act_kernel: ClassVar[Callable[..., Any]]
    """Acts on a frame's observations."""
    stages: ClassVar[tuple[str, ...]]
    """Of `update_kernel`."""
    rates: ClassVar[tuple[str, ...]] = ("actor_rate", "critic_rate")
    """Fields of `update_frame` that hold a learning rate."""
    judges: ClassVar[int]
    """Critics that judge the actor's actions in its loss."""
    config: OffPolicyConfig
    policy: TwinCriticPolicy

    @classmethod
    def kernels(cls, native: bool) -> tuple[str, ...]:
        """Kernels that a run needs, by their names in `precompile`; the first takes longest to compile."""
        return (cls.update_kernel.__name__, cls.act_kernel.__name__, *(("evaluate",) if native else ()))

    @classmethod
    def check_spec(cls, spec: EnvSpec) -> None:
        """UsageError if actions are discrete."""
        needs = f"{cls.__name__.lower()} needs continuous actions"
        if spec.n_actions:
            raise UsageError(f"{needs}: use dqn or ppo for discrete ones")
        if spec.branches:
            raise UsageError(f"{needs}: use ppo or a2c for actions with choices in them")

    @classmethod
    def make_policy(cls, config: OffPolicyConfig, spec: EnvSpec, seed: int) -> TwinCriticPolicy:
        """The networks for an environment."""
        network = named(config, "hidden activation")
        return cls.Policy(spec.obs_size, spec.action_low, spec.action_high, **network, seed=seed)

    def _build(self) -> None:
        config, policy = self.config, self.policy
        self.target_params: F32 = policy.critic_params.copy()
        self.noise_rng = random.streams(self.seed, config.batch, "noise")
        sizes = {"actor": policy.params.size, "critic": policy.critic_params.size}
        self.adam = {
            f"{network}_{moment}": np.zeros(size, np.float32)
            for network, size in sizes.items()
            for moment in ("mean", "square")
        }
        self.totals: F64 = np.zeros(twin_critic.N_STATS)
        """Sums over the samples of one call of `learn`, in the order of its kernel."""
        self._updates_per_call = max(1, config.gradient_steps)
        self.batch = self.replay.batch(config.batch * self._updates_per_call)
        everything = sum(sizes.values())
        self.chunk_rows, self.pieces = chunk_rows(config.batch, everything), n_chunks(config.batch, everything)
        self.update_frame, self.act_frame = self._update_frame(), self._act_frame()

    @abc.abstractmethod
    def _act_frame(self) -> Frame:
        """The arguments of `act_kernel`."""

    @abc.abstractmethod
    def _update_frame(self) -> Frame:
        """The arguments of `update_kernel`."""

    def _actor_fields(self) -> Record:
        """Fields of both frames."""
        policy = self.policy
        return named(policy, "obs_size action_size") | {
            "actor_params": policy.params,
            "actor": np.array(policy.actor_sizes, np.int64),
            "n_actor": len(policy.actor_sizes),
            "activation": ACTIVATIONS[policy.activation],
        }

    def _acting_fields(self) -> Record:
        """Fields of a frame that acts, but for those of one algorithm."""
        policy = self.policy
        memory = {
            "env_action": np.zeros_like(self.actions),
            "works": np.zeros(self.n_envs * sum(policy.actor_sizes) + policy.action_size, np.float32),
        }
        own = named(self, "actions action_rng n_envs") | {"obs": self.shown}
        return self._actor_fields() | memory | named(policy, "low high") | own

    def _learning_fields(self) -> Record:
        """Fields of a frame that learns, but for those of one algorithm."""
        config, policy, batch = self.config, self.policy, self.batch
        n_actor, n_critic = policy.params.size, policy.critic_params.size
        most = max(n_actor, n_critic)
        layout = twin_critic.layout(self.chunk_rows, policy.actor_sizes, policy.critic_sizes)
        fields = self._actor_fields() | named(policy, "critic_params") | named(self, "target_params noise_rng totals")
        fields |= named(batch, "obs actions rewards next_obs terminated discounts") | named(config, "batch tau")
        adam = optim.adam_fields(config.learning_rate, 1e-8, config.max_grad_norm)
        rate = adam.pop("rate")
        return fields | self.adam | adam | layout | {
            "critic": np.array(policy.critic_sizes, np.int64),
            "grads": np.zeros((self.pieces, most), np.float32),
            "squares": np.zeros(-(-most // optim.BLOCK), np.float32),
            "stats": np.zeros((self.pieces, twin_critic.N_STATS)),
            "works": np.zeros((self.team.n_ranks, layout["work_floats"]), np.float32),
            "n_critic": len(policy.critic_sizes),
            "n_actor_params": n_actor,
            "n_critic_params": n_critic,
            "n_updates": self._updates_per_call,
            "chunk_rows": self.chunk_rows,
            "steps": 0,
            "actor_rate": rate,
            "critic_rate": rate,
        }  # fmt: skip

    def act(self, progress: float) -> Array:
        """Write `actions` as they are stored, and return them as the environment wants them."""
        self.act_kernel(self.act_frame.record)
        return self.act_frame.array("env_action")

    def _set_rate(self, rate: float) -> None:
        super()._set_rate(rate)
        self.update_frame.set(**dict.fromkeys(self.rates, rate))

    def learn(self, n_updates: int) -> dict[str, float]:
        """Do `n_updates` updates on batches from the replay buffer; return mean losses."""
        self.replay.sample(self.config.batch, out=self.batch, batches=n_updates)
        self.scale_batch()
        self.totals[:] = 0.0
        frame = self.update_frame.set(steps=self.updates)
        self.updates = int(self.team.run(self.update_kernel, frame.record, self.pieces))
        return self._losses()

    @abc.abstractmethod
    def _losses(self) -> dict[str, float]:
        """Means by name, from `totals`."""

    @classmethod
    def actor_every(cls, config: Any) -> int:
        """Updates of the critics per update of the actor."""
        return 1

    @classmethod
    def learn_work(cls, config: Any, actor: Sizes, critic: Sizes, rows: int, chunks: int) -> Work:
        """The updates of one iteration, batches cut into `chunks` of `rows`."""
        size = {"rows": rows, "chunks": chunks, "batch": config.batch, "updates": max(1, config.gradient_steps)}
        return twin_critic_learn(actor, critic, **size, judges=cls.judges, actor_every=cls.actor_every(config))

    def target_arrays(self) -> list[F32]:
        """The parameters of all target networks."""
        return [self.target_params]

    def describe(self) -> Description:
        """Acting and learning: their calls, stages and work."""
        from mileage.algorithms.describe_learners import NativeUpdate, native_off_policy

        policy, config = self.policy, self.config
        return native_off_policy(
            self,
            NativeUpdate(
                self.update_kernel, self.update_frame, self.pieces, self.stages, self.rates, self.actor_every(config)
            ),
            native(self, "act_kernel", self.act_kernel.__name__),
            learn=self.learn_work(config, policy.actor_sizes, policy.critic_sizes, self.chunk_rows, self.pieces),
            inference=one_forward(self.n_envs, policy.actor_sizes),
            networks=network_buffers(
                [policy.params, policy.critic_params], self.target_arrays(), list(self.adam.values())
            ),
        )

    def _learner_arrays(self) -> dict[str, Array]:
        own = {"critic_params": self.policy.critic_params, "target_params": self.target_params}
        return super()._learner_arrays() | self.adam | own | {"noise_rng": self.noise_rng}
