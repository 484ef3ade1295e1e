"""Arms, attempts and what is left of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, Protocol, Self, TypeVar

Subject = TypeVar("Subject", covariant=True)
Taking = TypeVar("Taking", contravariant=True)
Taken = TypeVar("Taken", bound="Sample", covariant=True)


@dataclass(frozen=True)
class Arm(Generic[Subject]):
    """One of the things that an experiment compares."""

    name: str
    subject: Subject
    """What an executor makes an attempt of: a function, a training setup, a project with one declared difference."""
    about: str = ""
    """What it is, in a few words."""


class Outcome(StrEnum):
    """How an attempt ended."""

    OK = "ok"
    FAILED = "failed"
    """By itself, and not as it should."""
    TIMEOUT = "timeout"
    """Stopped at its limit: nothing is known about what it would have come to."""
    KILLED = "killed"


@dataclass(frozen=True)
class Turn:
    """One attempt that is due."""

    arm: str
    kind: str = ""
    """What of the arm is measured, where an experiment measures several things."""
    round: int = 0
    """Arms meet within a round; where attempts have seeds, the seed."""
    order: int = 0
    """The how manieth attempt of the experiment it is."""
    repeats: int = 1
    """How often the job is done in the attempt; its times are per job."""
    limit_seconds: float = math.inf
    """When it is stopped."""


@dataclass(frozen=True)
class Sample:
    """One attempt as it was measured; what it holds beyond this is for a subclass to say."""

    arm: str
    wall_seconds: float
    cpu_seconds: float = 0.0
    outcome: Outcome = Outcome.OK
    kind: str = ""
    round: int = 0
    order: int = 0
    diagnostic: str = ""
    """What it said where it failed."""

    def at(self, turn: Turn) -> Self:
        """The same sample as that of `turn`."""
        return replace(self, kind=turn.kind, round=turn.round, order=turn.order)


class Executor(Protocol[Taking, Taken]):
    """Makes attempts and tells the time: the seam at which an experiment is tested without either."""

    def now(self) -> float:
        """Seconds on a clock that only moves forward; budgets are kept by it."""

    def prepare(self, arm: Arm[Taking], kind: str) -> None:
        """Bring an arm to where its first attempt of a kind may start; no part of any sample."""

    def attempt(self, arm: Arm[Taking], turn: Turn) -> Taken:
        """Make one attempt; KeyboardInterrupt if the user wants to stop."""


class MockExecutor:
    """Plays back given seconds per job, arm by arm, and keeps a log of who was asked; its clock counts them."""

    def __init__(self, seconds: Mapping[str, Iterable[float]]) -> None:
        self._seconds = {name: iter(values) for name, values in seconds.items()}
        self._now = 0.0
        self.log: list[tuple[str, int]] = []
        """Arm and repeats of every attempt."""
        self.prepared: list[tuple[str, str]] = []
        """Arm and kind of every preparation."""

    def now(self) -> float:
        """The seconds played back so far."""
        return self._now

    def prepare(self, arm: Arm[object], kind: str) -> None:
        """Make a note of it."""
        self.prepared.append((arm.name, kind))

    def attempt(self, arm: Arm[object], turn: Turn) -> Sample:
        """The next seconds of `arm`."""
        self.log.append((arm.name, turn.repeats))
        wall = next(self._seconds[arm.name])
        self._now += wall * turn.repeats
        return Sample(arm.name, wall, wall)
