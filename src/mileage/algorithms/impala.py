"""IMPALA: collectors run ahead of the learner, and V-trace corrects for it (Espeholt et al., 2018, arXiv:1802.01561).

Collector threads fill rollouts with copies of the policy while the learner updates it. By the time a rollout is learned
from, the policy has moved on by some updates, the *lag*. V-trace weighs temporal differences and traces with clipped
ratios of the two policies' probabilities; the policy gradient is that of advantage actor-critic, one step per rollout.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Annotated

import numpy as np

from mileage._errors import UsageError, require
from mileage._ranges import Count, OrNone, Positive, Share, one_of
from mileage._records import Record, named
from mileage._types import F32, I64, Array
from mileage.algorithms._collectors import Collect, Crew, Slots
from mileage.algorithms._config import OnPolicyConfig
from mileage.algorithms._describe import native
from mileage.algorithms._native_on_policy import NativeOnPolicy
from mileage.algorithms._rollout_learner import UpdateStats
from mileage.algorithms._stepping import collect_from_python
from mileage.contracts import Clock, Team, VectorEnv
from mileage.description import Description
from mileage.kernels.arrays.advantages import vtrace
from mileage.kernels.learners import actor_critic, scores
from mileage.kernels.learners import rollout as kernels
from mileage.kernels.machine.pointers import Frame
from mileage.meter import Phase
from mileage.policies import ActorCritic

MODES = ("async", "lockstep")
# Lags from here on are counted together.
MOST_LAG = 31


@dataclasses.dataclass(frozen=True)
class IMPALAConfig(OnPolicyConfig):
    """Hyperparameters of IMPALA."""

    n_steps: int = 16
    n_envs: int = 16
    """Environments in all, shared out evenly among the collectors."""
    collectors: Count = 1
    """Threads that collect; each has `n_envs / collectors` environments. 1 where only Python can step them."""
    mode: Annotated[str, one_of(*MODES)] = "async"
    """`async`: collectors take the newest policy and timing decides. `lockstep`: always `lag` behind, reproducible."""
    queue: Count = 1
    """In `async`, finished rollouts that may wait for the learner."""
    lag: OrNone = 1
    """In `lockstep`, updates by which the policy that collects is behind; 0 collects and learns in turn."""
    trace_lambda: Share = 1.0
    """Extra decay of the traces."""
    rho_bar: Positive = 1.0
    """Clip of the probability ratios that weigh temporal differences."""
    c_bar: Positive = 1.0
    """Clip of the probability ratios in the traces; at most `rho_bar`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shared = self.n_envs % self.collectors == 0
        require(shared, "n_envs", self.n_envs, f"a multiple of collectors={self.collectors}")
        require(self.c_bar <= self.rho_bar, "c_bar", self.c_bar, f"at most rho_bar={self.rho_bar}")

    @property
    def batch_size(self) -> int:
        """Environment steps that one update learns from: one collector's rollout."""
        return self.n_envs // self.collectors * self.n_steps

    @property
    def gae_lambda(self) -> float:
        """The decay of traces by the name that it has elsewhere."""
        return self.trace_lambda


@dataclasses.dataclass(frozen=True)
class ImpalaStats(UpdateStats):
    """Means over the samples of one update.

    `approx_kl` is how far the policy had moved since it collected them, `clip_fraction` the share of probability ratios
    above `rho_bar`.
    """

    lag: int
    """Updates between the policy that collected this rollout and the one that learned from it."""


class IMPALA(NativeOnPolicy):
    """IMPALA on built parts: learns from one collector's rollout at a time, while collectors go on."""

    Config = IMPALAConfig
    own_threads = True
    config: IMPALAConfig

    def __init__(self, config: IMPALAConfig, env: VectorEnv, policy: ActorCritic, team: Team, seed: int) -> None:
        super().__init__(config, env, policy, team, seed, config.n_envs // config.collectors)
        if config.collectors > 1 and not self.fused:
            raise UsageError("collectors must be 1 for an environment that only Python can step")
        lag = config.lag if config.mode == "lockstep" else None
        n_slots = config.collectors + config.queue if lag is None else lag + 1
        blocks, raw = len(self.episode_sums), config.normalise_observations
        self.slots = Slots(n_slots, config.n_steps, self.n_envs, policy, blocks, raw)
        self.lags: I64 = np.zeros(MOST_LAG + 1, np.int64)
        """How many updates had which lag."""
        numbers = range(config.collectors)
        self._frames = [[self._frame(number, slot) for slot in range(n_slots)] for number in numbers]
        self._crew = Crew(self.slots, [self._collector(number) for number in numbers], policy, lag)
        # Collectors need cores of their own.
        self.ranks = max(1, team.n_ranks - config.collectors)

    @classmethod
    def kernels(cls, native: bool) -> tuple[str, ...]:
        """Kernels that a run needs, by their names in `mileage.kernels.machine.precompile`, in halves of like size."""
        collecting = ("rollout", "evaluate") if native else ("act", "values")
        return ("update", "vtrace", *collecting, "score")

    def _allocate(self) -> None:
        super()._allocate()
        n, policy = self.batch, self.policy
        # One more row per environment: what it shows after the last step, whose values close the rollout.
        rows: F32 = np.zeros((n + self.n_envs, policy.obs_size), np.float32)
        values: F32 = np.zeros(n + self.n_envs, np.float32)
        self.obs, self.values, self.last_values = rows[:n], values[:n], values[n:]
        self.raw_obs = np.zeros_like(self.obs) if self.config.normalise_observations else self.obs
        self.update_frame.set(obs=self.obs, values=self.values)
        self.collected_log_probs: F32 = np.zeros(n, np.float32)
        self._log_ratios: F32 = np.zeros(n, np.float32)
        floats = scores.work_floats(policy.actor_sizes, policy.critic_sizes)
        kind = scores.MASKED_SCORE if policy.in_parts else scores.SCORE
        self._score = Frame(
            kind,
            **{name: value for name, value in policy.frame_fields().items() if name in (kind.names or ())},
            **(named(self, "masks") if policy.in_parts else {}),
            **named(self, "actions log_probs"), obs=rows, values=values,
            works=np.zeros((self.team.n_ranks, floats), np.float32), n_scored=n, n_valued=n + self.n_envs,
            work_floats=floats,
        )  # fmt: skip

    # Collecting: what follows runs on the collectors' threads.

    def _frame(self, number: int, slot: int) -> Frame:
        """What collector `number` needs to fill a slot."""
        columns, slots = self._columns_of(number), self.slots
        rows = max(self.block, self.n_envs)
        floats = actor_critic.work_floats(rows, self.policy.actor_sizes, self.policy.critic_sizes)
        raw = slots.raw_obs if self.config.normalise_observations else slots.obs
        fields: Record = {name: slots.arrays[name][slot] for name in ("params", "mean", "scale")}
        for name in ("obs", "actions", "log_probs", "values"):
            fields[f"store_{name}"] = slots.arrays[name][slot]
        fields |= {name: getattr(self, name)[columns] for name in ("action_rng", "env_action")}
        fields |= {"store_raw_obs": raw[slot], "works": np.zeros(floats, np.float32)}
        if self.policy.in_parts:
            fields |= {"masks": self.shown_masks[columns], "store_masks": slots.masks[slot]}
        if not self.fused:
            return self._act_frame().set(**fields)
        stored = ("rewards", "terminated", "truncated", "truncated_values", "last_values", "episode_sums")
        shared = ("state", "elapsed", "rng", "obs", "final_obs")
        return self._rollout_frame().set(
            **fields,
            **{name: slots.arrays[name][slot] for name in stored},
            **{name: getattr(self.env, name)[columns] for name in shared},
            episode=self.episode[columns],
            work_floats=floats,
        )

    def _columns_of(self, number: int) -> slice:
        return slice(number * self.n_envs, (number + 1) * self.n_envs)

    def _collector(self, number: int) -> Collect:
        """The function that collects as number `number`."""
        barrier: I64 = np.zeros(16, np.int64)

        def collect(slot: int, clock: Clock, wanted: Callable[[], bool]) -> bool:
            frame, slots = self._frames[number][slot].set(limit=float(self.slots.limit[slot])), self.slots
            slots.episode_sums[slot] = 0.0
            if self.fused:
                with clock.phase(Phase.ROLLOUT):
                    kernels.rollout(0, 1, barrier, frame.record)
                self._raise_failure()
            else:
                store = _SlotStore(slots, slot)
                sums, steps = slots.episode_sums[slot], self.config.n_steps
                if not collect_from_python(self.env, frame, store, self.episode, sums, steps, clock, wanted):
                    return False
            limit = slots.limit[slot]
            shown = (frame.array("obs") - slots.mean[slot]) * slots.scale[slot]
            slots.obs[slot, self.batch :] = np.clip(shown, -limit, limit)
            return True

        return collect

    # Learning.

    def _collect(self, clock: Clock) -> None:
        """Wait for a rollout; collectors' phases are beside the learner's."""
        self._crew.start(clock, self.iterations)
        with clock.phase(Phase.SYNC):
            self._slot = self._crew.take(self.iterations)
        self._check_masks()

    def _copy_in(self, slot: int) -> None:
        """Take a rollout out of its slot, so that the slot can be filled again while this one is learned from."""
        slots = self.slots
        self.own_envs = self._columns_of(int(slots.collector[slot]))
        self._score.array("obs")[:] = slots.obs[slot]
        if self.config.normalise_observations:
            self.raw_obs[:] = slots.raw_obs[slot]
        self.collected_log_probs[:] = slots.log_probs[slot]
        self.episode_sums[:] = slots.episode_sums[slot]
        masks = ("masks",) if self.policy.in_parts else ()
        for name in ("actions", "rewards", "terminated", "truncated", "truncated_values", *masks):
            getattr(self, name)[:] = slots.arrays[name][slot]

    def _compute_advantages(self) -> None:
        config, shape = self.config, (self.config.n_steps, self.n_envs)
        self._lag = self.iterations - int(self.slots.version[self._slot])
        self._copy_in(self._slot)
        self._crew.release(self._slot)
        pieces = min(scores.pieces(self.batch + self.n_envs), self.ranks)
        self.team.run(scores.score, self._score.record, pieces)
        if config.normalise_rewards:
            self._scale_rewards()
        np.subtract(self.log_probs, self.collected_log_probs, out=self._log_ratios)
        vtrace(
            self._log_ratios.reshape(shape), self.rewards.reshape(shape), self.values.reshape(shape),
            self.terminated.reshape(shape), self.last_values, truncated=self.truncated.reshape(shape),
            truncated_values=self.truncated_values.reshape(shape), gamma=float(config.gamma),
            lambda_=float(config.trace_lambda), rho_bar=float(config.rho_bar), c_bar=float(config.c_bar),
            out=(self.returns.reshape(shape), self.advantages.reshape(shape)),
        )  # fmt: skip
        if config.normalise_observations:
            self._update_obs_normalisation()

    def _update_policy(self, rate: float, clip: float) -> None:
        super()._update_policy(rate, clip)
        self._crew.publish(self.iterations + 1)
        self.lags[min(self._lag, MOST_LAG)] += 1

    def _stats(self) -> ImpalaStats:
        found = dataclasses.asdict(super()._stats())
        ratios = np.exp(self._log_ratios.astype(np.float64))
        found["approx_kl"] = float(np.mean(ratios - 1.0 - self._log_ratios))
        found["clip_fraction"] = float(np.mean(ratios > self.config.rho_bar))
        return ImpalaStats(**found, lag=self._lag)

    def rest(self, *, abandon: bool = False) -> None:
        """Stop collecting, after the rollouts under way unless they are to be abandoned."""
        self._crew.rest(abandon=abandon)

    def _learner_arrays(self) -> dict[str, Array]:
        rollouts = {f"rollout_{name}": array for name, array in self.slots.arrays.items()}
        return super()._learner_arrays() | rollouts | {"lags": self.lags}

    def state_arrays(self) -> dict[str, Array]:
        """Everything that decides how training goes on, by name, rollouts under way included; collecting stops."""
        self.rest()
        return super().state_arrays()

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        super()._set_counters(counters)
        self.slots.check(self.config.collectors)

    def describe(self) -> Description:
        """The update; rollouts are collected beside it."""
        from mileage.algorithms._describe_on_policy import learner_alone

        return learner_alone(self, native(sys.modules[__name__], "vtrace"))

    def summary(self) -> Record:
        """The policy lag of all updates: their number, mean and maximum, and how many had which lag."""
        updates = int(self.lags.sum())
        counts = {str(lag): int(count) for lag, count in enumerate(self.lags) if count}
        mean = float(self.lags @ np.arange(len(self.lags)) / updates) if updates else None
        most = max(map(int, counts), default=None)
        return {"policy_lag": {"updates": updates, "mean": mean, "max": most, "counts": counts}}


class _SlotStore:
    """The arrays of one slot under the names that a rollout is stored by."""

    def __init__(self, slots: Slots, slot: int) -> None:
        self.rewards, self.last_values = slots.rewards[slot], slots.last_values[slot]
        self.terminated, self.truncated = slots.terminated[slot], slots.truncated[slot]
        self.truncated_values = slots.truncated_values[slot]
