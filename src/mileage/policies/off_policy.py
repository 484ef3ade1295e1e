"""Networks of off-policy algorithms in flat vectors: Q-networks, squashed and deterministic actors, twin critics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mileage._errors import UnknownNameError, UsageError
from mileage._types import F32
from mileage.kernels.machine.memory import aligned_zeros
from mileage.policies.native import ACTIVATIONS


def n_params(sizes: Sequence[int]) -> int:
    """Number of parameters of a network with these widths."""
    return sum(a * b + b for a, b in itertools.pairwise(sizes))


def _uniform(rng: np.random.Generator, sizes: Sequence[int]) -> F32:
    """Weights and biases drawn from ±1/sqrt(inputs), torch's default for linear layers."""
    parts = []
    for inputs, outputs in itertools.pairwise(sizes):
        bound = 1.0 / math.sqrt(inputs)
        parts.append(rng.uniform(-bound, bound, inputs * outputs + outputs))
    return np.concatenate(parts).astype(np.float32)


def views(params: F32, sizes: Sequence[int], name: str) -> dict[str, F32]:
    """Views by name on a flat network: `name.0.weight` (inputs, outputs), `name.0.bias` (outputs,), …"""
    found: dict[str, F32] = {}
    start = 0
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        stop = start + inputs * outputs
        found[f"{name}.{layer}.weight"] = params[start:stop].reshape(inputs, outputs)
        found[f"{name}.{layer}.bias"] = params[stop : stop + outputs]
        start = stop + outputs
    return found


def forward(params: F32, sizes: Sequence[int], activation: str, x: F32) -> F32:
    """Output (N, sizes[-1]) float32 of a flat network for inputs (N, sizes[0]) float32."""
    layers = views(params, sizes, "net")
    last = len(sizes) - 2
    for layer in range(last + 1):
        x = x @ layers[f"net.{layer}.weight"] + layers[f"net.{layer}.bias"]
        if layer < last:
            x = np.tanh(x) if activation == "tanh" else np.maximum(x, np.float32(0.0))
    return np.asarray(x, np.float32)


class OffPolicyNetwork:
    """What the networks that act have in common: one flat vector `params` for the network that chooses actions.

    Observations are seen as they are; `obs_mean`, `obs_scale`, `obs_limit` are there for evaluation, which they
    leave alone.
    """

    head_skip = 0
    squashed = 0

    def __init__(
        self, obs_size: int, n_actions: int, low: ArrayLike, high: ArrayLike, hidden: Sequence[int], activation: str
    ) -> None:
        if activation not in ACTIVATIONS:
            raise UnknownNameError("activation", activation, ACTIVATIONS)
        if not hidden or any(width < 1 for width in hidden):
            raise UsageError(f"hidden must name at least one layer width above 0, not {tuple(hidden)}")
        self.obs_size, self.n_actions, self.activation = obs_size, n_actions, activation
        self.low: F32 = np.zeros(1, np.float32) if n_actions else np.array(low, np.float32).ravel()
        self.high: F32 = np.zeros(1, np.float32) if n_actions else np.array(high, np.float32).ravel()
        self.action_size = self.low.size
        self.hidden = tuple(int(width) for width in hidden)
        self.obs_mean: F32 = np.zeros(obs_size, np.float32)
        self.obs_scale: F32 = np.ones(obs_size, np.float32)
        self.obs_limit = math.inf
        self.actor_sizes: tuple[int, ...] = ()
        self.params: F32 = np.zeros(0, np.float32)
        if not n_actions and not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise UsageError("this algorithm needs actions with finite bounds: wrap the environment to rescale them")

    def live_arrays(self) -> dict[str, F32]:
        """What a checkpoint holds of the policy, by name; call `loaded` after writing to it."""
        return {"params": self.params, "obs_mean": self.obs_mean, "obs_scale": self.obs_scale}

    def loaded(self) -> None:
        """Take over what was written to `live_arrays`: nothing to do, as they are the policy's own memory."""

    def frame_fields(self) -> dict[str, Any]:
        """The fields of an evaluation frame (see `mileage.kernels.learners.rollout`), without `action_rng`."""
        sizes = np.array(self.actor_sizes, np.int64)
        return {
            "params": self.params,
            "actor": sizes,
            "critic": sizes,
            "n_actor": len(sizes),
            "n_critic": 0,
            "critic_offset": 0,
            "log_std_offset": 0,
            "activation": ACTIVATIONS[self.activation],
            "n_actions": self.n_actions,
            "obs_size": self.obs_size,
            "action_size": self.action_size,
            "head_skip": self.head_skip,
            "squashed": self.squashed,
        }

    def _head(self, obs: F32) -> F32:
        return forward(self.params, self.actor_sizes, self.activation, obs)

    def _to_env(self, action: F32) -> F32:
        """Map actions (N, A) from [-1, 1] to the environment's bounds."""
        return np.asarray(self.low + (action + np.float32(1.0)) * np.float32(0.5) * (self.high - self.low), np.float32)


class QNetwork(OffPolicyNetwork):
    """Values of all actions; with `dueling` the state's value and the actions' advantages."""

    def __init__(
        self,
        obs_size: int,
        n_actions: int,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "relu",
        dueling: bool = False,
        seed: int = 0,
    ) -> None:
        if n_actions < 1:
            raise UsageError("dqn needs discrete actions: use sac, td3 or ppo for continuous ones")
        super().__init__(obs_size, n_actions, (), (), hidden, activation)
        self.dueling = dueling
        self.head_skip = int(dueling)
        self.actor_sizes = (obs_size, *self.hidden, n_actions + int(dueling))
        self.params = aligned_zeros(n_params(self.actor_sizes))
        self.params[:] = _uniform(np.random.default_rng([seed, 1]), self.actor_sizes)

    def q_values(self, obs: F32) -> F32:
        """Action values (N, actions) float32 of observations (N, O) float32."""
        head = self._head(obs)
        if not self.dueling:
            return head
        advantages = head[:, 1:]
        return np.asarray(head[:, :1] + advantages - advantages.mean(axis=1, keepdims=True), np.float32)

    def actions(self, obs: F32, rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Best actions (N,) int64; with `rng`, one in twenty is random."""
        best = np.asarray(np.argmax(self.q_values(obs), axis=1))
        if rng is None:
            return best
        return np.where(rng.random(len(best)) < 0.05, rng.integers(0, self.n_actions, len(best)), best)


class SquashedActor(OffPolicyNetwork):
    """A Gaussian squashed by tanh, with means and log deviations from the network, and twin critics beside it."""

    squashed = 1

    def __init__(
        self,
        obs_size: int,
        low: ArrayLike,
        high: ArrayLike,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: str = "relu",
        seed: int = 0,
    ) -> None:
        super().__init__(obs_size, 0, low, high, hidden, activation)
        rng = np.random.default_rng([seed, 1])
        self.actor_sizes = (obs_size, *self.hidden, self._outputs())
        self.critic_sizes = (obs_size + self.action_size, *self.hidden, 1)
        self.params = _uniform(rng, self.actor_sizes)
        self.critic_params = np.concatenate([_uniform(rng, self.critic_sizes) for _ in range(2)])

    def _outputs(self) -> int:
        return 2 * self.action_size

    def actions(self, obs: F32, rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Actions (N, A) float32 within the bounds: the mode's, or drawn with `rng`."""
        head = self._head(obs)
        raw = head[:, : self.action_size]
        if rng is not None:
            deviation = np.exp(np.clip(head[:, self.action_size :], np.float32(-20.0), np.float32(2.0)))
            raw = np.asarray(raw + deviation * rng.standard_normal(raw.shape, np.float32), np.float32)
        return self._to_env(np.tanh(raw))


class DeterministicActor(SquashedActor):
    """A tanh actor without noise, with twin critics beside it."""

    def _outputs(self) -> int:
        return self.action_size

    def actions(self, obs: F32, rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Actions (N, A) float32 within the bounds; with `rng`, with a little noise."""
        raw = np.tanh(self._head(obs))
        if rng is not None:
            noise = np.float32(0.1) * rng.standard_normal(raw.shape, np.float32)
            raw = np.asarray(np.clip(raw + noise, np.float32(-1.0), np.float32(1.0)), np.float32)
        return self._to_env(raw)
