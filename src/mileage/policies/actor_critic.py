"""The native actor-critic: two multilayer perceptrons in one flat parameter vector, as kernels want them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mileage.contracts import Distribution
from mileage.kernels.random import n_params
from mileage.policies import mlp
from mileage.policies.mlp import FlatPolicy, forward, orthogonal, views
from mileage.types import F32, U8, Array


class ActorCritic(FlatPolicy):
    """Separate actor and critic networks of any widths, for discrete or continuous actions.

    Continuous policies are Gaussian with a learned deviation per dimension; they act in [-1, 1], which is mapped to
    the environment's bounds and clipped. Actions in several parts have choices (`branches`) before numbers, with
    infinite bounds. `params` (P,) float32 holds actor, critic and log deviations, in this order.
    """

    def __init__(
        self, obs_size: int, n_actions: int, action_low: ArrayLike = (), action_high: ArrayLike = (), *,
        hidden: Sequence[int] = (64, 64), activation: str = "tanh", log_std_init: float = 0.0, seed: int = 0,
        branches: Sequence[int] = (), masked: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(obs_size, n_actions, action_low, action_high, hidden, activation)
        self.structured_actions = masked or bool(branches)
        self.branches = tuple(branches) or ((n_actions,) if n_actions else ())
        numbers = self.action_size - len(self.branches)
        self.actor_sizes = (obs_size, *self.hidden, sum(self.branches) + numbers)
        self.critic_sizes = (obs_size, *self.hidden, 1)
        self.critic_offset = n_params(self.actor_sizes)
        self.log_std_offset = self.critic_offset + n_params(self.critic_sizes)
        self.params: F32 = np.zeros(self.log_std_offset + numbers, np.float32)
        self.params[self.log_std_offset :] = log_std_init
        self._initialise(np.random.default_rng([seed, 1]))

    def _initialise(self, rng: np.random.Generator) -> None:
        for name, head_gain in (("actor", 0.01), ("critic", 1.0)):
            layers = [weight for key, weight in self.named().items() if key.startswith(name) and weight.ndim == 2]
            for weight in layers:
                gain = head_gain if weight is layers[-1] else math.sqrt(2.0)
                weight[:] = orthogonal(rng, weight.shape[0], weight.shape[1], gain)

    @property
    def log_std(self) -> F32:
        """Logarithms of the deviations of continuous actions, (A,) float32; empty if actions are discrete."""
        return self.params[self.log_std_offset :]

    def named(self) -> dict[str, F32]:
        """Views by name: `actor.0.weight` (inputs, outputs), `actor.0.bias` (outputs,), …, `log_std`."""
        found = views(self.params, self.actor_sizes, "actor")
        found |= views(self.params[self.critic_offset :], self.critic_sizes, "critic")
        return found | {"log_std": self.log_std} if self.log_std.size else found

    def values(self, obs: F32) -> F32:
        """Critic's values (N,) float32 of observations (N, O) float32."""
        critic = self.params[self.critic_offset : self.log_std_offset]
        return forward(critic, self.critic_sizes, self.activation, self.normalised(obs))[:, 0]

    def actions(self, obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
        """Actions for observations (N, O) float32: the mode, or a draw where `rng` is given."""
        if self.n_actions:
            return mlp.from_logits(mlp.only_possible(self.head(obs), masks), rng)
        if self.branches:
            return self.to_env(mlp.from_parts(self.head(obs), self.branches, self.log_std, rng, masks))
        return self.to_env(mlp.from_gaussian(self.head(obs), self.log_std, rng))

    def distribution(self, obs: Array, masks: U8 | None = None) -> Distribution:
        """Probabilities of choices, means and deviations of numbers, and values."""
        return mlp.distribution(self.head(obs), self.branches, self.log_std, self.values(obs), masks)
