"""What policy-gradient algorithms share: rollout storage, the fused collector, and the fused update.

The kernels see plain memory; this class owns it, says how large it is, and can put it in a checkpoint and back.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from mileage._errors import UsageError
from mileage._types import F32, F64
from mileage.algorithms._stepping import collect_from_python
from mileage.envs.native.vector import VecEnv
from mileage.kernels.arrays import random
from mileage.kernels.arrays.advantages import gae_columns
from mileage.kernels.learners import actor_critic, optim
from mileage.kernels.learners import rollout as kernels
from mileage.kernels.machine.pointers import Frame
from mileage.kernels.machine.shards import run_shards
from mileage.kernels.machine.team import Team
from mileage.meter import Phase, PhaseClock
from mileage.policies import ActorCritic

OBS_LIMIT = 10.0
UPDATE_FIELDS = frozenset(actor_critic.UPDATE.names or ())


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the engine needs to know of an algorithm's configuration."""

    n_steps: int
    epochs: int
    minibatch: int
    gamma: float
    gae_lambda: float
    clip: float
    value_clip: float
    entropy_coef: float
    value_coef: float
    max_grad_norm: float
    target_kl: float
    normalise_advantages: bool
    normalise_observations: bool
    normalise_rewards: bool
    adam_eps: float


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


class OnPolicy:
    """One learner: collects `n_steps` from every environment, then learns from them."""

    _own_envs = slice(None)
    """Of the environments, those whose rollout is learned from."""

    def __init__(
        self, settings: Settings, env: Any, policy: ActorCritic, team: Team, seed: int, columns: int | None = None
    ) -> None:
        """Allocate for rollouts of `columns` environments at a time; of all of them by default."""
        self.settings, self.env, self.policy, self.team = settings, env, policy, team
        self.n_envs: int = env.num_envs if columns is None else columns
        self.batch: int = settings.n_steps * self.n_envs
        self.iterations = 0
        self._native = isinstance(env, VecEnv)
        self._allocate(seed)
        self._update = self._update_frame()
        self._rollout = self._rollout_frame() if self._native else self._act_frame()
        env.reset(seed=seed)
        if not self._native:
            self._obs[:] = env.obs

    @property
    def steps(self) -> int:
        """Environment steps taken so far."""
        return self.iterations * self.batch

    def _allocate(self, seed: int) -> None:
        n, obs_size, action_size = self.batch, self.policy.obs_size, self.policy.action_size

        def floats(*shape: int) -> F32:
            return np.zeros(shape, np.float32)

        self.obs, self.actions = floats(n, obs_size), floats(n, action_size)
        # As the environment gave them, for the statistics; nobody asks for them where nothing is normalised.
        self._raw_obs = floats(n, obs_size) if self.settings.normalise_observations else self.obs
        self.log_probs, self.values = floats(n), floats(n)
        self.rewards, self.truncated_values = floats(n), floats(n)
        self.terminated, self.truncated = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
        self.last_values = floats(self.n_envs)
        self.advantages, self.returns = floats(n), floats(n)
        total = self.env.num_envs
        self.action_rng = random.streams(seed, total, "action")
        self.shuffle_rng = random.streams(seed, 1, "shuffle")
        self.order = np.arange(n, dtype=np.int64)
        self.episode: F64 = np.zeros((total, 2))
        self._block = kernels.block_size(self.n_envs)
        self._episode_sums: F64 = np.zeros((-(-self.n_envs // self._block), 3))
        self.adam_mean, self.adam_square = np.zeros_like(self.policy.params), np.zeros_like(self.policy.params)
        self.adam_steps = 0
        self._env_action = floats(total, action_size)
        self._obs = floats(total, obs_size)
        minibatch = min(self.settings.minibatch, n)
        self._chunks, self._pieces = actor_critic.n_chunks(minibatch), actor_critic.n_pieces(minibatch)
        self._chunk_rows = -(-minibatch // self._chunks)
        rows = max(self._chunk_rows, self._block, 1 if self._native else self.n_envs)
        self._work_floats = actor_critic.work_floats(rows, self.policy.actor_sizes, self.policy.critic_sizes)
        self._works = floats(self.team.n_ranks, self._work_floats)
        self._totals: F64 = np.zeros(actor_critic.N_STATS)
        # Statistics of the raw observations and of the discounted return, updated once per rollout.
        self.obs_moments: F64 = np.zeros((3, obs_size))
        self.return_moments: F64 = np.zeros(3)
        self._running_return: F64 = np.zeros(total)

    def _policy_fields(self) -> dict[str, Any]:
        policy = self.policy
        return policy.frame_fields() | {
            "mean": policy.obs_mean,
            "scale": policy.obs_scale,
            "low": policy.low,
            "high": policy.high,
            "limit": policy.obs_limit,
            "action_rng": self.action_rng,
            "store_raw_obs": self._raw_obs,
            "store_obs": self.obs,
            "store_actions": self.actions,
            "store_log_probs": self.log_probs,
            "store_values": self.values,
            "works": self._works,
            "env_action": self._env_action,
        }

    def _act_frame(self) -> Frame:
        return Frame(kernels.ACT, **self._policy_fields(), obs=self._obs, n_envs=self.n_envs)

    def _rollout_frame(self) -> Frame:
        env = self.env
        return Frame(
            kernels.ROLLOUT,
            **self._policy_fields(),
            advance=env.spec.advance_address,
            state=env.state,
            elapsed=env.elapsed,
            rng=env.rng,
            obs=env.obs,
            final_obs=env.final_obs,
            n_envs=self.n_envs,
            state_size=env.spec.state_size,
            max_steps=env.max_steps,
            block=self._block,
            rewards=self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            truncated_values=self.truncated_values,
            last_values=self.last_values,
            episode=self.episode,
            episode_sums=self._episode_sums,
            n_steps=self.settings.n_steps,
            work_floats=self._work_floats,
        )

    def _update_frame(self) -> Frame:
        s, n_params = self.settings, self.policy.params.size
        return Frame(
            actor_critic.UPDATE,
            **{name: value for name, value in self.policy.frame_fields().items() if name in UPDATE_FIELDS},
            obs=self.obs,
            actions=self.actions,
            log_probs=self.log_probs,
            values=self.values,
            advantages=self.advantages,
            returns=self.returns,
            order=self.order,
            shuffle_rng=self.shuffle_rng,
            adam_mean=self.adam_mean,
            adam_square=self.adam_square,
            grads=np.zeros((self._chunks, n_params), np.float32),
            squares=np.zeros(-(-n_params // optim.BLOCK), np.float32),
            stats=np.zeros((self._pieces, actor_critic.N_STATS)),
            totals=self._totals,
            works=self._works,
            n_params=n_params,
            n_samples=self.batch,
            epochs=s.epochs,
            minibatch=min(s.minibatch, self.batch),
            chunk_rows=self._chunk_rows,
            normalise=int(s.normalise_advantages),
            steps=0,
            stage=actor_critic.LAST_STAGE,
            work_floats=self._work_floats,
            clip=s.clip,
            value_clip=s.value_clip,
            entropy_coef=s.entropy_coef,
            value_coef=s.value_coef,
            target_kl=s.target_kl,
            rate=0.0,
            beta1=0.9,
            beta2=0.999,
            eps=s.adam_eps,
            max_norm=s.max_grad_norm,
        )

    def iterate(self, clock: PhaseClock, learning_rate: float, clip: float) -> UpdateStats:
        """Collect one rollout and learn from it, each part in its phase."""
        self._episode_sums[:] = 0.0
        if self._native:
            with clock.phase(Phase.ROLLOUT):
                self.team.run(kernels.rollout, self._rollout.record, len(self._episode_sums))
        else:
            steps = self.settings.n_steps
            collect_from_python(self.env, self._rollout, self, self.episode, self._episode_sums, steps, clock)
        with clock.phase(Phase.ADVANTAGE):
            self._compute_advantages()
        with clock.phase(Phase.LEARN):
            self._update_policy(learning_rate, clip, self._pieces)
            self.iterations += 1
            return self._stats()

    def _update_policy(self, learning_rate: float, clip: float, ranks: int) -> None:
        """Update the policy, on `ranks` threads at most."""
        self._totals[:] = 0.0
        frame = self._update.set(rate=learning_rate, clip=clip, steps=self.adam_steps)
        self.adam_steps = int(self.team.run(actor_critic.update, frame.record, min(self._pieces, ranks)))

    def _compute_advantages(self) -> None:
        s = self.settings
        shape = (s.n_steps, self.n_envs)
        if s.normalise_rewards:
            self._scale_rewards()
        # The arrays are this engine's own: what `gae` would check of a user's, holds.
        run_shards(
            gae_columns,
            self.n_envs,
            s.n_steps,
            self.rewards.reshape(shape),
            self.values.reshape(shape),
            self.terminated.reshape(shape),
            self.last_values,
            self.truncated.reshape(shape),
            self.truncated_values.reshape(shape),
            float(s.gamma),
            float(s.gae_lambda),
            self.advantages.reshape(shape),
            self.returns.reshape(shape),
        )
        if s.normalise_observations:
            self._update_obs_normalisation()

    def _scale_rewards(self) -> None:
        """Divide rewards by the running deviation of the discounted return, this rollout included."""
        shape = (self.settings.n_steps, self.n_envs)
        rewards = self.rewards.reshape(shape)
        done = (self.terminated | self.truncated).reshape(shape).astype(bool)
        running = np.empty(shape)
        current = self._running_return[self._own_envs]
        for t in range(shape[0]):
            current = current * self.settings.gamma + rewards[t]
            running[t] = current
            current = np.where(done[t], 0.0, current)
        self._running_return[self._own_envs] = current
        self.return_moments[:] = _merge(self.return_moments, running.reshape(-1))
        deviation = math.sqrt(self.return_moments[2] / max(self.return_moments[0], 1.0)) + 1e-8
        np.clip(self.rewards / deviation, -OBS_LIMIT, OBS_LIMIT, out=self.rewards)

    def _update_obs_normalisation(self) -> None:
        """Let this rollout's observations join the statistics that the next rollout is normalised with."""
        policy = self.policy
        self.obs_moments[:] = _merge(self.obs_moments, self._raw_obs.astype(np.float64))
        policy.obs_mean[:] = self.obs_moments[1]
        policy.obs_scale[:] = 1.0 / np.sqrt(self.obs_moments[2] / self.obs_moments[0] + 1e-8)
        # Not before there are statistics: the first rollout sees raw observations of any size.
        self.set_obs_limit(OBS_LIMIT)

    def set_obs_limit(self, limit: float) -> None:
        """Keep normalised observations within [-limit, limit] from now on."""
        self.policy.obs_limit = limit
        self._rollout.set(limit=limit)

    def _stats(self) -> UpdateStats:
        totals = self._totals
        samples, minibatches = max(totals[actor_critic.SAMPLES], 1.0), max(totals[actor_critic.MINIBATCHES], 1.0)
        episodes, returns, lengths = self._episode_sums.sum(axis=0)
        return UpdateStats(
            policy_loss=totals[actor_critic.POLICY_LOSS] / samples,
            value_loss=totals[actor_critic.VALUE_LOSS] / samples,
            entropy=totals[actor_critic.ENTROPY] / samples,
            approx_kl=totals[actor_critic.KL] / samples,
            clip_fraction=totals[actor_critic.CLIPPED] / samples,
            grad_norm=totals[actor_critic.GRAD_NORM] / minibatches,
            episodes=int(episodes),
            episode_return=returns / episodes if episodes else math.nan,
            episode_length=lengths / episodes if episodes else math.nan,
            truncations=int(np.count_nonzero(self.truncated)),
        )

    def state_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything that decides how training goes on, by name; the arrays are live."""
        arrays: dict[str, np.ndarray[Any, Any]] = {
            "params": self.policy.params,
            "obs_mean": self.policy.obs_mean,
            "obs_scale": self.policy.obs_scale,
            "adam_mean": self.adam_mean,
            "adam_square": self.adam_square,
            "action_rng": self.action_rng,
            "shuffle_rng": self.shuffle_rng,
            "order": self.order,
            "obs_moments": self.obs_moments,
            "return_moments": self.return_moments,
        }
        if self._native:
            # Other environments start anew, and their running episodes with them.
            env = self.env
            arrays |= {"env_state": env.state, "env_elapsed": env.elapsed, "env_rng": env.rng, "env_obs": env.obs}
            arrays |= {"episode": self.episode, "running_return": self._running_return}
        return arrays

    def counters(self) -> dict[str, int]:
        """The scalars that belong to `state_arrays`."""
        return {"iterations": self.iterations, "adam_steps": self.adam_steps}

    def set_counters(self, counters: dict[str, int]) -> None:
        """Put back what `counters` returned, after the arrays of `state_arrays`."""
        if counters.keys() != self.counters().keys() or min(counters.values()) < 0:
            raise UsageError(f"counters cannot be {counters}")
        # Kernels trust indices: those of a damaged file would reach memory that is not theirs.
        if not np.array_equal(np.sort(self.order), np.arange(self.batch)):
            raise UsageError("the order of samples is not a permutation")
        self.iterations, self.adam_steps = counters["iterations"], counters["adam_steps"]
        if self.settings.normalise_observations and self.iterations:
            self.set_obs_limit(OBS_LIMIT)


def _merge(moments: F64, batch: F64) -> F64:
    """Moments (count, mean, sum of squared deviations) after a batch joined them (Chan, Golub and LeVeque, 1979)."""
    count, mean, squares = moments
    n, batch_mean = batch.shape[0], batch.mean(axis=0)
    batch_squares = np.square(batch - batch_mean).sum(axis=0)
    total = count + n
    delta = batch_mean - mean
    merged = (total, mean + delta * n / total, squares + batch_squares + np.square(delta) * count * n / total)
    return np.stack([np.broadcast_to(part, np.shape(mean)) for part in merged])


def make_actor_critic(config: Any, spec: Any, seed: int) -> ActorCritic:
    """The policy of a configuration for an environment."""
    return ActorCritic(
        spec.obs_size,
        spec.n_actions,
        spec.action_low,
        spec.action_high,
        hidden=config.hidden,
        activation=config.activation,
        log_std_init=config.log_std_init,
        seed=seed,
    )


def on_policy_kernels(native: bool) -> tuple[str, ...]:
    """Kernels that a run needs, by their names in `mileage.kernels.machine.precompile`, in halves of like size."""
    return ("update", "gae", "rollout", "evaluate") if native else ("update", "gae", "act", "values")
