"""What replaying may cost: a budget, what it was spent on, and an end at any time that keeps what is known."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

LEAST_SECONDS = 2.0
"""Replays may take as long as the run, and at least this."""
_MOST_GROWN = 3.0
"""How far a budget that nobody has set grows for what every profile needs."""
# What all replays take at full length.
_FULL_SECONDS = 12.0

Found = TypeVar("Found")


class Allowance:
    """A budget that stages of a replay are taken from, one after the other.

    A stage that does not fit into what is left is left out, and its name kept. Ctrl-C ends the stage that is under way
    and leaves out those that follow; one that fails is left out, and the others are not.
    """

    def __init__(self, seconds: float, say: Callable[[str], None] | None = None, effort: float = 1.0) -> None:
        """Allow `seconds`; `say` is told what goes on."""
        self.seconds = self.most_seconds = seconds
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
        found = cls(max(LEAST_SECONDS, wall_seconds), say, effort)
        found.most_seconds *= _MOST_GROWN
        return found

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.seconds - self.spent)

    def stage(
        self, name: str, needed: float, measure: Callable[[], Found], default: Found, *, always: bool = False
    ) -> Found:
        """What `measure` finds; `default` where less than `needed` seconds are left for it, or as for `attempt`.

        What `always` is to be measured lets the budget grow, if nobody has set it.
        """
        fits, after = needed <= self.left, self.spent + needed
        if always and not fits and after <= self.most_seconds:
            fits, self.seconds = True, after
        if self.interrupted or not fits:
            self.skipped.append(name)
            return default
        self._say(f"replaying: {name} ({self.spent:.0f} of at most {self.seconds:.0f} s)")
        return self.attempt(name, measure, default)

    def attempt(self, name: str, measure: Callable[[], Found], default: Found) -> Found:
        """What `measure` finds; `default` if somebody interrupts or it fails, which must not cost what is known."""
        try:
            return measure()
        except KeyboardInterrupt:
            self.interrupted = True
            self.skipped.append(name)
            return default
        except Exception as error:
            self._say(f"{name} failed: {type(error).__name__}: {error}")
            self.skipped.append(f"{name} (failed: {type(error).__name__})")
            return default
