"""Arms that take turns: the order of an experiment, its budget, attempts, and going on where it was stopped.

Every round visits every arm once, so that a machine that speeds up or slows down does so for all of them. An
experiment is its samples: one that was killed goes on from those that were kept, and measures none of them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from mileage.errors import UsageError

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


# --- Attempts in turn: the order of an experiment, its budget, and going on where it was stopped ---
AnySubject = TypeVar("AnySubject")
AnyTaken = TypeVar("AnyTaken", bound=Sample)
# Keeps the draws of orders apart from others that are made with the same seed.
_STREAM = 0x6275696C64


@dataclass(frozen=True)
class Budget:
    """When an experiment ends before its last round; a round that has begun is finished, so that arms stay even."""

    seconds: float | None = None
    """By the executor's clock; a round that is not expected to fit is not begun."""
    attempts: int | None = None
    least_rounds: int = 0
    """Rounds that are taken whatever they cost."""

    def allows(self, rounds: int, taken: int, in_round: int, elapsed: float) -> bool:
        """Whether another round of `in_round` attempts may begin, after so many rounds, attempts and seconds."""
        if rounds < self.least_rounds:
            return True
        if self.attempts is not None and taken + in_round > self.attempts:
            return False
        expected = elapsed / rounds if rounds else 0.0
        return self.seconds is None or (elapsed + expected <= self.seconds and elapsed < self.seconds)


def schedule(arms: Sequence[str], rounds: int, kinds: Iterable[str] = ("",), seed: int | None = None) -> list[Turn]:
    """The turns of an experiment: kind by kind, each round with every arm once.

    Args:
        arms: names.
        rounds: of every kind.
        kinds: what is measured of the arms.
        seed: of the order within rounds; without one the arms lead in turn, which suits attempts that are short.
    """
    rng = None if seed is None else np.random.default_rng([seed, _STREAM])
    turns: list[Turn] = []
    for kind in kinds:
        for number in range(rounds):
            start = number % len(arms)
            order = rng.permutation(len(arms)) if rng is not None else [*range(start, len(arms)), *range(start)]
            turns += [Turn(arms[index], kind, number, len(turns) + place) for place, index in enumerate(order)]
    return turns


def arms_by_name(arms: Sequence[Arm[AnySubject]]) -> dict[str, Arm[AnySubject]]:
    """The arms of an experiment, which must have names of their own."""
    found = {arm.name: arm for arm in arms}
    if len(found) < len(arms) or not arms:
        raise UsageError(f"arms must have distinct names, and there must be one at least, not {[a.name for a in arms]}")
    return found


def run(
    arms: Sequence[Arm[AnySubject]],
    executor: Executor[AnySubject, AnyTaken],
    turns: Sequence[Turn],
    *,
    done: Iterable[AnyTaken] = (),
    budget: Budget | None = None,
    on_sample: Callable[[AnyTaken, int, int], None] | None = None,
) -> tuple[AnyTaken, ...]:
    """Take the turns that no sample stands for yet; all samples in the order of their turns.

    Args:
        arms: all that have turns.
        executor: makes the attempts.
        turns: what is due, round by round.
        done: samples of the same experiment that are there already, from before it was stopped.
        budget: ends it early.
        on_sample: told of every new sample, with how many turns of how many are done; whoever stores samples does it
            here, so that a killed experiment loses the attempt that was under way and nothing else.
    """
    by_name = arms_by_name(arms)
    samples = {(sample.arm, sample.kind, sample.round): sample for sample in done}
    budget = budget or Budget()
    prepared: set[str] = set()
    start, rounds = executor.now(), 0
    for index, turn in enumerate(turns):
        begins = index == 0 or (turn.kind, turn.round) != (turns[index - 1].kind, turns[index - 1].round)
        if begins and not budget.allows(rounds, len(samples), len(arms), executor.now() - start):
            break
        rounds += begins
        key = (turn.arm, turn.kind, turn.round)
        if key in samples:
            continue
        if turn.kind not in prepared:
            prepared.add(turn.kind)
            for arm in arms:
                executor.prepare(arm, turn.kind)
        samples[key] = executor.attempt(by_name[turn.arm], turn).at(turn)
        if on_sample is not None:
            on_sample(samples[key], len(samples), len(turns))
    taken = ((turn.arm, turn.kind, turn.round) for turn in turns)
    return tuple(samples[key] for key in taken if key in samples)
