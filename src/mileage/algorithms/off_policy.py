"""What off-policy algorithms share: stepping environments into a replay buffer, and the ratio of updates to steps.

An iteration steps all environments `train_every` times and then does `gradient_steps` updates. A subclass says how
to act and how to learn from a sampled batch; both are one native call each.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from mileage.algorithms.configs import OffPolicyConfig, scheduled
from mileage.algorithms.normaliser import Scaling
from mileage.algorithms.rollout_learner import StatefulLearner, diverged, from_env
from mileage.buffers import PrioritizedReplay, ReplayBuffer
from mileage.buffers.replay import Batch
from mileage.contracts import Clock, Policy, Saved, VectorEnv
from mileage.errors import UsageError
from mileage.kernels import random
from mileage.measure import Phase
from mileage.records import Record, named
from mileage.types import F32, F64, I64, U8, Array, Bool, Team

_REPLAY = "replay_"


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


class SplitBatch:
    """A batch whose observations have masks behind them, taken apart: `obs`, `next_obs` (S, O) and `masks` (S, n).

    The masks are those of the next observations: what was possible before an action decided nothing else.
    """

    def __init__(self, batch: Batch, obs_size: int, n_actions: int) -> None:
        self._batch = batch
        self.obs: F32 = np.zeros((batch.size, obs_size), np.float32)
        self.next_obs: F32 = np.zeros((batch.size, obs_size), np.float32)
        self.masks: U8 = np.ones((batch.size, n_actions), np.uint8)

    def take(self) -> None:
        """Take apart what the batch holds now."""
        size, n = self.obs.shape[1], self.masks.shape[1]
        np.copyto(self.obs, self._batch.obs[:, :size])
        np.copyto(self.next_obs, self._batch.next_obs[:, :size])
        np.copyto(self.masks, self._batch.next_obs[:, size : size + n], casting="unsafe")


class OffPolicy(StatefulLearner):
    """Collects into a replay buffer and learns from it."""

    config: OffPolicyConfig
    batch: Batch
    """Memory of the samples that one call learns from."""

    def __init__(self, config: OffPolicyConfig, env: VectorEnv, policy: Policy, team: Team, seed: int) -> None:
        super().__init__(config, env, policy, team, seed)
        self.n_envs: int = env.num_envs
        self.steps_per_iteration = self.n_envs * config.train_every
        self._steps = 0
        self.updates = 0
        self.rate = config.learning_rate
        """Adam's step size now."""
        self.action_rng = random.streams(seed, self.n_envs, "action")
        self.episode: F64 = np.zeros((self.n_envs, 2))
        self.actions: F32 = np.zeros((self.n_envs, policy.action_size), np.float32)
        self.replay = self._make_replay()
        self._sums: F64 = np.zeros(3)
        self._cut: Bool = np.zeros(self.n_envs, np.bool_)
        self._returns, self._lengths = self.episode[:, 0], self.episode[:, 1]
        self._truncations = 0
        self._ends: tuple[F32, Bool] = np.zeros(self.n_envs, np.float32), np.zeros(self.n_envs, np.bool_)
        env.reset(seed=seed)
        self.obs: Array = np.array(env.obs)
        """What the environments show now, (N, O)."""
        self.masks: U8 = np.ones((self.n_envs, policy.n_actions if policy.structured_actions else 0), np.uint8)
        """What is possible now, (N, n), if the policy knows masks; the replay buffer has them behind observations."""
        self._rows = (
            np.zeros((self.n_envs, self._row_size()), self.obs.dtype) if policy.structured_actions else self.obs
        )
        self._following = np.zeros_like(self._rows)
        self.scaling = Scaling(config, policy, self.n_envs)
        self.shown = np.zeros_like(self.obs) if self.scaling.observations else self.obs
        """The same as networks see it."""
        # Most trainings need neither masks nor statistics: a step takes microseconds, and asking costs some of them.
        self._prepares = policy.structured_actions or self.scaling.observations
        self._scales = self.scaling.observations or self.scaling.rewards
        self._following_obs = self._following[:, : self.obs.shape[1]]
        self._build()

    @property
    def steps(self) -> int:
        """Environment steps taken so far."""
        return self._steps

    @property
    def iterations(self) -> int:
        """Iterations done."""
        return self._steps // self.steps_per_iteration

    def _row_size(self) -> int:
        """Entries of an observation in the replay buffer: masks are behind it, to a multiple of a word in bytes."""
        masks = self.policy.n_actions if self.policy.structured_actions else 0
        return self.policy.obs_size + -(-masks // 8) * 8

    def _replay_arguments(self) -> Record:
        """Arguments of a replay buffer for these environments."""
        shapes = {"obs_shape": self._row_size(), "action_shape": self.policy.action_size}
        return shapes | named(self.config, "capacity n_step gamma") | named(self, "n_envs seed")

    def _make_replay(self) -> ReplayBuffer:
        return ReplayBuffer(**self._replay_arguments())

    @abc.abstractmethod
    def _build(self) -> None:
        """Allocate what acting and learning need."""

    @abc.abstractmethod
    def act(self, progress: float) -> Array:
        """Write `actions` as they are stored, and return them as the environment wants them."""

    def _act_randomly(self) -> Array:
        """As `_act`, uniformly at random, for `hold` steps each."""
        # What was possible a step before may not be now.
        if (self._steps // self.n_envs) % self.config.hold and not self.policy.structured_actions:
            return self._held()
        draws = random.uniform_rows(self.action_rng, self.policy.action_size)
        if self.policy.n_actions:
            choices = self._anywhere(draws[:, 0])
            self.actions[:, 0] = choices
            return np.asarray(choices)
        self.actions[:] = 2.0 * draws - 1.0
        low, high = self.policy.low, self.policy.high
        return np.asarray(low + draws * (high - low), np.float32)

    def _anywhere(self, draws: F32) -> I64:
        """Discrete actions (N,), uniform among those that are possible, by uniform draws (N,)."""
        n = self.policy.n_actions
        if not self.policy.structured_actions:
            return np.asarray(np.minimum((draws * n).astype(np.int64), n - 1))
        ranks = np.cumsum(self.masks, axis=1, dtype=np.int64)
        which = np.minimum((draws * ranks[:, -1]).astype(np.int64), ranks[:, -1] - 1)
        return np.asarray(np.argmax(ranks > which[:, None], axis=1))

    def _take_masks(self) -> None:
        """Look what is possible now, before actions are chosen."""
        shown = self.env.masks
        if shown is not None and self.policy.structured_actions:
            np.copyto(self.masks, shown)

    def _note_masks(self, done: Bool, infos: Record) -> None:
        """Put masks, of now and of what follows, behind observations."""
        size, n = self.policy.obs_size, self.policy.n_actions
        self._rows[:, :size] = self.obs
        self._rows[:, size : size + n] = self.masks
        following = self._following[:, size : size + n]
        if (shown := self.env.masks) is not None:
            np.copyto(following, shown, casting="unsafe")
        if done.any():
            np.copyto(following, infos["final_masks"], where=done[:, None], casting="unsafe")

    def _held(self) -> Array:
        """The actions of the step before, as the environment wants them."""
        if self.policy.n_actions:
            return self.actions[:, 0].astype(np.int64)
        low, high = self.policy.low, self.policy.high
        return np.asarray(low + 0.5 * (self.actions + 1.0) * (high - low), np.float32)

    def _set_rate(self, rate: float) -> None:
        """Learn with this step size from now on."""
        self.rate = rate

    @abc.abstractmethod
    def learn(self, n_updates: int) -> dict[str, float]:
        """Do `n_updates` updates on batches from the replay buffer; return mean losses."""

    def iterate(self, clock: Clock, progress: float) -> OffPolicyStats:
        """Step the environments, then learn."""
        config = self.config
        self._sums[:] = 0.0
        self._truncations = 0
        inference, env_step, store = (clock.phase(each) for each in (Phase.INFERENCE, Phase.ENV_STEP, Phase.STORE))
        for _ in range(config.train_every):
            with inference:
                if self._prepares:
                    self._take_masks()
                    self._look()
                ready = self._steps >= config.learning_starts
                chosen = self.act(progress) if ready else self._act_randomly()
            with env_step:
                taken = self.env.step(chosen)
            with store:
                self._store(*taken)
        losses: dict[str, float] = {}
        enough = self._steps >= config.learning_starts and len(self.replay) >= config.batch
        if enough and config.gradient_steps > 0:
            with clock.phase(Phase.LEARN):
                if config.learning_rate_schedule != "constant":
                    self._set_rate(scheduled(config.learning_rate, config.learning_rate_schedule, progress))
                losses = self.learn(config.gradient_steps)
                if not math.isfinite(sum(losses.values())):
                    self._diverged()
        episodes, returns, lengths = self._sums
        return OffPolicyStats(
            losses=losses,
            episodes=int(episodes),
            episode_return=returns / episodes if episodes else math.nan,
            episode_length=lengths / episodes if episodes else math.nan,
            truncations=self._truncations,
        )

    def _set_priorities(self, replay: PrioritizedReplay, errors: Array) -> None:
        """Let the last batch be sampled again by its errors, which the buffer refuses if they are not finite."""
        try:
            replay.update_priorities(self.batch.indices, errors)
        except UsageError:
            self._diverged()

    def _diverged(self) -> NoReturn:
        """Raise, with the place where something that is not finite came in."""
        batch = self.batch
        for name, array in (("observation", batch.obs), ("observation", batch.next_obs), ("reward", batch.rewards)):
            odd = np.argwhere(~np.isfinite(array))
            if len(odd):
                index = int(batch.indices[odd[0][0]]) % self.n_envs
                raise from_env(self.env.spec.id, name, float(array[tuple(odd[0])]), index, self._steps)
        raise diverged(self._steps, self.config.learning_rate)

    def _look(self) -> None:
        """Bring `shown` up to date, before actions are chosen."""
        if self.scaling.observations:
            self.scaling.see(self.obs)
            self.scaling.scale_obs(self.obs, self.shown)

    def scale_batch(self) -> None:
        """Scale what was sampled, by the statistics as they are now."""
        if not self._scales:
            return
        size = self.policy.obs_size
        for rows in (self.batch.obs[:, :size], self.batch.next_obs[:, :size]):
            self.scaling.scale_obs(rows, rows)
        self.scaling.scale_rewards(self.batch.rewards)

    def _store(self, obs: Array, reward: F32, terminated: Bool, truncated: Bool, infos: Record) -> None:
        """Store the transitions of a step of all environments."""
        np.greater(truncated, terminated, out=self._cut)
        following = self._following_obs
        np.copyto(following, obs)
        # Many environments report something at every step; only an end comes with a final observation.
        any_ended = bool(infos) and (done := terminated | truncated).any()
        if any_ended:
            np.copyto(following, infos["final_obs"], where=done[:, None])
        if self.policy.structured_actions:
            self._note_masks(terminated | truncated, infos)
        # The same arrays every time: the buffer looks at them once.
        self.replay.push_batch(self._rows, self.actions, reward, terminated, self._cut, self._following)
        self._ends = reward, terminated
        np.copyto(self.obs, obs)
        if self._scales:
            self.scaling.reward(reward, terminated | truncated)
        self._steps += self.n_envs
        self._returns += reward
        self._lengths += 1.0
        if any_ended:
            ended = self.episode[done]
            self._sums += (len(ended), *ended.sum(axis=0))
            self._truncations += int(np.count_nonzero(self._cut))
            self.episode[done] = 0.0

    def push(self) -> None:
        """Store the last transitions once more, for whoever times it."""
        reward, terminated = self._ends
        self.replay.push_batch(self._rows, self.actions, reward, terminated, self._cut, self._following)

    def _learner_arrays(self) -> dict[str, Array]:
        return self.policy.live_arrays() | {"action_rng": self.action_rng} | self.scaling.arrays()

    def _episode_arrays(self) -> dict[str, Array]:
        held = {"actions": self.actions} if self.config.hold > 1 else {}
        return {"episode": self.episode, "obs": self.obs} | self.scaling.episode_arrays() | held

    def _replay_arrays(self) -> dict[str, Array]:
        return {f"{_REPLAY}{name}": array for name, array in self.replay.saved_arrays().items()}

    def restore(self, saved: Saved) -> None:
        """Go on where `saved` was taken; without an environment's arrays its episodes start anew."""
        super().restore(saved)
        held = {name.removeprefix(_REPLAY): a for name, a in saved.arrays.items() if name.startswith(_REPLAY)}
        try:
            self.replay.restore(held)
        except (KeyError, ValueError, IndexError) as error:
            raise UsageError(f"the replay buffer is not whole: {error}") from error

    def counters(self) -> dict[str, int]:
        """The scalars that belong to `state_arrays`."""
        return {"steps": self._steps, "updates": self.updates}

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        self.policy.loaded()
        self._steps, self.updates = counters["steps"], counters["updates"]
