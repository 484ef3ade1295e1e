"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561): collectors run ahead, V-trace corrects for it.

Collector threads fill rollouts with copies of the policy while the learner updates it. By the time a rollout is learned
from, the policy has moved on by some updates, the *lag*. V-trace weighs temporal differences and traces with clipped
ratios of the two policies' probabilities; the policy gradient is that of advantage actor-critic, one step per rollout.

A fixed number of slots bounds how far collecting may run ahead. A slot holds one rollout and a copy of the policy it is
collected with, so that the learner may change its own at any time. A slot is free, assigned to a collector, or ready
for the learner; one lock guards who has which.

Without a fixed lag a collector takes any free slot and the newest policy, and the learner the rollout that was
finished first: what happens depends on timing. With a lag of L, rollout number t is collected by collector
t mod C with the policy after exactly max(0, t - L) updates, and learned from in order: nothing depends on timing.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any

import numpy as np

from mileage.algorithms.configs import OnPolicyConfig
from mileage.algorithms.describe import native
from mileage.algorithms.rollout_learner import UpdateStats
from mileage.algorithms.rollouts import NativeOnPolicy, collect_from_python
from mileage.config import Count, OrNone, Positive, Share, one_of
from mileage.contracts import Clock, VectorEnv
from mileage.description import Description
from mileage.errors import UsageError, require
from mileage.kernels import actor_critic
from mileage.kernels import rollout as kernels
from mileage.kernels.arrays import vtrace
from mileage.kernels.machine.frames import Frame
from mileage.measure import Phase
from mileage.policies import ActorCritic
from mileage.records import Record, named
from mileage.types import F32, I64, Array, Team


# --- Threads that collect while a learner learns, and the rollouts that go back and forth between them ---
class SlotState(IntEnum):
    """Whose turn it is with a slot."""

    FREE = 0
    ASSIGNED = 1
    READY = 2


class Slots:
    """Memory of all rollouts under way, one array per field with the slot as its first dimension.

    Rows of a rollout are flat over time and its N environments; `obs` has N more, what the environments show after
    the last step. `params`, `mean`, `scale` and `limit` are the policy it is collected with, `version` the number of
    updates behind that, and `turn` its place in the order of rollouts.
    """

    def __init__(self, n_slots: int, n_steps: int, n_envs: int, policy: ActorCritic, blocks: int, raw: bool) -> None:
        rows, obs_size = n_steps * n_envs, policy.obs_size
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "obs": ((rows + n_envs, obs_size), np.float32),
            "raw_obs": ((rows if raw else 0, obs_size), np.float32),
            "actions": ((rows, policy.action_size), np.float32),
            "last_values": ((n_envs,), np.float32),
            "episode_sums": ((blocks, 3), np.float64),
            "params": ((policy.params.size,), np.float32),
            "limit": ((), np.float64),
        } | dict.fromkeys(("log_probs", "values", "rewards", "truncated_values"), ((rows,), np.float32))
        shapes |= dict.fromkeys(("mean", "scale"), ((obs_size,), np.float32))
        shapes |= dict.fromkeys(("terminated", "truncated"), ((rows,), np.uint8))
        shapes |= dict.fromkeys(("state", "turn", "version", "collector"), ((), np.int64))
        if policy.structured_actions:
            shapes["masks"] = ((rows, sum(policy.branches)), np.uint8)
        zeros = {name: np.zeros((n_slots, *shape), dtype) for name, (shape, dtype) in shapes.items()}
        self.arrays: dict[str, Array] = zeros
        self._branches = np.array(policy.branches)

    def __len__(self) -> int:
        return len(self.arrays["state"])

    def __getattr__(self, name: str) -> Array:
        try:
            return self.__dict__["arrays"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def load_policy(self, slot: int, policy: ActorCritic, version: int) -> None:
        """Copy a policy that is `version` updates old into a slot."""
        self.params[slot] = policy.params
        self.mean[slot], self.scale[slot] = policy.obs_mean, policy.obs_scale
        self.limit[slot] = policy.obs_limit
        self.version[slot] = version

    def check(self, collectors: int) -> None:
        """Refuse what a damaged file may hold: kernels trust indices."""
        states = set(self.state.tolist())
        owners = self.collector
        if not states <= set(SlotState) or owners.min() < 0 or owners.max() >= collectors:
            raise UsageError("the rollouts under way belong to nobody")
        choices = self.actions[..., : len(self._branches)]
        if not ((choices >= 0) & (choices < self._branches)).all():
            raise UsageError("a rollout under way has an action that does not exist")


# Seconds to wait for a collector that is to give up what it is at.
_PATIENCE = 2.0

Collect = Callable[[int, Clock, Callable[[], bool]], bool]
"""Fill a slot, on a clock, as long as it is wanted; True if the rollout is whole."""


class Crew:
    """The collectors' threads. They run from `start` to `rest`; between them the learner calls `take` and `publish`."""

    def __init__(self, slots: Slots, collect: Sequence[Collect], policy: ActorCritic, lag: int | None) -> None:
        """Bind collectors to slots; `lag` None lets timing decide."""
        self._slots, self._collect, self._policy, self._lag = slots, collect, policy, lag
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._clock: Clock | None = None
        self._stopping = self._abandoning = False
        self._error: BaseException | None = None
        # The newest policy, for collectors to copy while the learner's own changes.
        self._newest = Slots(1, 1, 1, policy, 1, False)

    def start(self, clock: Clock, version: int) -> None:
        """Let collectors work, on the learner's `clock`, with the policy as it is; nothing if they do already."""
        at_work = self._threads and all(thread.is_alive() for thread in self._threads)
        if at_work and clock is self._clock and not self._stopping:
            return
        self.stop()
        self._clock = clock
        self.publish(version)
        for number in range(len(self._collect)):
            name = f"collector-{number}"
            thread = threading.Thread(target=self._serve, args=(number, clock), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def publish(self, version: int) -> None:
        """Collect with the policy as it is now, `version` updates old, from the next rollout on."""
        slots = self._slots
        with self._changed:
            if self._lag is None:
                self._newest.load_policy(0, self._policy, version)
                return
            under_way = int(np.count_nonzero(slots.state != SlotState.FREE))
            for turn in range(version + under_way, version + self._lag + 1):
                slot = int(np.flatnonzero(slots.state == SlotState.FREE)[0])
                slots.load_policy(slot, self._policy, version)
                slots.turn[slot], slots.collector[slot] = turn, turn % len(self._collect)
                slots.state[slot] = SlotState.ASSIGNED
            self._changed.notify_all()

    def take(self, turn: int) -> int:
        """Wait for rollout number `turn`, or for any if timing decides, and return its slot: `release` it."""
        with self._changed:
            while (slot := self._ready(turn)) is None and self._error is None:
                self._changed.wait()
            error, self._error = self._error, None
        if error is not None or slot is None:
            self.stop(finish=False)
            raise error or RuntimeError("no rollout")
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back that has been read."""
        with self._changed:
            self._slots.state[slot] = SlotState.FREE
            self._changed.notify_all()

    def stop(self, *, finish: bool = True) -> None:
        """Stop the threads after the rollouts they are in, or in the middle of them; `start` goes on from there."""
        with self._changed:
            self._stopping, self._abandoning = True, not finish
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                # One that never comes back from an environment must not keep the others from ending.
                thread.join(None if finish else _PATIENCE)
        self._threads = []
        self._stopping = self._abandoning = False
        self._error = None
        if self._lag is None:
            state = self._slots.state
            state[state == SlotState.ASSIGNED] = SlotState.FREE

    def _ready(self, turn: int) -> int | None:
        """The slot of rollout `turn`; without a lag, of the one that was finished first."""
        slots = self._slots
        ready = np.flatnonzero(slots.state == SlotState.READY)
        if self._lag is not None:
            ready = ready[slots.turn[ready] == turn]
        return int(ready[np.argmin(slots.turn[ready])]) if ready.size else None

    def _next_slot(self, number: int) -> int | None:
        """A slot for collector `number` to fill, if there is one now."""
        slots = self._slots
        if self._lag is not None:
            mine = np.flatnonzero((slots.state == SlotState.ASSIGNED) & (slots.collector == number))
            return int(mine[np.argmin(slots.turn[mine])]) if mine.size else None
        free = np.flatnonzero(slots.state == SlotState.FREE)
        if not free.size:
            return None
        slot, newest = int(free[0]), self._newest
        for name in ("params", "mean", "scale", "limit", "version"):
            slots.arrays[name][slot] = newest.arrays[name][0]
        slots.collector[slot], slots.state[slot] = number, SlotState.ASSIGNED
        return slot

    def _finish(self, slot: int) -> None:
        slots = self._slots
        with self._changed:
            if self._lag is None:
                # Rollouts under way are few and their turns near each other: one more than any of them.
                slots.turn[slot] = slots.turn.max() + 1
            slots.state[slot] = SlotState.READY
            self._changed.notify_all()

    def _serve(self, number: int, clock: Clock) -> None:
        """What a collector's thread does."""
        waiting = clock.phase(Phase.SYNC)
        try:
            while True:
                with waiting, self._changed:
                    while (slot := None if self._stopping else self._next_slot(number)) is None:
                        if self._stopping:
                            return
                        self._changed.wait()
                if not self._collect[number](slot, clock, lambda: not self._abandoning):
                    return
                self._finish(slot)
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()


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
        floats = actor_critic.scores_work_floats(policy.actor_sizes, policy.critic_sizes)
        kind = actor_critic.MASKED_SCORE if policy.structured_actions else actor_critic.SCORE
        self._score = Frame(
            kind,
            **{name: value for name, value in policy.frame_fields().items() if name in (kind.names or ())},
            **(named(self, "masks") if policy.structured_actions else {}),
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
        if self.policy.structured_actions:
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
        masks = ("masks",) if self.policy.structured_actions else ()
        for name in ("actions", "rewards", "terminated", "truncated", "truncated_values", *masks):
            getattr(self, name)[:] = slots.arrays[name][slot]

    def _compute_advantages(self) -> None:
        config, shape = self.config, (self.config.n_steps, self.n_envs)
        self._lag = self.iterations - int(self.slots.version[self._slot])
        self._copy_in(self._slot)
        self._crew.release(self._slot)
        pieces = min(actor_critic.pieces(self.batch + self.n_envs), self.ranks)
        self.team.run(actor_critic.score, self._score.record, pieces)
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

    def stop(self, *, finish: bool = True) -> None:
        """Stop collecting, after the rollouts under way unless they are to be abandoned."""
        self._crew.stop(finish=finish)

    def _learner_arrays(self) -> dict[str, Array]:
        rollouts = {f"rollout_{name}": array for name, array in self.slots.arrays.items()}
        return super()._learner_arrays() | rollouts | {"lags": self.lags}

    def state_arrays(self) -> dict[str, Array]:
        """Everything that decides how training goes on, by name, rollouts under way included; collecting stops."""
        self.stop()
        return super().state_arrays()

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        super()._set_counters(counters)
        self.slots.check(self.config.collectors)

    def describe(self) -> Description:
        """The update; rollouts are collected beside it."""
        from mileage.algorithms.describe_learners import learner_alone

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
