"""What off-policy learners on torch share, twin critics, and TD3."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from mileage.algorithms.describe import Sizes
from mileage.algorithms.off_policy import OffPolicy, OffPolicyStats
from mileage.algorithms.td3 import TD3, TD3Config
from mileage.algorithms.torch import TorchLearner
from mileage.algorithms.torch.on_policy import normals
from mileage.algorithms.twin_critic import TwinCritic
from mileage.buffers import NextObs, PrioritizedReplay
from mileage.contracts import Clock
from mileage.description import Boundary, Description, Work
from mileage.kernels import random
from mileage.kernels.machine.memory import denormals_flushed
from mileage.measure import Phase, PhaseClock
from mileage.policies.torch.policy import TorchDeterministic, TorchPolicy, TorchTwinCritic
from mileage.policies.torch.tensors import Adam, Inbox, LiveTensors, keep_freed_memory, torch_threads, useful_threads
from mileage.records import Record
from mileage.types import F32, F64, Array

_ADAM_EPS = 1e-8
_FIELDS = ("obs", "actions", "rewards", "next_obs", "terminated", "discounts", "weights")
# An update runs the networks forwards and backwards several times.
_PASSES_PER_UPDATE = 3


class TorchOffPolicy(TorchLearner, OffPolicy):
    """Collects into a replay buffer and learns from it, with any module."""

    policy: TorchPolicy
    separate: bool | None = None
    """Memory of its own on the device even if that is the CPU; for tests of the copies."""

    def _replay_arguments(self) -> Record:
        # Images are large, and all but the last of an episode are the next observation of another.
        next_obs = NextObs.DERIVED if self.policy.leaves else NextObs.STORED
        return super()._replay_arguments() | {"obs_dtype": self.policy.obs_dtype, "next_obs": next_obs}

    def _build(self) -> None:
        config, policy = self.config, self.policy
        # Priorities of one update decide what the next one samples: then batches are drawn one by one.
        together = 1 if isinstance(self.replay, PrioritizedReplay) else max(1, config.gradient_steps)
        self.batch = self.replay.batch(config.batch * together)
        self._updates_per_sample = together
        self._inbox = Inbox(
            {name: getattr(self.batch, name) for name in _FIELDS}, policy.device, separate=self.separate
        )
        self._targets: list[tuple[nn.Module, nn.Module]] = []
        self._optimizers: list[Adam] = []
        self._build_networks()
        tensors = {name: each for adam in self._optimizers for name, each in adam.tensors().items()}
        for index, (target, _) in enumerate(self._targets):
            tensors |= {f"target{index}.{name}": each for name, each in target.state_dict().items()}
        self._live = LiveTensors({**tensors, **self._more_tensors()})
        self._clock: Clock = PhaseClock()
        operations = policy.operations
        if policy.device.type == "cpu":
            keep_freed_memory()
        self._acting_threads = useful_threads(self.n_envs * operations, self.team.n_ranks)
        self._learning_threads = useful_threads(config.batch * operations * _PASSES_PER_UPDATE, self.team.n_ranks)

    @abc.abstractmethod
    def _build_networks(self) -> None:
        """Make targets and optimizers."""

    def _more_tensors(self) -> Mapping[str, Tensor]:
        """Other tensors that decide how training goes on."""
        return {}

    def _target_of(self, module: nn.Module) -> nn.Module:
        """A copy of `module` that follows it from afar."""
        target = copy.deepcopy(module).requires_grad_(False)
        self._targets.append((target, module))
        return target

    def _optimizer(self, name: str, parameters: Mapping[str, nn.Parameter]) -> Adam:
        adam = Adam(parameters, eps=_ADAM_EPS, name=name)
        self._optimizers.append(adam)
        return adam

    @torch.no_grad()
    def _follow(self) -> None:
        """Move all targets a share `tau` towards what they follow."""
        for target, module in self._targets:
            torch._foreach_lerp_(list(target.parameters()), list(module.parameters()), self.config.tau)
            for kept, new in zip(target.buffers(), module.buffers(), strict=True):
                kept.copy_(new)

    def iterate(self, clock: Clock, progress: float) -> OffPolicyStats:
        """Step the environments, then learn."""
        self._clock = clock
        with torch_threads(self._acting_threads):
            return super().iterate(clock, progress)

    def _seen(self) -> Any:
        """The current observations as the module sees them."""
        rows = torch.from_numpy(self.shown)
        if self._inbox.separate:
            with self._clock.phase(Phase.TRANSFER):
                rows = rows.to(self.policy.device)
        return self.policy.view(rows)

    def learn(self, n_updates: int) -> dict[str, float]:
        """Do `n_updates` updates on batches from the replay buffer; return mean losses."""
        totals: Tensor | None = None
        size = self.config.batch
        with torch_threads(self._learning_threads), denormals_flushed():
            for _ in range(n_updates // self._updates_per_sample):
                self.replay.sample(size, out=self.batch, batches=self._updates_per_sample)
                self.scale_batch()
                if self._inbox.separate:
                    with self._clock.phase(Phase.TRANSFER):
                        self._inbox.send()
                for first in range(0, self.batch.size, size):
                    rows = slice(first, first + size)
                    batch = {name: each[rows] for name, each in self._inbox.tensors.items()}
                    self._look_at(batch)
                    self.updates += 1
                    stats = self._update(batch)
                    totals = stats if totals is None else totals + stats
        assert totals is not None
        return self._named_losses((totals / n_updates).double().cpu().numpy())

    def _look_at(self, batch: Record) -> None:
        """Turn rows of a batch into what the module sees, and masks of the next observations if there are any."""
        size, n = self.policy.obs_size, self.policy.n_actions
        if self.policy.structured_actions:
            batch["masks"] = batch["next_obs"][:, size : size + n]
        for name in ("obs", "next_obs"):
            batch[name] = self.policy.view(batch[name][:, :size])

    @abc.abstractmethod
    def _update(self, batch: Record) -> Tensor:
        """One update on a batch, tensors by the names of `Batch`; returns statistics, a vector."""

    @abc.abstractmethod
    def _named_losses(self, means: F64) -> dict[str, float]:
        """Names for the means of what `_update` returned."""

    passes: ClassVar[int]
    """Forward passes that an update is about as much work as."""

    @abc.abstractmethod
    def _learn_work(self, actor: Sizes, critic: Sizes) -> Work:
        """The updates of one iteration with plain networks of these widths."""

    def _methods(self) -> tuple[Boundary, ...]:
        """Where an update spends its time, by stage."""
        from mileage.algorithms.torch.describe import stages

        forward = "target, critic and actor forward"
        own = stages(self, learn="gather and bookkeeping", _update=forward, _follow="polyak")
        return (*own, *stages(self.replay, sample="sample"))

    def describe(self) -> Description:
        """Acting and learning: their work, and the methods that an update spends its time in."""
        from mileage.algorithms.torch.describe import off_policy

        return off_policy(
            self, work=self._learn_work, passes=self.passes, tensors=self._live.arrays(), methods=self._methods()
        )

    def _learner_arrays(self) -> dict[str, Array]:
        return super()._learner_arrays() | self._live.arrays()

    def counters(self) -> dict[str, int]:
        """The scalars that belong to `state_arrays`."""
        steps = {f"adam_steps{index}": adam.steps for index, adam in enumerate(self._optimizers)}
        return super().counters() | steps

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        self._live.load()
        super()._set_counters(counters)
        for index, adam in enumerate(self._optimizers):
            adam.set_steps(counters[f"adam_steps{index}"])


def bootstrap(batch: Record, values: Tensor) -> Tensor:
    """Bellman targets (B,): rewards plus what the values of the next observations are worth."""
    alive = batch["discounts"].masked_fill(batch["terminated"], 0.0)
    return torch.addcmul(batch["rewards"], alive, values)


# --- What SAC and TD3 on torch share: actor and critics, their optimizers, and noise of their own ---
class TorchTwinCriticLearner(TorchOffPolicy):
    """An off-policy learner of modules `actor(obs)` and `critic(obs, action)`."""

    Native: ClassVar[type[TwinCritic]]
    noise_shape: ClassVar[tuple[int, ...]] = ()
    """Of the noise of one update, before samples and entries of an action."""
    policy: TorchTwinCritic

    def _build_networks(self) -> None:
        config, policy = self.config, self.policy
        actor, critic = policy.module.get_submodule("actor"), policy.module.get_submodule("critic")
        self._actor, self._critic = policy.fast(actor), policy.fast(critic)
        self._target_critic = policy.fast(self._target_of(critic))
        own = dict(critic.named_parameters(prefix="critic"))
        # Features that both share learn from the critic's loss.
        shared = {id(each) for each in own.values()}
        rest = {name: each for name, each in actor.named_parameters(prefix="actor") if id(each) not in shared}
        self._critic_adam = self._optimizer("critic_adam", own)
        self._actor_adam = self._optimizer("actor_adam", rest)
        self.noise_rng = random.streams(self.seed, config.batch, "noise")
        noise = np.zeros((*self.noise_shape, config.batch, policy.action_size), np.float32)
        self._noise = Inbox({"noise": noise}, policy.device, separate=self.separate)

    @torch.no_grad()
    def act(self, progress: float) -> Array:
        """Write `actions` as they are stored, and return them as the environment wants them."""
        noise = normals(random.uniform_rows(self.action_rng, 2 * self.policy.action_size))
        head = self._actor(self._seen())
        if self._inbox.separate:
            with self._clock.phase(Phase.TRANSFER):
                head = head.cpu()
        self.actions[:] = self._explore(head, noise)
        return self.policy.to_env(self.actions)

    @abc.abstractmethod
    def _explore(self, head: Tensor, noise: F32) -> F32:
        """Actions (N, A) in [-1, 1] from the actor's output and standard normal draws (N, A)."""

    def _learn_critics(self, batch: Record, targets: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """One step of both critics towards `targets` (B,), their errors weighed; the loss and the mean value."""
        first, second = self._critic(batch["obs"], batch["actions"])
        loss = weight * ((first - targets).square().mean() + (second - targets).square().mean())
        value = 0.5 * (first.detach().mean() + second.detach().mean())
        self._critic_adam.step(loss, self.rate, self.config.max_grad_norm)
        return loss.detach(), value

    def _learn_work(self, actor: Sizes, critic: Sizes) -> Work:
        return self.Native.learn_work(self.config, actor, critic, self.config.batch, 1)

    def _methods(self) -> tuple[Boundary, ...]:
        from mileage.algorithms.torch.describe import stages

        critic = stages(self._critic_adam, gradients="critic backward", descend="critic optimizer")
        actor = stages(self._actor_adam, gradients="actor backward", descend="actor optimizer")
        return (*super()._methods(), *critic, *actor)

    def _learner_arrays(self) -> dict[str, Array]:
        return super()._learner_arrays() | {"noise_rng": self.noise_rng}


# --- TD3 on torch; see `mileage.algorithms.td3` ---
class TorchTD3(TorchTwinCriticLearner):
    """TD3 with any modules `actor(obs)` and `critic(obs, action)`."""

    Native, Config, Policy = TD3, TD3Config, TorchDeterministic
    config: TD3Config
    passes = 10

    def _build_networks(self) -> None:
        super()._build_networks()
        self._target_actor = self.policy.fast(self._target_of(self.policy.module.get_submodule("actor")))

    def _explore(self, head: Tensor, noise: F32) -> F32:
        deviation = np.float32(self.config.exploration_noise)
        return np.clip(torch.tanh(head).numpy() + deviation * noise, -1.0, 1.0)

    def _update(self, batch: Record) -> Tensor:
        config = self.config
        draws = normals(random.uniform_rows(self.noise_rng, 2 * self.policy.action_size))
        draws *= np.float32(config.target_noise)
        noise = self._noise.put("noise", np.clip(draws, -config.noise_limit, config.noise_limit))
        with torch.no_grad():
            action = torch.tanh(self._target_actor(batch["next_obs"]))
            action = (action + noise).clamp(-1.0, 1.0)
            first, second = self._target_critic(batch["next_obs"], action)
            targets = bootstrap(batch, torch.minimum(first, second))
        critic_loss, value = self._learn_critics(batch, targets, 1.0)
        actor_loss, learnt = torch.zeros_like(value), torch.zeros_like(value)
        if self.updates % config.policy_delay == 0:
            actor_loss = -self._critic(batch["obs"], torch.tanh(self._actor(batch["obs"])))[0].mean()
            self._actor_adam.step(actor_loss, self.rate, config.max_grad_norm)
            self._follow()
            learnt += 1.0
        return torch.stack([critic_loss, actor_loss.detach(), learnt, value])

    def _named_losses(self, means: F64) -> dict[str, float]:
        critic_loss, actor_loss, learnt, value = (float(mean) for mean in means)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss / learnt if learnt else 0.0, "q_value": value}
