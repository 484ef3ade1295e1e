"""Multilayer perceptrons in flat vectors, and actions drawn from what they say.

Native and torch policies act alike: both end here, with NumPy arrays.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mileage.contracts import Distribution, Policy
from mileage.errors import UnknownNameError, UsageError
from mileage.kernels.random import LOG_STD_HIGH, LOG_STD_LOW, n_params
from mileage.records import Record, named
from mileage.types import F32, I64, U8, Array, Bool

# --- From what a network says to actions of the environment: the best ones, or drawn where a generator is given ---
# Share of random actions of a Q-network, and deviation of a deterministic actor, that are asked for a draw.
_EPSILON = 0.05
_DEVIATION = np.float32(0.1)

Rng = np.random.Generator | None


def from_logits(logits: F32, rng: Rng) -> I64:
    """Choices (N,) int64 from logits (N, n)."""
    if rng is not None:
        logits = logits + rng.gumbel(size=logits.shape).astype(np.float32)
    return np.asarray(np.argmax(logits, axis=1))


def only_possible(values: F32, masks: U8 | None) -> F32:
    """Logits or action values (N, n) with those that masks (N, n) rule out at minus infinity."""
    return values if masks is None else np.where(masks != 0, values, np.float32(-np.inf))


def from_parts(head: F32, branches: Sequence[int], log_std: F32, rng: Rng, masks: U8 | None) -> F32:
    """Actions (N, A) before bounds, indices before numbers, from logits of every choice and means (N, M + G)."""
    stops = np.cumsum(branches)
    logits = only_possible(head[:, : stops[-1]], masks)
    choices = [from_logits(each, rng)[:, None] for each in np.split(logits, stops[:-1], axis=1)]
    return np.concatenate([*choices, from_gaussian(head[:, stops[-1] :], log_std, rng)], axis=1).astype(np.float32)


def probabilities(head: F32, branches: Sequence[int], masks: U8 | None) -> tuple[F32, ...]:
    """Probability of every way to choose each part, (N, n) each, from logits (N, M + G)."""
    stops = np.cumsum(branches)
    found = []
    for logits in np.split(only_possible(head[:, : stops[-1]], masks), stops[:-1], axis=1):
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        found.append(weights / weights.sum(axis=1, keepdims=True))
    return tuple(found)


def distribution(head: F32, branches: Sequence[int], log_std: F32, value: F32, masks: U8 | None) -> Distribution:
    """Of an actor's output (N, M + G), a critic's (N,) and log deviations (G,)."""
    mean = head[:, sum(branches) :]
    found = Distribution(probabilities(head, branches, masks) if branches else (), value=value)
    if not mean.shape[1]:
        return found
    deviation = np.broadcast_to(np.exp(log_std), mean.shape).astype(np.float32)
    return dataclasses.replace(found, mean=mean, deviation=deviation)


def from_gaussian(mean: F32, log_std: F32, rng: Rng) -> F32:
    """Actions (N, A) before bounds, from means (N, A) and log deviations (A,) or (N, A)."""
    if rng is None:
        return mean
    return np.asarray(mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32), np.float32)


def from_squashed(head: F32, rng: Rng) -> F32:
    """Actions (N, A) in (-1, 1) from means and log deviations (N, 2A)."""
    size = head.shape[1] // 2
    log_std = np.clip(head[:, size:], np.float32(LOG_STD_LOW), np.float32(LOG_STD_HIGH))
    return np.asarray(np.tanh(from_gaussian(head[:, :size], log_std, rng)), np.float32)


def squashed_distribution(head: F32) -> Distribution:
    """Means and deviations before tanh, from means and log deviations (N, 2A)."""
    mean, log_std = np.split(head, 2, axis=1)
    log_std = np.clip(log_std, np.float32(LOG_STD_LOW), np.float32(LOG_STD_HIGH))
    return Distribution(mean=mean, deviation=np.exp(log_std))


def from_tanh(head: F32, rng: Rng) -> F32:
    """Actions (N, A) in [-1, 1] from outputs (N, A) before tanh; drawn ones have a little noise."""
    action = np.tanh(head)
    if rng is None:
        return action
    noisy = action + _DEVIATION * rng.standard_normal(action.shape, np.float32)
    return np.asarray(np.clip(noisy, np.float32(-1.0), np.float32(1.0)), np.float32)


def from_values(values: F32, rng: Rng, masks: U8 | None = None) -> I64:
    """Best actions (N,) int64 by values (N, n) that masks (N, n) allow; of drawn ones, one in twenty is random."""
    best = np.asarray(np.argmax(only_possible(values, masks), axis=1))
    if rng is None:
        return best
    if masks is not None:
        anywhere = from_logits(only_possible(np.zeros_like(values), masks), rng)
        return np.where(rng.random(len(best)) < _EPSILON, anywhere, best)
    return np.where(rng.random(len(best)) < _EPSILON, rng.integers(0, values.shape[1], len(best)), best)


def greedy(values: F32, masks: U8 | None) -> Distribution:
    """What a Q-network does by action values (N, n): the best possible action, always."""
    possible = only_possible(values, masks)
    best = np.argmax(possible, axis=1)
    chosen = np.eye(values.shape[1], dtype=np.float32)[best]
    return Distribution((chosen,), value=possible.max(axis=1), action_values=values)


def to_bounds(action: F32, low: F32, high: F32) -> F32:
    """Actions (N, A) mapped from [-1, 1] to the bounds (A,) of each dimension; those without a width only clipped."""
    wide = has_width(low, high)
    least, most = np.where(wide, low, np.float32(-1.0)), np.where(wide, high, np.float32(1.0))
    scaled = least + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (most - least)
    return np.where(wide, scaled, np.clip(action, low, high)).astype(np.float32)


def has_width(low: F32, high: F32) -> Bool:
    """Which dimensions (A,) have bounds that an action from -1 to 1 can be mapped to: both, and not too far apart."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isfinite(high - low))


ACTIVATIONS = {"tanh": 0, "relu": 1}  # the numbers are those of mileage.kernels.mlp


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
        """The policy's fields of a kernel frame (see `mileage.kernels.rollout`), without `action_rng`."""
        critic_sizes = self.critic_sizes if self.critic_offset else ()
        own = "params critic_offset log_std_offset n_actions obs_size action_size head_skip squashed"
        parts: Record = {"branches": np.array(self.branches, np.int64), "n_branches": len(self.branches)}
        parts["n_choices"] = sum(self.branches)
        return (
            (parts if self.structured_actions else {})
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
