"""What replaying may cost: a budget, what it was spent on, and an end at any time that keeps what is known."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

LEAST_SECONDS = 2.0
"""Replays may take as long as the run, and at least this."""
# What all replays take at full length.
_FULL_SECONDS = 12.0

Found = TypeVar("Found")


class Allowance:
    """A budget that stages of a replay are taken from, one after the other.

    A stage that does not fit into what is left is left out, and its name kept. Ctrl-C ends the stage that is under way
    and leaves out those that follow.
    """

    def __init__(self, seconds: float, say: Callable[[str], None] | None = None, effort: float = 1.0) -> None:
        """Allow `seconds`; `say` is told what goes on."""
        self.seconds = seconds
        self._began = time.perf_counter()
        self._say = say or (lambda text: None)
        self.effort = min(effort, effort * seconds / _FULL_SECONDS)
        """What lengths of measurements are multiplied with, so that all of them fit."""
        self.skipped: list[str] = []
        """Stages that were left out."""
        self.interrupted = False

    @classmethod
    def of_run(cls, wall_seconds: float, say: Callable[[str], None] | None = None, effort: float = 1.0) -> Allowance:
        """No longer than the run took, and two seconds at least."""
        return cls(max(LEAST_SECONDS, wall_seconds), say, effort)

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.seconds - self.spent)

    def stage(self, name: str, needed: float, measure: Callable[[], Found], default: Found) -> Found:
        """What `measure` finds; `default` where less than `needed` seconds are left for it, or somebody interrupts."""
        if self.interrupted or needed > self.left:
            self.skipped.append(name)
            return default
        self._say(f"replaying: {name} ({self.spent:.0f} of at most {self.seconds:.0f} s)")
        try:
            return measure()
        except KeyboardInterrupt:
            self.interrupted = True
            self.skipped.append(name)
            return default
