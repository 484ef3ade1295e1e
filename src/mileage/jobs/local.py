"""Attempts side by side on this machine, each on cores of its own."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

from mileage.errors import UsageError
from mileage.jobs.attempt import RunningAttempt
from mileage.jobs.job import Job, JobEnd, Needs, Ticket, ended


class Local:
    """So many attempts at a time; the cores that this process may use are dealt out evenly."""

    def __init__(self, at_a_time: int | None = None) -> None:
        usable = sorted(os.sched_getaffinity(0))
        self.at_a_time = len(usable) if at_a_time is None else at_a_time
        if not 1 <= self.at_a_time <= len(usable):
            raise UsageError(
                f"local:{at_a_time} needs a core for each of its attempts, and {len(usable)} can be used here"
            )
        each = len(usable) // self.at_a_time
        self._free = deque(usable[i * each : (i + 1) * each] for i in range(self.at_a_time))
        self.cores_each = each
        self.share = each / len(usable)
        """Of the machine that an attempt has, and pays for."""
        self._queue: deque[LocalTicket] = deque()

    def check(self, needs: Needs) -> None:
        """UsageError if an attempt needs more than its share of this machine."""
        if needs.cores > self.cores_each:
            raise UsageError(
                f"an attempt needs {needs.cores} cores, and local:{self.at_a_time} has {self.cores_each} for each"
            )
        if needs.gpus:
            raise UsageError("GPUs are dealt out by ray and slurm, not by local: drop --gpus")

    def submit(self, job: Job) -> Ticket:
        """Place one attempt; it starts when cores are free."""
        ticket = LocalTicket(self, job)
        self._queue.append(ticket)
        self.start_next()
        return ticket

    def start_next(self) -> None:
        """Start attempts that wait, as far as cores are free."""
        while self._queue and self._free:
            self._queue.popleft().start(self._free.popleft())

    def give_back(self, cores: Sequence[int]) -> None:
        """Have the cores of an attempt that ended used by the next."""
        self._free.append(list(cores))
        self.start_next()

    def forget(self, ticket: LocalTicket) -> None:
        """Have a ticket that waits never start."""
        if ticket in self._queue:
            self._queue.remove(ticket)

    def close(self) -> None:
        """Start nothing more."""
        self._queue.clear()


class LocalTicket:
    """An attempt on this machine."""

    def __init__(self, place: Local, job: Job) -> None:
        self._place, self._job = place, job
        self._cores: Sequence[int] = ()
        self._attempt: RunningAttempt | None = None
        self._ended: JobEnd | None = None

    def start(self, cores: Sequence[int]) -> None:
        """Start it on these cores."""
        self._cores = cores
        self._attempt = RunningAttempt(self._job.command(), self._job.directory, self._job.variables, cores)

    def ended(self) -> JobEnd | None:
        """How it ended; None while it waits or runs."""
        if self._ended is None and self._attempt is not None and (code := self._attempt.exit_code) is not None:
            self._ended = ended(self._job.directory, code)
            self._place.give_back(self._cores)
        return self._ended

    def cancel(self) -> None:
        """End it."""
        self._place.forget(self)
        if self._attempt is not None:
            self._attempt.end()

    def where(self) -> str:
        """The cores that it has."""
        return f"on cores {', '.join(map(str, self._cores))}" if self._cores else "waiting for cores"

    def waits(self) -> bool:
        """Whether it has not started yet."""
        return self._attempt is None
