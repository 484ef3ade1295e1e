"""Normalisation for learning from replay: what is stored stays raw, what is seen follows running statistics."""

from __future__ import annotations

import math

import numpy as np

from mileage.algorithms.configs import OffPolicyConfig
from mileage.contracts import Policy
from mileage.errors import UsageError
from mileage.kernels.moments import merged
from mileage.types import F32, F64, Array, Bool

LIMIT = 10.0
"""Normalised observations and rewards are kept within plus and minus this."""


class Scaling:
    """Running statistics of observations and of discounted returns, as far as a configuration asks for them."""

    def __init__(self, config: OffPolicyConfig, policy: Policy, n_envs: int) -> None:
        self._policy, self._gamma = policy, config.gamma
        self.observations, self.rewards = config.normalise_observations, config.normalise_rewards
        if self.observations and policy.leaves is not None:
            raise UsageError("normalise_observations is for observations that are vectors")
        self._obs_moments: F64 = np.zeros((3, policy.obs_size))
        self._return_moments: F64 = np.zeros(3)
        self._returns: F64 = np.zeros(n_envs)

    def see(self, obs: Array) -> None:
        """Let observations (N, O) join the statistics."""
        if self.observations:
            policy = self._policy
            self._obs_moments[:] = merged(self._obs_moments, obs.astype(np.float64))
            policy.obs_mean[:] = self._obs_moments[1]
            policy.obs_scale[:] = 1.0 / np.sqrt(self._obs_moments[2] / self._obs_moments[0] + 1e-8)
            policy.obs_limit = LIMIT

    def reward(self, reward: F32, done: Bool) -> None:
        """Let rewards (N,) join the statistics of returns; `done` (N,) marks ends of episodes."""
        if self.rewards:
            self._returns[:] = self._returns * self._gamma + reward
            self._return_moments[:] = merged(self._return_moments, self._returns)
            self._returns[done] = 0.0

    def scale_obs(self, obs: F32, out: F32) -> None:
        """Observations (N, O) as networks see them, into `out`, which may be `obs`; as they are if not asked for."""
        if self.observations:
            policy = self._policy
            np.clip((obs - policy.obs_mean) * policy.obs_scale, -LIMIT, LIMIT, out=out)
        elif out is not obs:
            np.copyto(out, obs)

    def scale_rewards(self, rewards: F32) -> None:
        """Divide sampled rewards, in place, by the deviation of the discounted return."""
        if self.rewards:
            count, _, squares = self._return_moments
            np.clip(rewards / (math.sqrt(squares / max(count, 1.0)) + 1e-8), -LIMIT, LIMIT, out=rewards)

    def arrays(self) -> dict[str, Array]:
        """What decides how learning goes on; nothing where nothing is normalised."""
        observed: dict[str, Array] = {"obs_moments": self._obs_moments} if self.observations else {}
        return observed | ({"return_moments": self._return_moments} if self.rewards else {})

    def episode_arrays(self) -> dict[str, Array]:
        """What belongs to running episodes."""
        return {"running_return": self._returns} if self.rewards else {}
