"""What off-policy algorithms share: stepping environments into a replay buffer, and the ratio of updates to steps.

An iteration steps all environments `train_every` times and then does `gradient_steps` updates. A subclass says how
to act and how to learn from a sampled batch; both are one native call each.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mileage._types import F32, F64, Bool
from mileage.algorithms._config import require
from mileage.buffers import ReplayBuffer
from mileage.kernels.arrays import random
from mileage.kernels.machine.team import Team
from mileage.meter import Phase, PhaseClock


@dataclasses.dataclass(frozen=True)
class OffPolicyStats:
    """Means over the updates of one iteration, and the episodes that ended in it."""

    losses: dict[str, float]
    episodes: int
    episode_return: float
    """Mean return of those episodes; NaN if there were none."""
    episode_length: float
    """Mean length of those episodes; NaN if there were none."""
    truncations: int
    """How many of those episodes a time limit ended."""


def check_off_policy(config: Any) -> None:
    """Check the fields that all off-policy configurations have."""
    object.__setattr__(config, "hidden", tuple(config.hidden))
    for name in ("n_envs", "capacity", "batch", "train_every", "n_step"):
        require(getattr(config, name) >= 1, name, getattr(config, name), "at least 1")
    for name in ("gradient_steps", "learning_starts", "max_grad_norm"):
        require(getattr(config, name) >= 0, name, getattr(config, name), "0 or more")
    widths = config.hidden
    require(len(widths) > 0 and min(widths) >= 1, "hidden", widths, "at least one layer width above 0")
    require(0.0 <= config.gamma <= 1.0, "gamma", config.gamma, "between 0 and 1")
    require(0.0 < config.tau <= 1.0, "tau", config.tau, "above 0 and at most 1")
    require(0.0 < config.learning_rate < math.inf, "learning_rate", config.learning_rate, "above 0 and finite")
    require(config.capacity >= config.batch, "capacity", config.capacity, f"at least the batch, {config.batch}")


class OffPolicy:
    """Collects into a replay buffer and learns from it."""

    def __init__(self, config: Any, env: Any, policy: Any, team: Team, seed: int) -> None:
        self.config, self.env, self.policy, self.team, self.seed = config, env, policy, team, seed
        self.n_envs: int = env.num_envs
        self.steps_per_iteration = self.n_envs * config.train_every
        self.steps = 0
        self.updates = 0
        self.action_rng = random.streams(seed, self.n_envs, "action")
        self.episode: F64 = np.zeros((self.n_envs, 2))
        self.obs: F32 = np.zeros((self.n_envs, policy.obs_size), np.float32)
        self.actions: F32 = np.zeros((self.n_envs, policy.action_size), np.float32)
        self.replay = self._make_replay()
        self._sums: F64 = np.zeros(3)
        self._cut: Bool = np.zeros(self.n_envs, np.bool_)
        self._following = np.zeros_like(self.obs)
        self._returns, self._lengths = self.episode[:, 0], self.episode[:, 1]
        self._truncations = 0
        env.reset(seed=seed)
        self.obs[:] = env.obs
        self._build()

    @property
    def iterations(self) -> int:
        """Iterations done."""
        return int(self.steps // self.steps_per_iteration)

    @property
    def engine(self) -> OffPolicy:
        """What a checkpoint is made of."""
        return self

    def _make_replay(self) -> ReplayBuffer:
        config = self.config
        return ReplayBuffer(
            config.capacity,
            self.policy.obs_size,
            self.policy.action_size,
            n_envs=self.n_envs,
            n_step=config.n_step,
            gamma=config.gamma,
            seed=self.seed,
        )

    def _build(self) -> None:
        """Allocate what acting and learning need."""
        raise NotImplementedError  # an abstract method: each algorithm has its own

    def _act(self, progress: float) -> NDArray[Any]:
        """Write `actions` as they are stored, and return them as the environment wants them."""
        raise NotImplementedError  # an abstract method: each algorithm has its own

    def _act_randomly(self) -> NDArray[Any]:
        """As `_act`, uniformly at random."""
        draws = random.uniform_rows(self.action_rng, self.policy.action_size)
        if self.policy.n_actions:
            choices = np.minimum((draws[:, 0] * self.policy.n_actions).astype(np.int64), self.policy.n_actions - 1)
            self.actions[:, 0] = choices
            return np.asarray(choices)
        self.actions[:] = 2.0 * draws - 1.0
        low, high = self.policy.low, self.policy.high
        return np.asarray(low + draws * (high - low), np.float32)

    def _learn(self, n_updates: int, progress: float) -> dict[str, float]:
        """Do `n_updates` updates on batches from the replay buffer; return mean losses."""
        raise NotImplementedError  # an abstract method: each algorithm has its own

    def iterate(self, clock: PhaseClock, progress: float) -> OffPolicyStats:
        """Step the environments, then learn."""
        config = self.config
        self._sums[:] = 0.0
        self._truncations = 0
        inference, env_step = clock.phase(Phase.INFERENCE), clock.phase(Phase.ENV_STEP)
        for _ in range(config.train_every):
            with inference:
                ready = self.steps >= config.learning_starts
                chosen = self._act(progress) if ready else self._act_randomly()
            with env_step:
                self._step(chosen)
        losses: dict[str, float] = {}
        enough = self.steps >= config.learning_starts and len(self.replay) >= config.batch
        if enough and config.gradient_steps > 0:
            with clock.phase(Phase.LEARN):
                losses = self._learn(config.gradient_steps, progress)
        episodes, returns, lengths = self._sums
        return OffPolicyStats(
            losses=losses,
            episodes=int(episodes),
            episode_return=returns / episodes if episodes else math.nan,
            episode_length=lengths / episodes if episodes else math.nan,
            truncations=self._truncations,
        )

    def _step(self, chosen: NDArray[Any]) -> None:
        """Step all environments once and store the transitions."""
        obs, reward, terminated, truncated, infos = self.env.step(chosen)
        np.greater(truncated, terminated, out=self._cut)
        np.copyto(self._following, obs)
        # Many environments report something at every step; only an end comes with a final observation.
        any_ended = bool(infos) and (done := terminated | truncated).any()
        if any_ended:
            np.copyto(self._following, infos["final_obs"], where=done[:, None])
        # The same arrays every time: the buffer looks at them once.
        self.replay.push_batch(self.obs, self.actions, reward, terminated, self._cut, self._following)
        np.copyto(self.obs, obs)
        self.steps += self.n_envs
        self._returns += reward
        self._lengths += 1.0
        if any_ended:
            ended = self.episode[done]
            self._sums += (len(ended), *ended.sum(axis=0))
            self._truncations += int(np.count_nonzero(self._cut))
            self.episode[done] = 0.0

    def state_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything that decides how training goes on, by name; the arrays are live."""
        arrays: dict[str, np.ndarray[Any, Any]] = {
            "params": self.policy.params,
            "obs_mean": self.policy.obs_mean,
            "obs_scale": self.policy.obs_scale,
            "action_rng": self.action_rng,
            "episode": self.episode,
            "obs": self.obs,
        }
        if hasattr(self.env, "elapsed"):
            env = self.env
            arrays |= {"env_state": env.state, "env_elapsed": env.elapsed, "env_rng": env.rng, "env_obs": env.obs}
        return arrays

    def experience(self) -> dict[str, np.ndarray[Any, Any]]:
        """What the replay buffer holds, by name."""
        return {f"replay_{name}": array for name, array in self.replay.saved_arrays().items()}

    def restore_experience(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Put back what `experience` returned."""
        prefix = "replay_"
        self.replay.restore({name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)})

    def counters(self) -> dict[str, int]:
        """The scalars that belong to `state_arrays`."""
        return {"steps": self.steps, "updates": self.updates}

    def set_counters(self, counters: dict[str, int]) -> None:
        """Put back what `counters` returned."""
        self.steps, self.updates = counters["steps"], counters["updates"]
