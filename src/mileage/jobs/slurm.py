"""Attempts as jobs of Slurm, through submitit: preempted jobs save, are queued again, and go on where they were."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mileage.errors import MissingExtraError, UsageError
from mileage.jobs.attempt import ATTEMPT_PATIENCE_SECONDS, RunningAttempt
from mileage.jobs.job import Job, JobEnd, JobOutcome, Needs, Ticket, ended

WARNING_SECONDS = 60
"""How long before the end of its time an attempt is asked to save."""
_LOOK_SECONDS = 1.0
_HOLD_SECONDS = 120.0
_ASKED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of an attempt that was asked to end."""
_STOPPED = "stopped"
"""File of a job whose attempt has saved and ended because Slurm asked for it."""
_ALIVE = (
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "RESIZING",
    "STOPPED",
)
"""States of a job that has not come to its end; one that is queued again is pending."""


@dataclass
class SlurmAttempt:
    """What a job of Slurm runs. Slurm's warning asks the attempt to save; the job is queued again and goes on."""

    job: Job

    def __post_init__(self) -> None:
        self._attempt: RunningAttempt | None = None
        self._warned = False

    def __call__(self) -> int:
        """The attempt to its end; its exit code."""
        number = os.environ["SLURM_JOB_ID"]
        _exit_file(self.job, number).unlink(missing_ok=True)  # of the same job before it was queued again
        (self.job.directory / _STOPPED).unlink(missing_ok=True)
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        (self.job.directory / "started").write_text(node)
        self._attempt = RunningAttempt(self.job.command(), self.job.directory, self.job.variables)
        try:
            code = self._attempt.wait()
        finally:
            self._attempt.end()
        if not self._warned and code in _ASKED:
            # Slurm has told every process of the job to end. It queues the job again once it has ended it itself.
            (self.job.directory / _STOPPED).touch()
            time.sleep(_HOLD_SECONDS)
        if not self._warned:
            _exit_file(self.job, number).write_text(str(code))
        return code

    def checkpoint(self) -> Any:
        """Called by submitit on Slurm's warning: save, and say what is to be run next."""
        from submitit.helpers import DelayedSubmission

        self._warned = True
        if self._attempt is not None:
            self._attempt.end()
        return DelayedSubmission(SlurmAttempt(self.job))


def _exit_file(job: Job, number: str) -> Path:
    """Where a job of Slurm writes how its attempt ended: Slurm itself forgets, unless somebody pays for accounting."""
    return job.directory / f"exit-{number}"


class OnSlurm:
    """The cluster that this machine submits jobs to."""

    def __init__(self, partition: str | None = None, options: Mapping[str, str] | None = None) -> None:
        try:
            import submitit
        except ImportError:
            raise MissingExtraError("--on slurm", "slurm") from None
        if shutil.which("sbatch") is None or shutil.which("sinfo") is None:
            raise UsageError("there is no Slurm here (sbatch is not found): run this on a machine that submits jobs")
        logging.getLogger("submitit").setLevel(logging.ERROR)  # it asks an accounting that need not be there
        self._submitit = submitit
        self._partition, self._options = partition, dict(options or {})
        self._nodes = self._known_nodes()

    def _known_nodes(self) -> list[tuple[int, float]]:
        """Cores and GB of every node that is not down."""
        words = ["sinfo", "--noheader", "--Node", "--states=idle,alloc,mix,comp,resv", "--format=%c %m"]
        words += [f"--partition={self._partition}"] if self._partition else []
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            raise UsageError("Slurm's controller does not answer (sinfo waited 20 s)") from None
        if done.returncode != 0:
            raise UsageError(f"Slurm's controller does not answer: {' '.join(done.stderr.split())[:200]}")
        pairs = (line.split() for line in done.stdout.splitlines() if line.strip())
        return [(int(cores.rstrip("+")), int(memory.rstrip("+")) / 1000.0) for cores, memory in pairs]

    def check(self, needs: Needs) -> None:
        """UsageError if no node could ever run an attempt with these needs."""
        if not any(cores >= needs.cores and memory >= (needs.memory_gb or 0.0) for cores, memory in self._nodes):
            where = f" in partition {self._partition}" if self._partition else ""
            raise UsageError(
                f"no node of Slurm{where} has {needs.cores} cores and {needs.memory_gb or 0:g} GB: ask for less"
            )

    def submit(self, job: Job) -> Ticket:
        """Place one attempt."""
        executor = self._submitit.AutoExecutor(
            folder=job.directory / "slurm", cluster="slurm", slurm_max_num_timeout=1000
        )
        asked: dict[str, Any] = {
            "name": "mileage", "cpus_per_task": job.needs.cores, "slurm_signal_delay_s": WARNING_SECONDS,
            "slurm_use_srun": False,
        }  # fmt: skip
        if job.needs.memory_gb is not None:
            asked["mem_gb"] = job.needs.memory_gb
        if job.needs.gpus:
            asked["gpus_per_node"] = job.needs.gpus
        if self._partition:
            asked["slurm_partition"] = self._partition
        if self._options:
            asked["slurm_additional_parameters"] = self._options
        executor.update_parameters(**asked)
        for name in ("started", _STOPPED):
            (job.directory / name).unlink(missing_ok=True)
        try:
            return SlurmTicket(executor.submit(SlurmAttempt(job)), job)
        except self._submitit.core.utils.FailedJobError as error:
            raise UsageError(f"Slurm takes no job: {' '.join(str(error).split())[:200]}") from None

    def close(self) -> None:
        """Nothing is left running that was not cancelled."""


def _state_of(number: str) -> str:
    """What Slurm says of a job; GONE if it does not know it any more, and PENDING while it does not answer."""
    words = ["scontrol", "show", "job", "--oneliner", number]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return "PENDING"
    if done.returncode != 0:
        return "GONE" if "Invalid job id" in done.stderr else "PENDING"
    return next((word.partition("=")[2] for word in done.stdout.split() if word.startswith("JobState=")), "GONE")


class SlurmTicket:
    """A job of Slurm."""

    def __init__(self, submitted: Any, job: Job) -> None:
        self._number, self._job = str(submitted.job_id), job
        self._state = "PENDING"
        self._ended: JobEnd | None = None
        self._looked = 0.0

    def ended(self) -> JobEnd | None:
        """How it ended; None while it waits or runs. Slurm is asked once a second."""
        now = time.monotonic()
        if self._ended is None and now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._state = _state_of(self._number)
            self._ended = self._found()
        return self._ended

    def _found(self) -> JobEnd | None:
        with contextlib.suppress(OSError, ValueError):
            code = int(_exit_file(self._job, self._number).read_text())
            # A job that was asked to end may be queued again by Slurm itself: only one that is over needs another.
            if code not in _ASKED or self._state not in _ALIVE:
                return ended(self._job.directory, code)
        if self._state in _ALIVE:
            return None
        return JobEnd(JobOutcome.LOST, f"Slurm says {self._state}")

    def cancel(self) -> None:
        """End it; it is asked to save first."""
        subprocess.run(["scancel", "--signal=TERM", "--full", self._number], capture_output=True, check=False)
        for patience in (ATTEMPT_PATIENCE_SECONDS, 5.0):
            until = time.monotonic() + patience
            while time.monotonic() < until:
                if _state_of(self._number) not in _ALIVE:
                    return
                if (self._job.directory / _STOPPED).exists() or self._state == "PENDING":
                    break
                time.sleep(0.2)
            subprocess.run(["scancel", self._number], capture_output=True, check=False)

    def where(self) -> str:
        """The node that runs it."""
        with contextlib.suppress(OSError):
            return f"on node {self._started.read_text()}, Slurm job {self._number}"
        return f"Slurm job {self._number} is {self._state.lower()}"

    @property
    def _started(self) -> Path:
        return self._job.directory / "started"

    def waits(self) -> bool:
        """Whether it has not started yet."""
        return not self._started.exists()
