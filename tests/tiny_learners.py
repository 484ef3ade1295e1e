"""Learners of a stranger's, written against the contracts alone: one says nothing of itself, one describes itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mileage.contracts import Clock, EnvSpec, Learner, Policy, Saved, VectorEnv
from mileage.description import ACT, Boundary, Buffer, Call, Description, Layer, Product, Stages, Variant, Work
from mileage.types import Array, Team

WIDTH = 16
STAGES = ("loop", "multiply", "step")


@dataclass(frozen=True)
class Episodes:
    episodes: int = 0
    episode_return: float = math.nan
    episode_length: float = math.nan
    truncations: int = 0


@dataclass(frozen=True)
class TinyConfig:
    n_envs: int = 4
    n_steps: int = 8
    size: int = 32

    @property
    def batch_size(self) -> int:
        return self.n_envs * self.n_steps


class AlwaysFirst(Policy):
    """Takes action 0, whatever it sees."""

    obs_limit = math.inf

    def __init__(self, spec: EnvSpec) -> None:
        self.obs_size, self.n_actions, self.action_size = spec.obs_size, spec.n_actions, 1
        self.low = self.high = np.zeros(1, np.float32)
        self.obs_mean, self.obs_scale = np.zeros(spec.obs_size, np.float32), np.ones(spec.obs_size, np.float32)

    def live_arrays(self) -> dict[str, Array]:
        return {}

    def actions(self, obs: Array, rng: np.random.Generator | None = None) -> Array:
        return np.zeros(len(obs), np.int64)

    def predict(
        self, observation: Any, state: Any, episode_start: Any, rng: np.random.Generator | None
    ) -> tuple[Array, Any]:
        return self.actions(np.atleast_2d(observation)), None


class Silent(Learner):
    """Steps its environments and multiplies two matrices."""

    Config = TinyConfig
    config: TinyConfig

    def __init__(self, config: TinyConfig, env: VectorEnv, policy: Policy, team: Team, seed: int) -> None:
        super().__init__(config, env, policy, team, seed)
        self.steps_per_iteration = config.batch_size
        self.weights = np.full((config.size, config.size), 1.0 / config.size, np.float32)
        self.rate, self._steps = 0.1, 0
        env.reset(seed=seed)

    @classmethod
    def make_policy(cls, config: TinyConfig, spec: EnvSpec, seed: int) -> Policy:
        return AlwaysFirst(spec)

    @property
    def steps(self) -> int:
        return self._steps

    def iterate(self, clock: Clock, progress: float) -> Episodes:
        for _ in range(self.config.n_steps):
            with clock.phase("inference"):
                actions = self.policy.actions(self.env.obs)
            with clock.phase("env_step"):
                self.env.step(actions)
        self._steps += self.steps_per_iteration
        with clock.phase("learn"):
            self.crunch()
        return Episodes()

    def crunch(self, last: int = len(STAGES) - 1) -> None:
        """Learn, up to a stage."""
        for _ in range(20):
            if last >= 1:
                product = self.weights @ self.weights
            if last >= 2:
                self.weights -= np.float32(self.rate) * product

    def saved(self) -> Saved:
        return Saved({"weights": self.weights}, {"steps": self._steps})

    def restore(self, saved: Saved) -> None:
        saved.write_to({"weights": self.weights})
        self._steps = saved.counters["steps"]


class Talkative(Silent):
    """The same, with a description."""

    def describe(self) -> Description:
        size = self.config.size
        work = Work((Product(0, 0, size, size, size),), pieces=1, repeats=20, bytes_touched=20 * 3 * 4.0 * size * size)
        update = Call("crunch", self.crunch, 1, Stages(STAGES, self._up_to))
        return Description(
            work={"learn": work},
            boundaries=(
                Boundary(self.env, "step", "env.step", Layer.ENVIRONMENT),
                Boundary(self, "crunch", "crunch", Layer.NATIVE),
            ),
            calls={"learn": update},
            team=self.team,
            paused=self._paused,
            operations={ACT: lambda: self.policy.actions(self.env.obs)},
            buffers=(Buffer("weights", 4 * size * size, self.weights.nbytes),),
            variants=(Variant("batch", {"size": size // 2}, "learn", 2.0, self.crunch, self._half),),
        )

    def _up_to(self, stage: int | None, turn: int) -> None:
        self.crunch(len(STAGES) - 1 if stage is None else stage)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        kept, rate, self.rate = self.weights.copy(), self.rate, 0.0
        try:
            yield
        finally:
            self.weights[:], self.rate = kept, rate

    @contextlib.contextmanager
    def _half(self) -> Iterator[Any]:
        yield Talkative(TinyConfig(size=self.config.size // 2), self.env, self.policy, self.team, 0).crunch
