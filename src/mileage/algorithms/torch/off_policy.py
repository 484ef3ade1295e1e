"""What off-policy engines on torch share: batches on the device, target networks, optimizers, checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mileage._errors import UsageError
from mileage.algorithms._off_policy import OffPolicy, OffPolicyStats
from mileage.buffers import NextObs, PrioritizedReplay, ReplayBuffer
from mileage.meter import Phase, PhaseClock
from mileage.policies.torch.adam import Adam
from mileage.policies.torch.policy import TorchPolicy
from mileage.policies.torch.tensors import Inbox, LiveTensors, keep_freed_memory, torch_threads, useful_threads

_ADAM_EPS = 1e-8
_FIELDS = ("obs", "actions", "rewards", "next_obs", "terminated", "discounts", "weights")
# An update runs the networks forwards and backwards several times.
_PASSES_PER_UPDATE = 3


class TorchOffPolicy(OffPolicy):
    """Collects into a replay buffer and learns from it, with any module."""

    policy: TorchPolicy
    # Memory of its own on the device even if that is the CPU; for tests of the copies.
    separate: bool | None = None

    def _make_replay(self) -> ReplayBuffer:
        config, policy = self.config, self.policy
        common: dict[str, Any] = {
            "obs_dtype": policy.obs_dtype,
            "n_envs": self.n_envs,
            # Images are large, and all but the last of an episode are the next observation of another.
            "next_obs": NextObs.DERIVED if policy.leaves else NextObs.STORED,
            "n_step": config.n_step,
            "gamma": config.gamma,
            "seed": self.seed,
        }
        if not getattr(config, "prioritised", False):
            return ReplayBuffer(config.capacity, policy.obs_size, policy.action_size, **common)
        return PrioritizedReplay(
            config.capacity,
            policy.obs_size,
            policy.action_size,
            **common,
            alpha=config.priority_exponent,
            beta=(config.priority_beta, 1.0),
            beta_samples=config.priority_updates,
        )

    def _build(self) -> None:
        config, policy = self.config, self.policy
        self.obs = np.array(self.env.obs)
        self._following = np.zeros_like(self.obs)
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
        operations = policy.operations
        if policy.device.type == "cpu":
            keep_freed_memory()
        self._acting_threads = useful_threads(self.n_envs * operations, self.team.n_ranks)
        self._learning_threads = useful_threads(config.batch * operations * _PASSES_PER_UPDATE, self.team.n_ranks)

    def _build_networks(self) -> None:
        """Make targets and optimizers."""
        raise NotImplementedError  # an abstract method: each algorithm has its own

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

    def iterate(self, clock: PhaseClock, progress: float) -> OffPolicyStats:
        """Step the environments, then learn."""
        self._clock = clock
        with torch_threads(self._acting_threads):
            return super().iterate(clock, progress)

    def _seen(self) -> Any:
        """The current observations as the module sees them."""
        rows = torch.from_numpy(self.obs)
        if self._inbox.separate:
            with self._clock.phase(Phase.TRANSFER):
                rows = rows.to(self.policy.device)
        return self.policy.view(rows)

    def _learn(self, n_updates: int, progress: float) -> dict[str, float]:
        totals: Tensor | None = None
        size = self.config.batch
        with torch_threads(self._learning_threads):
            for _ in range(n_updates // self._updates_per_sample):
                self.replay.sample(size, out=self.batch, batches=self._updates_per_sample)
                if self._inbox.separate:
                    with self._clock.phase(Phase.TRANSFER):
                        self._inbox.send()
                for first in range(0, self.batch.size, size):
                    rows = slice(first, first + size)
                    batch = {name: each[rows] for name, each in self._inbox.tensors.items()}
                    batch["obs"], batch["next_obs"] = (self.policy.view(batch[name]) for name in ("obs", "next_obs"))
                    self.updates += 1
                    stats = self._update(batch)
                    totals = stats if totals is None else totals + stats
        assert totals is not None
        return self._named_losses((totals / n_updates).double().cpu().numpy())

    def _update(self, batch: dict[str, Any]) -> Tensor:
        """One update on a batch, tensors by the names of `Batch`; returns statistics, a vector."""
        raise NotImplementedError  # an abstract method: each algorithm has its own

    def _named_losses(self, means: NDArray[np.float64]) -> dict[str, float]:
        """Names for the means of what `_update` returned."""
        raise NotImplementedError  # an abstract method: each algorithm has its own

    def state_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything that decides how training goes on, by name; call `set_counters` after writing to it."""
        arrays: dict[str, np.ndarray[Any, Any]] = self.policy.live_arrays() | self._live.arrays()
        arrays["action_rng"] = self.action_rng
        if hasattr(self.env, "elapsed"):
            # Other environments start anew, and their running episodes with them.
            env = self.env
            arrays |= {"env_state": env.state, "env_elapsed": env.elapsed, "env_rng": env.rng, "env_obs": env.obs}
            arrays |= {"episode": self.episode, "obs": self.obs}
        return arrays

    def counters(self) -> dict[str, int]:
        """The scalars that belong to `state_arrays`."""
        steps = {f"adam_steps{index}": adam.steps for index, adam in enumerate(self._optimizers)}
        return super().counters() | steps

    def set_counters(self, counters: dict[str, int]) -> None:
        """Put back what `counters` returned, after the arrays of `state_arrays`."""
        if counters.keys() != self.counters().keys() or min(counters.values()) < 0:
            raise UsageError(f"counters cannot be {counters}")
        self.policy.loaded()
        self._live.load()
        super().set_counters(counters)
        for index, adam in enumerate(self._optimizers):
            adam.set_steps(counters[f"adam_steps{index}"])


def bootstrap(batch: dict[str, Any], values: Tensor) -> Tensor:
    """Bellman targets (B,): rewards plus what the values of the next observations are worth."""
    alive = batch["discounts"].masked_fill(batch["terminated"], 0.0)
    return torch.addcmul(batch["rewards"], alive, values)
