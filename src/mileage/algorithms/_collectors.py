"""Threads that collect while a learner learns, and the rollouts that go back and forth between them.

A fixed number of slots bounds how far collecting may run ahead. A slot holds one rollout and a copy of the policy it is
collected with, so that the learner may change its own at any time. A slot is free, assigned to a collector, or ready
for the learner; one lock guards who has which.

Without a fixed lag a collector takes any free slot and the newest policy, and the learner the rollout that was
finished first: what happens depends on timing. With a lag of L, rollout number t is collected by collector
t mod C with the policy after exactly max(0, t - L) updates, and learned from in order: nothing depends on timing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from mileage._errors import UsageError
from mileage._types import Array
from mileage.contracts import Clock
from mileage.meter import Phase
from mileage.policies import ActorCritic


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
        if policy.in_parts:
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
        self.rest()
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
            self.rest(abandon=True)
            raise error or RuntimeError("no rollout")
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back that has been read."""
        with self._changed:
            self._slots.state[slot] = SlotState.FREE
            self._changed.notify_all()

    def rest(self, *, abandon: bool = False) -> None:
        """Stop the threads after the rollouts they are in, or in the middle of them; `start` goes on from there."""
        with self._changed:
            self._stopping, self._abandoning = True, abandon
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                # One that never comes back from an environment must not keep the others from ending.
                thread.join(_PATIENCE if abandon else None)
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
