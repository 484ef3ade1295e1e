"""What policy-gradient learners share: a rollout's memory, normalisation, state; sentences for divergence.

An iteration collects `n_steps` from every environment, computes advantages and updates the policy. How to collect and
how to update is the subclass's: in native kernels or on torch.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from mileage.algorithms.configs import OnPolicyConfig, scheduled
from mileage.contracts import Clock, Learner, Policy, Saved, VectorEnv
from mileage.errors import DivergedError, EnvError, UsageError
from mileage.kernels import actor_critic, random
from mileage.kernels.arrays import gae_columns
from mileage.kernels.machine.team import run_shards
from mileage.kernels.moments import merged
from mileage.measure import Phase
from mileage.records import named
from mileage.types import F32, F64, I64, U8, Array, Team


# --- Sentences for training whose numbers are no longer finite: where they came from, and what to do ---
def from_env(env: str, what: str, value: float, index: int, steps: int, step: int | None = None) -> EnvError:
    """An environment's observation or reward was the first; `step` counts within the rollout after `steps` steps."""
    when = f"after {steps:,} steps" if step is None else f"in step {step} of the rollout after {steps:,} steps"
    return EnvError(
        f"{what} {value} of environment {index} of {env!r}, {when}, made the loss NaN: try `mileage env check`"
    )


def diverged(steps: int, rate: float) -> DivergedError:
    """Everything that came in was finite."""
    return DivergedError(
        f"the update after {steps:,} steps is no longer finite, though observations and rewards are: lower "
        f"learning_rate (now {rate:g}), set max_grad_norm, or keep observations and rewards small"
    )


# --- What can be put back: a learner's arrays and counters, and its environments' where they can be saved ---
class StatefulLearner(Learner):
    """A learner whose state is arrays by name and whole numbers.

    Environments that cannot be saved start anew when it is restored, and their running episodes with them.
    """

    @abc.abstractmethod
    def _learner_arrays(self) -> dict[str, Array]:
        """Live arrays of the policy and of learning."""

    @abc.abstractmethod
    def _episode_arrays(self) -> dict[str, Array]:
        """Live arrays that belong to the environments' running episodes."""

    @abc.abstractmethod
    def counters(self) -> dict[str, int]:
        """The scalars that belong to `state_arrays`."""

    @abc.abstractmethod
    def _set_counters(self, counters: Mapping[str, int]) -> None:
        """Put back what `counters` returned, after all arrays; UsageError if these make no sense."""

    def _env_arrays(self) -> dict[str, Array]:
        return {f"env_{name}": array for name, array in self.env.saved_arrays().items()}

    def _replay_arrays(self) -> dict[str, Array]:
        """What is remembered of earlier steps: as large as that is, and no live memory."""
        return {}

    def state_arrays(self) -> dict[str, Array]:
        """Everything of fixed size that decides how training goes on, by name; the arrays are live."""
        env = self._env_arrays()
        return self._learner_arrays() | (env | self._episode_arrays() if env else {})

    def saved(self) -> Saved:
        """What a checkpoint holds; an environment's arrays are copied, as its memory ends with it."""
        arrays = self.state_arrays() | self._replay_arrays()
        env = {name: arrays[name].copy() for name in self._env_arrays()}
        return Saved(arrays | env, self.counters())

    def restore(self, saved: Saved) -> None:
        """Go on where `saved` was taken; without an environment's arrays its episodes start anew."""
        counters = saved.counters
        if counters.keys() != self.counters().keys() or min(counters.values()) < 0:
            raise UsageError(f"counters cannot be {dict(counters)}")
        env = self._env_arrays()
        resumes = bool(env.keys() & saved.arrays.keys())
        saved.write_to(self.state_arrays() if resumes else self._learner_arrays())
        self._set_counters(counters)


OBS_LIMIT = 10.0


@dataclasses.dataclass(frozen=True)
class UpdateStats:
    """Means over the samples of one update."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    episodes: int
    """Episodes that ended in this rollout."""
    episode_return: float
    """Mean return of those episodes; NaN if there were none."""
    episode_length: float
    """Mean length of those episodes; NaN if there were none."""
    truncations: int
    """How many of those episodes a time limit ended."""


class RolloutLearner(StatefulLearner):
    """Collects `n_steps` from every environment, then learns from them.

    Arrays of a rollout are flat over time and environment: row `t * N + i` is step t of environment i.
    """

    config: OnPolicyConfig
    obs: Array
    """As the networks saw them, (B, O)."""
    raw_obs: Array
    """As the environments gave them, (B, O), for the statistics; `obs` itself where nothing is normalised."""
    actions: F32
    log_probs: F32
    values: F32
    last_values: F32
    """Values of what the environments show after the last step, (N,)."""
    advantages: F32
    returns: F32
    order: I64
    """The order in which samples are learned from, (B,): shuffled in place by every epoch."""
    episode_sums: F64
    """Number, returns and lengths of episodes that ended, (blocks of environments, 3)."""
    own_envs: slice = slice(None)
    """Of the environments, those whose rollout is learned from."""

    def __init__(
        self, config: OnPolicyConfig, env: VectorEnv, policy: Policy, team: Team, seed: int, columns: int | None = None
    ) -> None:
        """Allocate for rollouts of `columns` environments at a time; of all of them by default."""
        super().__init__(config, env, policy, team, seed)
        self.n_envs: int = env.num_envs if columns is None else columns
        self.batch = self.steps_per_iteration = config.n_steps * self.n_envs
        self.iterations = self.adam_steps = 0
        n, total = self.batch, env.num_envs
        self.rewards: F32 = np.zeros(n, np.float32)
        self.truncated_values: F32 = np.zeros(n, np.float32)
        self.terminated: U8 = np.zeros(n, np.uint8)
        self.truncated: U8 = np.zeros(n, np.uint8)
        self.action_rng = random.streams(seed, total, "action")
        self.shuffle_rng = random.streams(seed, 1, "shuffle")
        self.episode: F64 = np.zeros((total, 2))
        # Statistics of the raw observations and of the discounted return, updated once per rollout.
        self.obs_moments: F64 = np.zeros((3, policy.obs_size))
        self.return_moments: F64 = np.zeros(3)
        self.running_return: F64 = np.zeros(total)
        self.totals: F64 = np.zeros(actor_critic.N_STATS)
        """Sums over the samples of one update, in the order of `actor_critic`."""
        self._allocate()
        env.reset(seed=seed)
        self._begin_episodes()

    @property
    def steps(self) -> int:
        """Environment steps taken so far."""
        return self.iterations * self.batch

    @abc.abstractmethod
    def _allocate(self) -> None:
        """Allocate what the annotations above name, and what collecting and updating need."""

    def _begin_episodes(self) -> None:
        """Take over what the environments show, as after a reset."""

    @abc.abstractmethod
    def _collect(self, clock: Clock) -> None:
        """Fill the rollout, each part in its phase."""

    @abc.abstractmethod
    def _update_policy(self, rate: float, clip: float) -> None:
        """Learn from the rollout: `totals` and `adam_steps` say what was done."""

    def _send(self, clock: Clock) -> None:
        """Bring advantages and returns to where the policy learns."""

    def iterate(self, clock: Clock, progress: float) -> UpdateStats:
        """One rollout and one update, each part in its phase, after a share `progress` of the training."""
        config = self.config
        rate = scheduled(config.learning_rate, config.learning_rate_schedule, progress)
        clip = scheduled(config.clip, config.clip_schedule, progress)
        self._collect(clock)
        with clock.phase(Phase.ADVANTAGE):
            self._compute_advantages()
        self._send(clock)
        with clock.phase(Phase.LEARN):
            self._update_policy(rate, clip)
            self.iterations += 1
            return self._stats()

    def _compute_advantages(self) -> None:
        config = self.config
        shape = (config.n_steps, self.n_envs)
        if config.normalise_rewards:
            self._scale_rewards()
        # The arrays are the learner's own: what `gae` would check of a user's, holds.
        run_shards(
            gae_columns, self.n_envs, config.n_steps, self.rewards.reshape(shape), self.values.reshape(shape),
            self.terminated.reshape(shape), self.last_values, self.truncated.reshape(shape),
            self.truncated_values.reshape(shape), float(config.gamma), float(config.gae_lambda),
            self.advantages.reshape(shape), self.returns.reshape(shape),
        )  # fmt: skip
        if config.normalise_observations:
            self._update_obs_normalisation()

    def _scale_rewards(self) -> None:
        """Divide rewards by the running deviation of the discounted return, this rollout included."""
        shape = (self.config.n_steps, self.n_envs)
        rewards = self.rewards.reshape(shape)
        done = (self.terminated | self.truncated).reshape(shape).astype(bool)
        running = np.empty(shape)
        current = self.running_return[self.own_envs]
        for t in range(shape[0]):
            current = current * self.config.gamma + rewards[t]
            running[t] = current
            current = np.where(done[t], 0.0, current)
        self.running_return[self.own_envs] = current
        self.return_moments[:] = merged(self.return_moments, running.reshape(-1))
        if not np.isfinite(self.return_moments).all():
            self._diverged(self.steps)
        deviation = math.sqrt(self.return_moments[2] / max(self.return_moments[0], 1.0)) + 1e-8
        np.clip(self.rewards / deviation, -OBS_LIMIT, OBS_LIMIT, out=self.rewards)

    def _update_obs_normalisation(self) -> None:
        """Let this rollout's observations join the statistics that the next rollout is normalised with."""
        policy = self.policy
        self.obs_moments[:] = merged(self.obs_moments, self.raw_obs.astype(np.float64))
        if not np.isfinite(self.obs_moments).all():
            self._diverged(self.steps)
        policy.obs_mean[:] = self.obs_moments[1]
        policy.obs_scale[:] = 1.0 / np.sqrt(self.obs_moments[2] / self.obs_moments[0] + 1e-8)
        # Not before there are statistics: the first rollout sees raw observations of any size.
        self.set_obs_limit(OBS_LIMIT)

    def set_obs_limit(self, limit: float) -> None:
        """Keep normalised observations within [-limit, limit] from now on."""
        self.policy.obs_limit = limit

    def _stats(self) -> UpdateStats:
        totals = self.totals
        samples, minibatches = max(totals[actor_critic.SAMPLES], 1.0), max(totals[actor_critic.MINIBATCHES], 1.0)
        episodes, returns, lengths = self.episode_sums.sum(axis=0)
        policy_loss, value_loss = totals[actor_critic.POLICY_LOSS], totals[actor_critic.VALUE_LOSS]
        if not all(map(math.isfinite, (policy_loss, value_loss, totals[actor_critic.GRAD_NORM]))):
            self._diverged(self.steps - self.batch)
        return UpdateStats(
            policy_loss=policy_loss / samples,
            value_loss=value_loss / samples,
            entropy=totals[actor_critic.ENTROPY] / samples,
            approx_kl=totals[actor_critic.KL] / samples,
            clip_fraction=totals[actor_critic.CLIPPED] / samples,
            grad_norm=totals[actor_critic.GRAD_NORM] / minibatches,
            episodes=int(episodes),
            episode_return=returns / episodes if episodes else math.nan,
            episode_length=lengths / episodes if episodes else math.nan,
            truncations=int(np.count_nonzero(self.truncated)),
        )

    def _diverged(self, begun: int) -> NoReturn:
        """Raise, with the place where something that is not finite came in since `begun` steps were taken."""
        first = range(self.env.num_envs)[self.own_envs][0]
        for name, array in (("observation", self.raw_obs), ("reward", self.rewards)):
            rows = np.flatnonzero(~np.isfinite(array).reshape(self.batch, -1).all(axis=1))
            if len(rows):
                step, column = divmod(int(rows[0]), self.n_envs)
                value = array[rows[0]] if array.ndim == 1 else array[rows[0]][~np.isfinite(array[rows[0]])][0]
                raise from_env(self.env.spec.id, name, float(value), first + column, begun, step)
        if np.isfinite(self.values).all():  # then so is the network, and what it was shown last is not
            for array in (self.truncated_values, self.last_values):
                rows = np.flatnonzero(~np.isfinite(array))
                if len(rows):
                    step, column = divmod(int(rows[0]), self.n_envs)
                    step = self.config.n_steps if array is self.last_values else step + 1
                    raise from_env(self.env.spec.id, "observation", math.nan, first + column, begun, step)
        raise diverged(begun, self.config.learning_rate)

    def _learner_arrays(self) -> dict[str, Array]:
        return self.policy.live_arrays() | named(self, "action_rng shuffle_rng order obs_moments return_moments")

    def _episode_arrays(self) -> dict[str, Array]:
        return {"episode": self.episode, "running_return": self.running_return}

    def counters(self) -> dict[str, int]:
        """The scalars that belong to `state_arrays`."""
        return {"iterations": self.iterations, "adam_steps": self.adam_steps}

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        # Kernels trust indices: those of a damaged file would reach memory that is not theirs.
        if not np.array_equal(np.sort(self.order), np.arange(self.batch)):
            raise UsageError("the order of samples is not a permutation")
        self.policy.loaded()
        self.iterations, self.adam_steps = counters["iterations"], counters["adam_steps"]
        self._begin_episodes()
        if self.config.normalise_observations and self.iterations:
            self.set_obs_limit(OBS_LIMIT)
