"""What is placed: a training command that must come to its end, however many attempts that takes.

A job has a directory of its own, which whoever places it and the machine that runs it both see. In it are the ledger of
its attempts, their checkpoints, and what they printed; an attempt goes on from the last checkpoint of the one before.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from mileage._errors import UsageError

CHECKPOINT, LEDGER = "checkpoint.safetensors", "ledger.db"
_STOPPED_CODES = (130, 143)
"""Exit codes of a training that saved and ended because it was asked to."""
_USAGE_CODE = 2


@dataclasses.dataclass(frozen=True)
class Needs:
    """What an attempt asks of the machine that it is placed on."""

    cores: int = 1
    memory_gb: float | None = None
    gpus: int = 0

    def __post_init__(self) -> None:
        if self.cores < 1 or self.gpus < 0 or (self.memory_gb is not None and self.memory_gb <= 0):
            raise UsageError("an attempt needs at least 1 core, 0 GPUs and more than 0 GB of memory")


class Outcome(StrEnum):
    """What became of an attempt."""

    DONE = "done"
    """It ended by itself: target reached or not."""
    FAILED = "failed"
    """It ended with an error of its own; trying again would end the same way."""
    PREEMPTED = "preempted"
    """It was asked to end and saved: the next attempt goes on from there."""
    LOST = "lost"
    """It was killed, or its machine is gone."""

    @property
    def is_final(self) -> bool:
        """Whether the job needs no further attempt."""
        return self in (Outcome.DONE, Outcome.FAILED)

    @classmethod
    def of(cls, exit_code: int) -> Outcome:
        """What an exit code says; a negative one is that of a signal."""
        if exit_code == 0:
            return cls.DONE
        if exit_code in _STOPPED_CODES:
            return cls.PREEMPTED
        return cls.LOST if exit_code < 0 or exit_code > 128 else cls.FAILED


@dataclasses.dataclass(frozen=True)
class Job:
    """One training command."""

    name: str
    """As progress calls it, such as `seed 3`."""
    words: tuple[str, ...]
    """What follows `mileage train`, without ledger and places of files."""
    kept: tuple[str, ...]
    """The part of it that a resumed attempt is told again: what is not in the checkpoint."""
    directory: Path
    needs: Needs = Needs()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Added to the environment of its attempts."""

    @property
    def ledger(self) -> Path:
        """The ledger of its attempts."""
        return self.directory / LEDGER

    def command(self) -> list[str]:
        """What the next attempt runs: from the start, or from the last checkpoint that there is."""
        places = ["--out", str(self.directory / "runs"), "--db", str(self.ledger), "--json", "--quiet"]
        saved = last_checkpoint(self.directory)
        told = self.words if saved is None else (*self.kept, "--resume", str(saved))
        return [sys.executable, "-m", "mileage", "train", *told, *places]


def last_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint of a job's attempts."""
    found = sorted(directory.glob(f"runs/*/{CHECKPOINT}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of an attempt."""

    outcome: Outcome
    why: str = ""
    """In a few words, where it is not simply done."""


class Ticket(Protocol):
    """An attempt that was placed."""

    def ended(self) -> Ended | None:
        """How it ended; None while it waits or runs."""
        ...

    def cancel(self) -> None:
        """End it, wherever it is; returns when it is gone."""
        ...

    def where(self) -> str:
        """Where it runs, or why it does not run yet."""
        ...

    def waits(self) -> bool:
        """Whether it has not started yet."""
        ...


class Place(Protocol):
    """Somewhere that attempts can run."""

    def submit(self, job: Job) -> Ticket:
        """Place one attempt; it runs when there is room."""
        ...

    def check(self, needs: Needs) -> None:
        """UsageError if no machine of this place could ever run an attempt with these needs."""
        ...

    def close(self) -> None:
        """Leave nothing running."""
        ...


def failure(directory: Path, exit_code: int) -> str:
    """Why an attempt failed, by the last line that it wrote to standard error."""
    lines = tail(directory / "stderr.txt")
    said = lines[-1].removeprefix("mileage: ") if lines else ""
    return said or f"exit code {exit_code}"


def tail(path: Path, most: int = 20_000) -> list[str]:
    """The last lines of a file that are not empty."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most))
            return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return []


def ended(job_directory: Path, exit_code: int) -> Ended:
    """How an attempt with this exit code ended."""
    outcome = Outcome.of(exit_code)
    if outcome is Outcome.DONE:
        return Ended(outcome)
    if outcome is Outcome.FAILED:
        return Ended(outcome, failure(job_directory, exit_code))
    return Ended(outcome, "asked to end" if outcome is Outcome.PREEMPTED else f"killed (exit code {exit_code})")


def words_without(words: Sequence[str], *names: str) -> list[str]:
    """Command-line words without these options and their values, in either spelling."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in names:
            skip = True
        elif word.partition("=")[0] not in names:
            kept.append(word)
    return kept
