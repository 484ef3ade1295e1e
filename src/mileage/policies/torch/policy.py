"""A module as a policy: observations in, actions out; made from a name or a user's module."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from mileage.contracts import Distribution, EnvSpec, Policy
from mileage.errors import UsageError
from mileage.policies import mlp
from mileage.policies.torch import images, networks
from mileage.policies.torch.tensors import LiveTensors, map_state, torch_threads, useful_threads
from mileage.system import usable_cores
from mileage.types import F32, U8, Array, Memory, ObsLeaf

_CONVOLUTIONS = (*(nn.Conv1d, nn.Conv2d, nn.Conv3d), *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
# What mixes the rows of a batch, or draws anew for each.
_MIXING = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
)


@runtime_checkable
class Recurrent(Protocol):
    """A module with a memory."""

    def initial_state(self, n: int) -> Any:
        """The memory of `n` fresh episodes: tensors of `n` rows, alone or in tuples and dicts."""


@runtime_checkable
class _Flat(Protocol):
    def flat(self) -> F32:
        """The parameters as the native policy's vector, (P,) float32."""


@runtime_checkable
class _Gaussian(Protocol):
    log_std: Tensor


class TorchPolicy(Policy):
    """What all policies made of a module have in common.

    Observations are rows, (N, O) float32 or packed (N, B) uint8 (`envs.gymnasium.structured`). A module sees what the
    environment gives: (N, O) float32, (N, *shape) float32 or uint8, or a dict of these. It is recurrent if it has
    `initial_state(n)`, which returns tensors of `n` rows, alone or in tuples and dicts.
    """

    def __init__(self, module: nn.Module, spec: EnvSpec, device: torch.device, compile_mode: str | None = None) -> None:
        self.module = module.to(device)
        self.device, self.compile_mode = device, compile_mode
        self.leaves = spec.leaves
        self.obs_size, self.n_actions = spec.obs_size, spec.n_actions
        self.obs_dtype: type[np.generic] = np.uint8 if self.leaves else np.float32
        self.low: F32 = np.zeros(1, np.float32) if self.n_actions else np.array(spec.action_low, np.float32).ravel()
        self.high: F32 = np.zeros(1, np.float32) if self.n_actions else np.array(spec.action_high, np.float32).ravel()
        self.action_size, self.branches = self.low.size, spec.choices
        self.structured_actions = spec.masked or bool(spec.branches)
        self.obs_mean: F32 = np.zeros(self.obs_size, np.float32)
        self.obs_scale: F32 = np.ones(self.obs_size, np.float32)
        self.obs_limit = math.inf
        self.recurrent = isinstance(module, Recurrent)
        self._live = LiveTensors({f"module.{name}": tensor for name, tensor in self.module.state_dict().items()})
        self._compiled: dict[nn.Module, Callable[..., Any]] = {}

    like: ClassVar[type[nn.Module]]
    """The network of the native policy as a module, with its weights."""

    @classmethod
    @abc.abstractmethod
    def for_leaves(cls, leaves: Sequence[ObsLeaf], config: Any, spec: EnvSpec) -> nn.Module:
        """The default network for observations of any form."""

    @classmethod
    def check(cls, module: nn.Module, algorithm: str) -> None:
        """Refuse a user's module that `algorithm` cannot train."""
        if isinstance(module, Recurrent):
            raise UsageError(
                f"{algorithm} learns from single steps and cannot train a memory: use ppo, or stack frames"
            )

    def fast(self, module: nn.Module | None = None) -> Callable[..., Any]:
        """The module, or another one, to be called often with as many rows: compiled if that was asked for."""
        module = self.module if module is None else module
        if self.compile_mode is None:
            return module
        if module not in self._compiled:
            self._compiled[module] = torch.compile(module, mode=self.compile_mode)
        return self._compiled[module]

    @property
    def params(self) -> F32:
        """All parameters as one vector (P,) float32, in the native policy's order if it has the same network."""
        if isinstance(self.module, _Flat):
            return self.module.flat()
        parts = [each.detach().cpu().numpy().ravel() for each in self.module.parameters()]
        return np.concatenate(parts).astype(np.float32)

    @functools.cached_property
    def operations(self) -> float:
        """Floating-point operations of a forward pass per observation, about: two per use of a weight."""
        counted = [0.0]

        def count(module: nn.Module, _: Any, output: Any) -> None:
            # torch's own counter would import its compiler, which takes a second.
            places = math.prod(output.shape[2:]) if isinstance(module, _CONVOLUTIONS) else 1
            counted[0] += 2.0 * places * sum(each.numel() for each in module.parameters(recurse=False))

        hooks = [module.register_forward_hook(count) for module in self.module.modules()]
        rows = torch.zeros(1, self.obs_size, dtype=getattr(torch, self.obs_dtype.__name__), device=self.device)
        try:
            with torch.no_grad():
                self.choose(self.view(rows), self.initial_state(1), None)
        finally:
            for hook in hooks:
                hook.remove()
        return max(counted[0], 2.0 * sum(each.numel() for each in self.module.parameters()))

    def _threads_for(self, rows: int) -> int:
        """How many threads to choose actions for so many rows with."""
        # Counted if a learner has done so; a module that is only played is not run once more for it.
        known: float | None = vars(self).get("operations")
        operations = 2.0 * sum(each.numel() for each in self.module.parameters()) if known is None else known
        return useful_threads(rows * operations, self.most_threads or usable_cores())

    @functools.cached_property
    def row_by_row(self) -> bool:
        """Whether rows of a batch are computed apart from each other, so that a batch may be cut into pieces."""
        return not self.recurrent and not any(isinstance(each, _MIXING) for each in self.module.modules())

    def live_arrays(self) -> dict[str, Array]:
        """What a checkpoint holds of the policy, by name; call `loaded` after writing to it."""
        return {"obs_mean": self.obs_mean, "obs_scale": self.obs_scale, **self._live.arrays()}

    def loaded(self) -> None:
        """Take over what was written to `live_arrays`."""
        self._live.load()

    def view(self, rows: Tensor) -> Any:
        """What the module sees of observation rows (N, O) or (N, B): the same memory."""
        if self.leaves is None:
            return rows
        parts = {}
        for leaf in self.leaves:
            part = rows[:, leaf.start : leaf.stop].view(getattr(torch, leaf.dtype))
            parts[leaf.name] = part.view(len(rows), *leaf.shape) if len(leaf.shape) > 1 else part
        return parts if self.leaves[0].name else parts[""]

    def normalised(self, obs: Array, out: Array | None = None) -> Array:
        """Observation rows centred and scaled by the statistics, if there are any."""
        if math.isinf(self.obs_limit):
            if out is None:
                return obs
            np.copyto(out, obs)
            return out
        out = np.subtract(obs, self.obs_mean, out=out)
        out *= self.obs_scale
        return np.clip(out, -self.obs_limit, self.obs_limit, out=out)

    def initial_state(self, n: int) -> Any:
        """The memory of `n` fresh episodes; None if the module has none."""
        if not isinstance(self.module, Recurrent):
            return None
        return map_state(lambda part: part.to(self.device), self.module.initial_state(n))

    @abc.abstractmethod
    def choose(
        self, obs: Any, state: Any, rng: np.random.Generator | None, masks: U8 | None = None
    ) -> tuple[Array, Any]:
        """Actions of the environment for what the module sees, and the next state; drawn where `rng` is given."""

    def actions(self, obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
        """Actions for observation rows (N, O), without memory: indices (N,) int64 or (N, A) float32."""
        return self.player(len(obs))(obs, rng, masks)

    def player(self, n: int) -> Callable[..., Array]:
        """A function from observation rows to actions that remembers `n` episodes from their start."""
        state = self.initial_state(n)
        # Threads meet after every operation of a network: as many as pay for so many rows, like everywhere else.
        threads = self._threads_for(n)

        def play(obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
            nonlocal state
            with torch.no_grad(), torch_threads(threads):
                chosen, state = self.choose(self._seen(obs), state, rng, masks)
            return chosen

        return play

    def _seen(self, rows: Array) -> Any:
        """What the module sees of observation rows."""
        return self.view(torch.from_numpy(np.ascontiguousarray(self.normalised(rows))).to(self.device))

    def predict(
        self,
        observation: Array,
        state: Memory,
        episode_start: ArrayLike | None,
        rng: np.random.Generator | None,
        masks: U8 | None = None,
    ) -> tuple[Array, Memory]:
        """Actions for observation rows, and the state for the next call."""
        n = len(observation)
        state = self.initial_state(n) if state is None else state
        if self.recurrent and episode_start is not None:
            starts = torch.as_tensor(np.atleast_1d(episode_start), dtype=torch.bool, device=self.device)
            state = reset_rows(state, self.initial_state(n), starts)
        with torch.no_grad(), torch_threads(self._threads_for(n)):
            return self.choose(self._seen(observation), state, rng, masks)

    def to_env(self, action: F32) -> F32:
        """Map actions (N, A) from [-1, 1] to the environment's bounds; unbounded dimensions pass as they are."""
        return mlp.to_bounds(action, self.low, self.high)


def reset_rows(state: Any, initial: Any, starts: Tensor) -> Any:
    """`state` with the rows that `starts` (N,) bool marks replaced by those of `initial`."""

    def chosen(part: Tensor, fresh: Tensor) -> Tensor:
        return torch.where(starts.view(-1, *[1] * (part.ndim - 1)), fresh, part)

    return map_state(chosen, state, initial)


class TorchActorCritic(TorchPolicy):
    """`module(obs)` returns (head, value): logits, or means of a Gaussian; with memory also takes and returns a state.

    Continuous policies need the logarithms of their deviations, a parameter `log_std` (A,) of the module; one is added
    to a module that has none.
    """

    def __init__(
        self, module: nn.Module, spec: EnvSpec, device: torch.device, compile_mode: str | None = None, *,
        log_std_init: float = 0.0,
    ) -> None:  # fmt: skip
        numbers = spec.action_size - len(spec.choices)
        if numbers and not isinstance(module, _Gaussian):
            module.register_parameter("log_std", nn.Parameter(torch.full((numbers,), log_std_init)))
        super().__init__(module, spec, device, compile_mode)

    like = networks.MlpActorCritic

    @classmethod
    def for_leaves(cls, leaves: Sequence[ObsLeaf], config: Any, spec: EnvSpec) -> nn.Module:
        """Shared features with a head each for policy and value."""
        return images.TrunkActorCritic(leaves, sum(spec.choices) + spec.action_size - len(spec.choices))

    @classmethod
    def check(cls, module: nn.Module, algorithm: str) -> None:
        """Any module will do, with a memory or without."""

    def run(self, obs: Any, state: Any, *, fast: bool = False) -> tuple[Tensor, Tensor, Any]:
        """Head (N, A), values (N,) and the next state; `fast` where the same number of rows will come again."""
        module = self.fast() if fast else self.module
        found = module(obs, state) if self.recurrent else module(obs)
        wanted = 3 if self.recurrent else 2
        if not isinstance(found, tuple) or len(found) != wanted:
            names = "(head, value, state)" if self.recurrent else "(head, value)"
            raise UsageError(f"policy must return {names} for a batch of observations")
        head, value = found[:2]
        outputs = sum(self.branches) + self.numbers
        if head.ndim != 2 or head.shape[1] != outputs:
            raise UsageError(f"policy must return a head of shape (N, {outputs}), not {tuple(head.shape)}")
        return head, value.reshape(-1), found[2] if self.recurrent else None

    @property
    def numbers(self) -> int:
        """Numbers in an action, after its choices."""
        return self.action_size - len(self.branches)

    @property
    def log_std(self) -> Tensor:
        """Logarithms of the deviations of the numbers in an action, (G,) float32."""
        if not self.numbers:
            return torch.zeros(0, device=self.device)
        return self.module.log_std  # type: ignore[return-value]

    def choose(
        self, obs: Any, state: Any, rng: np.random.Generator | None, masks: U8 | None = None
    ) -> tuple[Array, Any]:
        """The mode, or a draw where `rng` is given; see `TorchPolicy.choose`."""
        found, _, state = self.run(obs, state)
        head = _array(found)
        if self.n_actions:
            return mlp.from_logits(mlp.only_possible(head, masks), rng), state
        log_std = _array(self.log_std)
        if self.branches:
            return self.to_env(mlp.from_parts(head, self.branches, log_std, rng, masks)), state
        return self.to_env(mlp.from_gaussian(head, log_std, rng)), state

    def distribution(self, obs: Array, masks: U8 | None = None) -> Distribution:
        """Probabilities of choices, means and deviations of numbers, and values, at the start of an episode."""
        with torch.no_grad():
            head, value, _ = self.run(self._seen(obs), self.initial_state(len(obs)))
        return mlp.distribution(_array(head), self.branches, _array(self.log_std), _array(value), masks)


class TorchQ(TorchPolicy):
    """`module(obs)` returns action values (N, actions)."""

    like = networks.MlpQ

    @classmethod
    def for_leaves(cls, leaves: Sequence[ObsLeaf], config: Any, spec: EnvSpec) -> nn.Module:
        """Features and hidden layers with action values, dueling if the configuration says so."""
        outputs = spec.n_actions + int(config.dueling)
        return images.TrunkHead(leaves, config.hidden, outputs, is_dueling=config.dueling)

    def choose(
        self, obs: Any, state: Any, rng: np.random.Generator | None, masks: U8 | None = None
    ) -> tuple[Array, Any]:
        """The best action, or one in twenty at random where `rng` is given; see `TorchPolicy.choose`."""
        return mlp.from_values(_array(self.module(obs)), rng, masks), state

    def distribution(self, obs: Array, masks: U8 | None = None) -> Distribution:
        """Values of actions; the best of them has probability 1."""
        with torch.no_grad():
            return mlp.greedy(_array(self.module(self._seen(obs))), masks)


class TorchTwinCritic(TorchPolicy):
    """A module with the parts `actor(obs)` and `critic(obs, action)`, which returns two values, (2, N)."""

    outputs_per_action = 1
    """Outputs of the actor for each entry of an action."""

    like = networks.MlpActorTwinCritic

    @classmethod
    def for_leaves(cls, leaves: Sequence[ObsLeaf], config: Any, spec: EnvSpec) -> nn.Module:
        """Actor and twin critics, each with features of its own."""
        outputs = spec.action_size * cls.outputs_per_action
        return images.TrunkActorTwinCritic(leaves, config.hidden, outputs, spec.action_size)

    @classmethod
    def check(cls, module: nn.Module, algorithm: str) -> None:
        """Refuse a user's module without these parts, or with a memory."""
        if not {"actor", "critic"} <= dict(module.named_children()).keys():
            raise UsageError(f"policy of {algorithm} must have the parts actor(obs) and critic(obs, action)")
        super().check(module, algorithm)

    def choose(
        self, obs: Any, state: Any, rng: np.random.Generator | None, masks: U8 | None = None
    ) -> tuple[Array, Any]:
        """The best action, or a draw where `rng` is given; see `TorchPolicy.choose`."""
        return self.to_env(self._drawn(self._head(obs), rng)), state

    def distribution(self, obs: Array, masks: U8 | None = None) -> Distribution:
        """What the actor's output says."""
        with torch.no_grad():
            return self._told(self._head(self._seen(obs)))

    def _head(self, obs: Any) -> F32:
        return _array(self.module.get_submodule("actor")(obs))

    @abc.abstractmethod
    def _drawn(self, head: F32, rng: np.random.Generator | None) -> F32:
        """Actions (N, A) in [-1, 1] from the actor's output: the best, or drawn where `rng` is given."""

    @abc.abstractmethod
    def _told(self, head: F32) -> Distribution:
        """The distribution that the actor's output stands for."""


class TorchSquashed(TorchTwinCritic):
    """`module.actor(obs)` returns means and log deviations (N, 2A), of actions before tanh."""

    outputs_per_action = 2

    def _drawn(self, head: F32, rng: np.random.Generator | None) -> F32:
        return mlp.from_squashed(head, rng)

    def _told(self, head: F32) -> Distribution:
        return mlp.squashed_distribution(head)


class TorchDeterministic(TorchTwinCritic):
    """`module.actor(obs)` returns actions (N, A) before tanh; one that is drawn has a little noise."""

    def _drawn(self, head: F32, rng: np.random.Generator | None) -> F32:
        return mlp.from_tanh(head, rng)

    def _told(self, head: F32) -> Distribution:
        return Distribution(mean=np.tanh(head))


def _array(tensor: Tensor) -> F32:
    return tensor.detach().float().cpu().numpy()


# --- From a name or a user's module to the policy of an algorithm ---
Chosen = str | nn.Module | Callable[[EnvSpec], nn.Module]
"""The name of a network, a module, or a function from the environment's description to one."""


def build_policy(
    kind: type[TorchPolicy], algorithm: str, chosen: Chosen, native: Policy | None, config: Any, spec: EnvSpec,
    device: torch.device, compile_mode: str | None,
) -> TorchPolicy:  # fmt: skip
    """The policy of an algorithm, of the `kind` that it learns, for an environment; its name is for messages.

    `native` is the native policy whose weights to start from, None unless the `chosen` network is the native one.
    """
    if native is not None:
        module = kind.like(native)
    elif isinstance(chosen, str):
        leaves = spec.leaves or (ObsLeaf("", (spec.obs_size,), "float32", 0, 4 * spec.obs_size),)
        module = kind.for_leaves(leaves, config, spec)
    else:
        module = chosen if isinstance(chosen, nn.Module) else chosen(spec)
        if not isinstance(module, nn.Module):
            raise UsageError(f"policy must be a torch.nn.Module or make one, not {module!r}")
        kind.check(module, algorithm)
    if issubclass(kind, TorchActorCritic):
        return kind(module, spec, device, compile_mode, log_std_init=config.log_std_init)
    return kind(module, spec, device, compile_mode)
