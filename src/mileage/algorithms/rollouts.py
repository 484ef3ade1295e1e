"""How PPO and A2C collect: the fused native collector with its update, and a rollout over Python environments.

The kernels see plain memory; this class owns it and says how large it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mileage.algorithms.configs import OnPolicyConfig
from mileage.algorithms.rollout_learner import RolloutLearner
from mileage.codec import no_way_out
from mileage.contracts import Clock, EnvSpec, VectorEnv
from mileage.envs.native.vector import VecEnv
from mileage.kernels import actor_critic, optim
from mileage.kernels import rollout as kernels
from mileage.kernels.machine.frames import Frame
from mileage.measure import Phase
from mileage.policies import ActorCritic
from mileage.records import Record, named
from mileage.types import F32, F64, I64, U8, Array

if TYPE_CHECKING:
    from mileage.description import Description


# --- A rollout over environments that only Python can step ---
class RolloutStore(Protocol):
    """Where a rollout's second halves go: flat over time and environment, row `t * N + i`; `last_values` is (N,)."""

    rewards: F32
    terminated: U8
    truncated: U8
    truncated_values: F32
    last_values: F32


def collect_from_python(
    env: VectorEnv, frame: Frame, store: RolloutStore, episode: F64, episode_sums: F64, n_steps: int, clock: Clock,
    wanted: Callable[[], bool] = lambda: True,
) -> bool:  # fmt: skip
    """Step `env` `n_steps` times with the policy of `frame` (`ACT`), and store what happens.

    Args:
        env: vector environment of N environments.
        frame: its `obs` (N, O) float32 holds what the environments show now, and does so again afterwards.
        store: receives rewards, flags and values.
        episode: (N, 2) float64, return and length of running episodes.
        episode_sums: (blocks, 3) float64, to whose first row number, returns and lengths of ended ones are added.
        n_steps: steps of each environment.
        clock: gets the phases `inference` and `env_step`.
        wanted: asked before every step; the rollout is given up once it says no.

    Returns:
        Whether the rollout is whole.
    """
    obs, env_action = frame.array("obs"), frame.array("env_action")
    n = len(obs)
    inference, env_step = clock.phase(Phase.INFERENCE), clock.phase(Phase.ENV_STEP)
    discrete = int(frame.record["n_actions"][0]) > 0
    masks = frame.array("masks") if env.spec.masked else None
    for t in range(n_steps):
        if not wanted():
            return False
        rows = slice(t * n, (t + 1) * n)
        with inference:
            if masks is not None and (possible := env.masks) is not None:
                np.copyto(masks, possible)
            kernels.act(frame.record, t * n)
        with env_step:
            action = env_action[:, 0].astype(np.int64) if discrete else env_action
            shown, reward, terminated, truncated, infos = env.step(action)
            store.rewards[rows] = reward
            store.terminated[rows] = terminated
            store.truncated[rows] = truncated & ~terminated
        done = terminated | truncated
        episode[:, 0] += reward
        episode[:, 1] += 1.0
        if done.any():
            with inference:
                obs[:] = infos["final_obs"]
                kernels.values(frame.record, store.truncated_values[rows])
            ended = episode[done]
            episode_sums[0] += (len(ended), *ended.sum(axis=0))
            episode[done] = 0.0
        obs[:] = shown
    with inference:
        kernels.values(frame.record, store.last_values)
    return True


class NativeOnPolicy(RolloutLearner):
    """One learner on native kernels.

    Attributes for whoever measures it:
        fused: whether the rollout's kernel steps the environments itself; Python does otherwise.
        rollout_frame: arguments of the collector's kernel: `rollout` if fused, else `act` and `values`.
        update_frame: arguments of `actor_critic.update`.
        block: environments that the fused collector takes together.
        chunks, chunk_rows: how many chunks a minibatch is cut into, and the samples of each.
        pieces: what the update's threads share out: both networks on every chunk.
        ranks: threads that an update may use.
    """

    policy: ActorCritic

    @classmethod
    def kernels(cls, native: bool) -> tuple[str, ...]:
        """Kernels that a run needs, by their names in `mileage.kernels.machine.precompile`, in halves of like size."""
        return ("update", "gae", "rollout", "evaluate") if native else ("update", "gae", "act", "values")

    @classmethod
    def make_policy(cls, config: OnPolicyConfig, spec: EnvSpec, seed: int) -> ActorCritic:
        """The networks for an environment."""
        network = named(config, "hidden activation log_std_init") | named(spec, "branches masked")
        return ActorCritic(spec.obs_size, spec.n_actions, spec.action_low, spec.action_high, **network, seed=seed)

    def _allocate(self) -> None:
        n, policy, total = self.batch, self.policy, self.env.num_envs
        obs_size, action_size = policy.obs_size, policy.action_size

        def floats(*shape: int) -> F32:
            return np.zeros(shape, np.float32)

        self.fused = isinstance(self.env, VecEnv)
        self.ranks = self.team.n_ranks
        self.obs, self.actions = floats(n, obs_size), floats(n, action_size)
        self.raw_obs = floats(n, obs_size) if self.config.normalise_observations else self.obs
        self.log_probs, self.values, self.last_values = floats(n), floats(n), floats(self.n_envs)
        self.advantages, self.returns = floats(n), floats(n)
        self.order = np.arange(n, dtype=np.int64)
        self.block = kernels.block_size(self.n_envs)
        self.episode_sums = np.zeros((-(-self.n_envs // self.block), 3))
        self.adam_mean, self.adam_square = np.zeros_like(policy.params), np.zeros_like(policy.params)
        choices = sum(policy.branches) if policy.structured_actions else 0
        self.masks: U8 = np.ones((n, choices), np.uint8)
        """What was possible, (B, M), if actions have several parts or masks."""
        self.shown_masks: U8 = np.ones((total, choices), np.uint8)
        self._faults: I64 = np.zeros(1, np.int64)
        self.env_action = floats(total, action_size)
        self.shown_obs = floats(total, obs_size)
        minibatch = min(self.config.minibatch, n)
        self.chunks, self.pieces = actor_critic.n_chunks(minibatch), actor_critic.n_pieces(minibatch)
        self.chunk_rows = -(-minibatch // self.chunks)
        rows = max(self.chunk_rows, self.block, 1 if self.fused else self.n_envs)
        self.work_floats = actor_critic.work_floats(rows, policy.actor_sizes, policy.critic_sizes)
        self.works = floats(self.team.n_ranks, self.work_floats)
        self.update_frame = self._update_frame()
        self.rollout_frame = self._rollout_frame() if self.fused else self._act_frame()

    def _begin_episodes(self) -> None:
        if not self.fused:
            self.shown_obs[:] = self.env.obs

    def policy_fields(self) -> Record:
        """The policy's fields of a frame that acts, and where what it does is stored."""
        stored = {"store_raw_obs": self.raw_obs, "store_obs": self.obs, "store_actions": self.actions}
        stored |= {"store_log_probs": self.log_probs, "store_values": self.values}
        if self.policy.structured_actions:
            stored |= {"masks": self.shown_masks, "store_masks": self.masks, "faults": self._faults}
        return self.policy.acting_fields() | stored | named(self, "action_rng works env_action")

    def _act_frame(self) -> Frame:
        kind = kernels.MASKED_ACT if self.policy.structured_actions else kernels.ACT
        return Frame(kind, **self.policy_fields(), obs=self.shown_obs, n_envs=self.n_envs)

    def _rollout_frame(self) -> Frame:
        env = self.env
        assert isinstance(env, VecEnv)
        own = "n_envs block rewards terminated truncated truncated_values last_values episode episode_sums work_floats"
        stepping = env.frame_fields() | named(self, own)
        kind = kernels.MASKED_ROLLOUT if self.policy.structured_actions else kernels.ROLLOUT
        mask = {"mask": env.spec.mask_address} if self.policy.structured_actions else {}
        return Frame(kind, **self.policy_fields(), **(stepping | mask), n_steps=self.config.n_steps)

    def _update_frame(self) -> Frame:
        config, n_params = self.config, self.policy.params.size
        rollout = named(self, "obs actions log_probs values advantages returns order shuffle_rng")
        memory = named(self, "adam_mean adam_square totals works work_floats chunk_rows")
        loss = named(config, "epochs clip value_clip entropy_coef value_coef target_kl")
        kind = actor_critic.MASKED_UPDATE if self.policy.structured_actions else actor_critic.UPDATE
        rollout |= named(self, "masks") if self.policy.structured_actions else {}
        return Frame(
            kind,
            **{name: value for name, value in self.policy.frame_fields().items() if name in (kind.names or ())},
            **(rollout | memory | loss | optim.adam_fields(0.0, config.adam_eps, config.max_grad_norm)),
            grads=np.zeros((self.chunks, n_params), np.float32),
            squares=np.zeros(-(-n_params // optim.BLOCK), np.float32),
            stats=np.zeros((self.pieces, actor_critic.N_STATS)), n_params=n_params, n_samples=self.batch,
            minibatch=min(config.minibatch, self.batch), normalise=int(config.normalise_advantages), steps=0,
            stage=actor_critic.LAST_STAGE,
        )  # fmt: skip

    def _collect(self, clock: Clock) -> None:
        self.episode_sums[:] = 0.0
        if self.fused:
            with clock.phase(Phase.ROLLOUT):
                self.team.run(kernels.rollout, self.rollout_frame.record, len(self.episode_sums))
            self._raise_failure()
        else:
            steps = self.config.n_steps
            collect_from_python(self.env, self.rollout_frame, self, self.episode, self.episode_sums, steps, clock)
        self._check_masks()

    def _check_masks(self) -> None:
        """UsageError if an environment has left nothing possible."""
        if self._faults[0]:
            raise no_way_out(self.env.spec.id)

    def _raise_failure(self) -> None:
        """EnvError if an environment failed in the fused collector."""
        if isinstance(self.env, VecEnv):
            self.env.raise_failure()

    def _update_policy(self, rate: float, clip: float) -> None:
        self.totals[:] = 0.0
        frame = self.update_frame.set(rate=rate, clip=clip, steps=self.adam_steps)
        self.adam_steps = int(self.team.run(actor_critic.update, frame.record, min(self.pieces, self.ranks)))

    def set_obs_limit(self, limit: float) -> None:
        """Keep normalised observations within [-limit, limit] from now on."""
        super().set_obs_limit(limit)
        self.rollout_frame.set(limit=limit)

    def describe(self) -> Description:
        """Rollout and update: their calls in parts and in stages, and their work."""
        from mileage.algorithms.describe_learners import native_on_policy

        return native_on_policy(self)

    def _learner_arrays(self) -> dict[str, Array]:
        return super()._learner_arrays() | {"adam_mean": self.adam_mean, "adam_square": self.adam_square}
