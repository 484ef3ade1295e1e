"""A training command that must come to its end, and job files for Slurm, Kubernetes and SkyPilot.

A job has a directory of its own, which whoever places it and the machine that runs it both see. In it are the ledger of
its attempts, their checkpoints, and what they printed; an attempt goes on from the last checkpoint of the one before.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from mileage.errors import UsageError
from mileage.version import __version__

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


class JobOutcome(StrEnum):
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
        return self in (JobOutcome.DONE, JobOutcome.FAILED)

    @classmethod
    def of(cls, exit_code: int) -> JobOutcome:
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
class JobEnd:
    """The end of an attempt."""

    outcome: JobOutcome
    why: str = ""
    """In a few words, where it is not simply done."""


class Ticket(Protocol):
    """An attempt that was placed."""

    def ended(self) -> JobEnd | None:
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


class JobPlace(Protocol):
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


def ended(job_directory: Path, exit_code: int) -> JobEnd:
    """How an attempt with this exit code ended."""
    outcome = JobOutcome.of(exit_code)
    if outcome is JobOutcome.DONE:
        return JobEnd(outcome)
    if outcome is JobOutcome.FAILED:
        return JobEnd(outcome, failure(job_directory, exit_code))
    return JobEnd(outcome, "asked to end" if outcome is JobOutcome.PREEMPTED else f"killed (exit code {exit_code})")


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


# --- Job files as text: the same command for Slurm, Kubernetes and SkyPilot ---
KINDS = ("slurm", "kubernetes", "skypilot")
_MINUTES = 24 * 60
_WARNING_SECONDS = 120


def manifest(kind: str, words: Sequence[str], needs: Needs, name: str) -> str:
    """A job file that runs `mileage` with these words."""
    if kind not in KINDS:
        raise UsageError(f"--emit {kind!r} is not known: use {', '.join(KINDS)}")
    label = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:50].strip("-") or "mileage"
    command = shlex.join(["mileage", *words])
    return {"slurm": _slurm, "kubernetes": _kubernetes, "skypilot": _skypilot}[kind](command, needs, label)


def _slurm(command: str, needs: Needs, label: str) -> str:
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={label}",
        f"#SBATCH --cpus-per-task={needs.cores}",
        *([f"#SBATCH --mem={round(needs.memory_gb * 1000)}M"] if needs.memory_gb else []),
        *([f"#SBATCH --gpus-per-node={needs.gpus}"] if needs.gpus else []),
        f"#SBATCH --time={_MINUTES}",
        "#SBATCH --requeue",
        f"#SBATCH --signal=USR1@{_WARNING_SECONDS}",
        "# The training saves when Slurm warns it; continue with `mileage train --resume DIRECTORY`.",
        f"exec {command}",
    ]
    return "\n".join(lines) + "\n"


def _kubernetes(command: str, needs: Needs, label: str) -> str:
    # Text in double quotes as JSON has it is YAML too.
    limits = [f'cpu: "{needs.cores}"']
    limits += [f'memory: "{needs.memory_gb:g}G"'] if needs.memory_gb else []
    limits += [f'nvidia.com/gpu: "{needs.gpus}"'] if needs.gpus else []
    script = json.dumps(f"pip install 'mileage=={__version__}' && exec {command}")
    return f"""apiVersion: batch/v1
kind: Job
metadata:
  name: {label}
spec:
  backoffLimit: 3
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: {_WARNING_SECONDS}
      containers:
        - name: mileage
          image: "python:3.11"
          command: ["/bin/bash", "-c", {script}]
          resources:
            limits: {{{", ".join(limits)}}}
"""


def _skypilot(command: str, needs: Needs, label: str) -> str:
    lines = [f"name: {label}", "resources:", f"  cpus: {needs.cores}+"]
    lines += [f"  memory: {needs.memory_gb:g}+"] if needs.memory_gb else []
    lines += ["  use_spot: true", f"setup: {json.dumps(f'pip install mileage=={__version__}')}"]
    lines += [f"run: {json.dumps(command)}"]
    return "\n".join(lines) + "\n"
