"""Multilayer perceptrons in flat vectors, as kernels want them, and what policies made of them have in common."""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mileage._errors import UnknownNameError, UsageError
from mileage._records import Record, named
from mileage._types import F32, U8, Array
from mileage.contracts import Policy
from mileage.kernels.definitions import n_params
from mileage.policies.draw import to_bounds

ACTIVATIONS = {"tanh": 0, "relu": 1}  # the numbers are those of mileage.kernels.learners.mlp


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


def uniform(rng: np.random.Generator, sizes: Sequence[int]) -> F32:
    """A flat network with weights and biases from ±1/sqrt(inputs), torch's default for linear layers."""
    parts = []
    for inputs, outputs in itertools.pairwise(sizes):
        bound = 1.0 / math.sqrt(inputs)
        parts.append(rng.uniform(-bound, bound, inputs * outputs + outputs))
    return np.concatenate(parts).astype(np.float32)


def orthogonal(rng: np.random.Generator, inputs: int, outputs: int, gain: float) -> F32:
    """Weights `(inputs, outputs)` with orthonormal rows or columns, times `gain` (Saxe et al., 2014)."""
    wide = rng.standard_normal((max(inputs, outputs), min(inputs, outputs)))
    q, r = np.linalg.qr(wide)
    q *= np.sign(np.diag(r))  # makes the distribution uniform over orthogonal matrices
    return np.asarray(gain * (q if inputs >= outputs else q.T), np.float32)


class FlatPolicy(Policy):
    """A policy that kernels can run: the network that chooses actions is the flat vector `params` or begins it.

    Observations are normalised with `obs_mean`, `obs_scale` (O,) float32 and kept within `obs_limit` before a network
    sees them; as they begin, these leave observations alone.
    """

    params: F32
    """(P,) float32."""
    actor_sizes: tuple[int, ...]
    """Widths of the network that chooses actions, inputs first."""
    critic_sizes: tuple[int, ...] = ()
    """Widths of a critic, inputs first; empty if there is none."""
    head_skip = 0
    """Outputs of the actor before those that choose among actions."""
    squashed = 0
    """1 if tanh bounds the actions."""
    critic_offset = 0
    """Where in `params` a critic begins; 0 if there is none in it."""
    log_std_offset = 0
    """Where in `params` the log deviations of continuous actions begin."""
    branches: tuple[int, ...] = ()
    """How many ways there are to choose each discrete part of an action."""

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

    def live_arrays(self) -> dict[str, Array]:
        """What a checkpoint holds of the policy, by name: the policy's own memory."""
        return {"params": self.params, "obs_mean": self.obs_mean, "obs_scale": self.obs_scale}

    def frame_fields(self) -> Record:
        """The policy's fields of a kernel frame (see `mileage.kernels.learners.rollout`), without `action_rng`."""
        critic_sizes = self.critic_sizes if self.critic_offset else ()
        own = "params critic_offset log_std_offset n_actions obs_size action_size head_skip squashed"
        parts: Record = {"branches": np.array(self.branches, np.int64), "n_branches": len(self.branches)}
        parts["n_choices"] = sum(self.branches)
        return (
            (parts if self.in_parts else {})
            | named(self, own)
            | {
                "actor": np.array(self.actor_sizes, np.int64),
                "critic": np.array(critic_sizes, np.int64),
                "n_actor": len(self.actor_sizes),
                "n_critic": len(critic_sizes),
                "activation": ACTIVATIONS[self.activation],
            }
        )

    def acting_fields(self) -> Record:
        """`frame_fields`, and what observations and actions are mapped with."""
        maps = {"mean": self.obs_mean, "scale": self.obs_scale, "limit": self.obs_limit}
        return self.frame_fields() | maps | named(self, "low high")

    def normalised(self, obs: F32) -> F32:
        """Observations (N, O) as the networks see them."""
        return np.asarray(np.clip((obs - self.obs_mean) * self.obs_scale, -self.obs_limit, self.obs_limit), np.float32)

    def head(self, obs: F32) -> F32:
        """Outputs (N, actor_sizes[-1]) float32 of the network that chooses actions, for observations (N, O) float32."""
        actor = self.params[: n_params(self.actor_sizes)]
        return forward(actor, self.actor_sizes, self.activation, self.normalised(obs))

    def to_env(self, action: F32) -> F32:
        """Map actions (N, A) from [-1, 1] to the environment's bounds; unbounded dimensions pass as they are."""
        return to_bounds(action, self.low, self.high)

    @abc.abstractmethod
    def actions(self, obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
        """Actions for observations (N, O) float32: the mode, or a draw where `rng` is given.

        Discrete: indices (N,) int64; continuous: (N, A) float32 within the environment's bounds.
        """
