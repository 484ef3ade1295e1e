"""Networks of off-policy algorithms in flat vectors: Q-networks, squashed and deterministic actors, twin critics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mileage.contracts import Distribution
from mileage.errors import UsageError
from mileage.kernels.machine.memory import aligned_zeros
from mileage.kernels.random import n_params
from mileage.policies import mlp
from mileage.policies.mlp import FlatPolicy, uniform
from mileage.types import F32, U8, Array


class QNetwork(FlatPolicy):
    """Values of all actions; with `dueling` the state's value and the actions' advantages."""

    def __init__(
        self, obs_size: int, n_actions: int, *, hidden: Sequence[int] = (64, 64), activation: str = "relu",
        dueling: bool = False, seed: int = 0, masked: bool = False,
    ) -> None:  # fmt: skip
        if n_actions < 1:
            raise UsageError("dqn needs discrete actions: use sac, td3 or ppo for continuous ones")
        super().__init__(obs_size, n_actions, (), (), hidden, activation)
        self.dueling, self.structured_actions, self.branches = dueling, masked, (n_actions,)
        self.head_skip = int(dueling)
        self.actor_sizes = (obs_size, *self.hidden, n_actions + int(dueling))
        self.params = aligned_zeros(n_params(self.actor_sizes))
        self.params[:] = uniform(np.random.default_rng([seed, 1]), self.actor_sizes)

    def q_values(self, obs: F32) -> F32:
        """Action values (N, actions) float32 of observations (N, O) float32."""
        head = self.head(obs)
        if not self.dueling:
            return head
        advantages = head[:, 1:]
        return np.asarray(head[:, :1] + advantages - advantages.mean(axis=1, keepdims=True), np.float32)

    def actions(self, obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
        """Best actions (N,) int64; with `rng`, one in twenty is random."""
        return mlp.from_values(self.q_values(obs), rng, masks)

    def distribution(self, obs: Array, masks: U8 | None = None) -> Distribution:
        """Values of actions; the best of them has probability 1."""
        return mlp.greedy(self.q_values(obs), masks)


class TwinCriticPolicy(FlatPolicy):
    """An actor whose actions tanh bounds, `params`, and two critics beside it, `critic_params`."""

    squashed = 1
    outputs_per_action = 1
    """Outputs of the actor for each entry of an action."""

    def __init__(
        self, obs_size: int, low: ArrayLike, high: ArrayLike, *, hidden: Sequence[int] = (256, 256),
        activation: str = "relu", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(obs_size, 0, low, high, hidden, activation)
        if not mlp.has_width(self.low, self.high).all():
            raise UsageError("this algorithm needs actions with finite bounds: wrap the environment to rescale them")
        rng = np.random.default_rng([seed, 1])
        self.actor_sizes = (obs_size, *self.hidden, self.outputs_per_action * self.action_size)
        self.critic_sizes = (obs_size + self.action_size, *self.hidden, 1)
        self.params = uniform(rng, self.actor_sizes)
        self.critic_params = np.concatenate([uniform(rng, self.critic_sizes) for _ in range(2)])
        """Both critics, one after the other, (2 P,) float32."""


class SquashedActor(TwinCriticPolicy):
    """A Gaussian squashed by tanh, with means and log deviations from the network, and twin critics beside it."""

    outputs_per_action = 2

    def actions(self, obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
        """Actions (N, A) float32 within the bounds: the mode's, or drawn with `rng`."""
        return self.to_env(mlp.from_squashed(self.head(obs), rng))

    def distribution(self, obs: Array, masks: U8 | None = None) -> Distribution:
        """Means and deviations before tanh."""
        return mlp.squashed_distribution(self.head(obs))


class DeterministicActor(TwinCriticPolicy):
    """A tanh actor without noise, with twin critics beside it."""

    def actions(self, obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
        """Actions (N, A) float32 within the bounds; with `rng`, with a little noise."""
        return self.to_env(mlp.from_tanh(self.head(obs), rng))

    def distribution(self, obs: Array, masks: U8 | None = None) -> Distribution:
        """The actions themselves."""
        return Distribution(mean=np.tanh(self.head(obs)))
