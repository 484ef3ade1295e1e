"""The native actor-critic: two multilayer perceptrons in one flat parameter vector, as kernels want them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mileage._errors import UnknownNameError, UsageError
from mileage._types import F32, I64

ACTIVATIONS = {"tanh": 0, "relu": 1}  # the numbers are those of mileage.kernels.learners.mlp


def _n_params(sizes: Sequence[int]) -> int:
    return sum(a * b + b for a, b in itertools.pairwise(sizes))


def _orthogonal(rng: np.random.Generator, inputs: int, outputs: int, gain: float) -> F32:
    """Weights `(inputs, outputs)` with orthonormal rows or columns, times `gain` (Saxe et al., 2014)."""
    wide = rng.standard_normal((max(inputs, outputs), min(inputs, outputs)))
    q, r = np.linalg.qr(wide)
    q *= np.sign(np.diag(r))  # makes the distribution uniform over orthogonal matrices
    return np.asarray(gain * (q if inputs >= outputs else q.T), np.float32)


class ActorCritic:
    """Separate actor and critic networks of any widths, for discrete or continuous actions.

    Continuous policies are Gaussian with a learned deviation per dimension; they act in [-1, 1], which is mapped to
    the environment's bounds and clipped. `params` (P,) float32 holds actor, critic and log deviations, in this
    order; observations are normalised with `obs_mean`, `obs_scale` (O,) float32 and kept within `obs_limit` before
    either network sees them.
    """

    def __init__(
        self,
        obs_size: int,
        n_actions: int,
        action_low: ArrayLike = (),
        action_high: ArrayLike = (),
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        log_std_init: float = 0.0,
        seed: int = 0,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise UnknownNameError("activation", activation, ACTIVATIONS)
        if not hidden or any(width < 1 for width in hidden):
            raise UsageError(f"hidden must name at least one layer width above 0, not {tuple(hidden)}")
        self.obs_size, self.n_actions = obs_size, n_actions
        self.low: F32 = np.zeros(1, np.float32) if n_actions else np.array(action_low, np.float32).ravel()
        self.high: F32 = np.zeros(1, np.float32) if n_actions else np.array(action_high, np.float32).ravel()
        self.action_size = self.low.size
        self.hidden, self.activation = tuple(int(width) for width in hidden), activation
        self.actor_sizes = (obs_size, *self.hidden, n_actions or self.action_size)
        self.critic_sizes = (obs_size, *self.hidden, 1)
        self.critic_offset = _n_params(self.actor_sizes)
        self.log_std_offset = self.critic_offset + _n_params(self.critic_sizes)
        deviations = 0 if n_actions else self.action_size
        self.params: F32 = np.zeros(self.log_std_offset + deviations, np.float32)
        self.params[self.log_std_offset :] = log_std_init
        self.obs_mean: F32 = np.zeros(obs_size, np.float32)
        self.obs_scale: F32 = np.ones(obs_size, np.float32)
        self.obs_limit = math.inf
        self._initialise(np.random.default_rng([seed, 1]))

    def _initialise(self, rng: np.random.Generator) -> None:
        for name, head_gain in (("actor", 0.01), ("critic", 1.0)):
            layers = [weight for key, weight in self.named().items() if key.startswith(name) and weight.ndim == 2]
            for weight in layers:
                gain = head_gain if weight is layers[-1] else math.sqrt(2.0)
                weight[:] = _orthogonal(rng, weight.shape[0], weight.shape[1], gain)

    def named(self) -> dict[str, F32]:
        """Views by name: `actor.0.weight` (inputs, outputs), `actor.0.bias` (outputs,), …, `log_std`."""
        views: dict[str, F32] = {}
        start = 0
        for name, sizes in (("actor", self.actor_sizes), ("critic", self.critic_sizes)):
            for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
                stop = start + inputs * outputs
                views[f"{name}.{layer}.weight"] = self.params[start:stop].reshape(inputs, outputs)
                views[f"{name}.{layer}.bias"] = self.params[stop : stop + outputs]
                start = stop + outputs
        if not self.n_actions:
            views["log_std"] = self.params[start:]
        return views

    def live_arrays(self) -> dict[str, F32]:
        """What a checkpoint holds of the policy, by name; call `loaded` after writing to it."""
        return {"params": self.params, "obs_mean": self.obs_mean, "obs_scale": self.obs_scale}

    def loaded(self) -> None:
        """Take over what was written to `live_arrays`: nothing to do, as they are the policy's own memory."""

    def frame_fields(self) -> dict[str, Any]:
        """The policy's fields of a kernel frame (see `mileage.kernels.learners.rollout`), without `action_rng`."""
        sizes: dict[str, I64] = {
            "actor": np.array(self.actor_sizes, np.int64),
            "critic": np.array(self.critic_sizes, np.int64),
        }
        return {
            "params": self.params,
            **sizes,
            "n_actor": len(self.actor_sizes),
            "n_critic": len(self.critic_sizes),
            "critic_offset": self.critic_offset,
            "log_std_offset": self.log_std_offset,
            "activation": ACTIVATIONS[self.activation],
            "n_actions": self.n_actions,
            "obs_size": self.obs_size,
            "action_size": self.action_size,
            "head_skip": 0,
            "squashed": 0,
        }

    def _run(self, name: str, obs: F32) -> F32:
        views = self.named()
        x = np.clip((obs - self.obs_mean) * self.obs_scale, -self.obs_limit, self.obs_limit)
        for layer in range(len(self.hidden)):
            x = x @ views[f"{name}.{layer}.weight"] + views[f"{name}.{layer}.bias"]
            x = np.tanh(x) if self.activation == "tanh" else np.maximum(x, np.float32(0.0))
        last = len(self.hidden)
        return np.asarray(x @ views[f"{name}.{last}.weight"] + views[f"{name}.{last}.bias"], np.float32)

    def values(self, obs: F32) -> F32:
        """Critic's values (N,) float32 of observations (N, O) float32."""
        return self._run("critic", obs)[:, 0]

    def actions(self, obs: F32, rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Actions for observations (N, O) float32: the mode, or a draw where `rng` is given.

        Discrete: indices (N,) int64; continuous: (N, A) float32 within the environment's bounds.
        """
        head = self._run("actor", obs)
        if self.n_actions:
            if rng is not None:
                head = head + rng.gumbel(size=head.shape).astype(np.float32)
            return np.asarray(np.argmax(head, axis=1))
        if rng is not None:
            deviation = np.exp(self.params[self.log_std_offset :])
            head = head + np.asarray(deviation, np.float32) * rng.standard_normal(head.shape, np.float32)
        return self.to_env(head)

    def to_env(self, action: F32) -> F32:
        """Map actions (N, A) from [-1, 1] to the environment's bounds; unbounded dimensions pass as they are."""
        bounded = np.isfinite(self.low) & np.isfinite(self.high)
        low, high = np.where(bounded, self.low, -1.0), np.where(bounded, self.high, 1.0)
        scaled = low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
        return np.where(bounded, scaled, action).astype(np.float32)
