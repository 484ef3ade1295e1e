"""An algorithm as a user might write one against the contracts: random search over a linear policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from mileage.contracts import Clock, EnvSpec, Learner, Policy, Saved, VectorEnv
from mileage.types import Team


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """Hyperparameters."""

    n_envs: int = 2
    """Environments stepped side by side."""
    n_steps: int = 16
    """Steps of each environment that a candidate is tried for."""
    spread: float = 0.5
    """Deviation of a candidate from the best so far."""

    @property
    def batch_size(self) -> int:
        return self.n_envs * self.n_steps


class Linear(Policy):
    """Scores of actions are linear in the observation."""

    def __init__(self, spec: EnvSpec) -> None:
        self.obs_size, self.n_actions, self.action_size = spec.obs_size, spec.n_actions, 1
        self.low = self.high = np.zeros(1, np.float32)
        self.obs_mean, self.obs_scale = np.zeros(spec.obs_size, np.float32), np.ones(spec.obs_size, np.float32)
        self.obs_limit = np.inf
        self.weights = np.zeros((spec.obs_size, spec.n_actions), np.float32)

    def live_arrays(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def actions(self, obs: Any, rng: Any = None) -> Any:
        return np.argmax(obs @ self.weights, axis=1)

    def predict(self, observation: Any, state: Any, episode_start: Any, rng: Any) -> tuple[Any, Any]:
        return self.actions(np.atleast_2d(np.asarray(observation, np.float32))), None


@dataclasses.dataclass(frozen=True)
class SearchStats:
    """What an iteration reports."""

    episodes: int
    episode_return: float
    episode_length: float
    truncations: int | None = None


class Search(Learner):
    """Tries a candidate near the best weights, and keeps it if it earns more."""

    Config = SearchConfig
    config: SearchConfig
    policy: Linear

    def __init__(self, config: SearchConfig, env: VectorEnv, policy: Linear, team: Team, seed: int) -> None:
        super().__init__(config, env, policy, team, seed)
        self.steps_per_iteration = config.batch_size
        self._tried = 0
        self._best = np.full(1, -np.inf)
        env.reset(seed=seed)

    @classmethod
    def make_policy(cls, config: SearchConfig, spec: EnvSpec, seed: int) -> Linear:
        return Linear(spec)

    @property
    def steps(self) -> int:
        return self._tried * self.steps_per_iteration

    def iterate(self, clock: Clock, progress: float) -> SearchStats:
        weights, rng = self.policy.weights, np.random.default_rng([self.seed, self._tried])
        before = weights.copy()
        weights += self.config.spread * rng.standard_normal(weights.shape, np.float32)
        earned, ended = 0.0, 0
        with clock.phase("env_step"):
            self.env.reset(seed=self.seed)
            for _ in range(self.config.n_steps):
                _, reward, terminated, truncated, _ = self.env.step(self.policy.actions(self.env.obs))
                earned += float(reward.sum()) - 10.0 * float(terminated.sum())
                ended += int((terminated | truncated).sum())
        if earned > self._best[0]:
            self._best[0] = earned
        else:
            weights[:] = before
        self._tried += 1
        return SearchStats(ended, earned, self.config.n_steps)

    def saved(self) -> Saved:
        return Saved(self.policy.live_arrays() | {"best": self._best}, {"tried": self._tried})

    def restore(self, saved: Saved) -> None:
        saved.write_to(self.policy.live_arrays() | {"best": self._best})
        self._tried = saved.counters["tried"]
