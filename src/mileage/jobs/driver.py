"""Brings jobs to their end at the places that `--on` names, and tries again where a machine was lost."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mileage.errors import LedgerError, UsageError
from mileage.jobs.job import LEDGER, Job, JobEnd, JobOutcome, JobPlace, Ticket
from mileage.jobs.local import Local
from mileage.ledger import queries, spool
from mileage.ledger.address import database_url
from mileage.ledger.admission import take_in
from mileage.ledger.queries import Selector
from mileage.ledger.rows import Run
from mileage.ledger.store import Store

_POLL_SECONDS = 0.05
ROWS_SECONDS = 60.0
"""How long an attempt that has ended is waited for until all its rows can be taken: others may be delivering them."""
_LOCK = "driver.lock"


@dataclass(frozen=True)
class DriverSettings:
    """How patient the driver is."""

    retries: int = 3
    """Attempts after the first that a job gets if its machine is lost; one that was asked to end and saved does not
    count."""
    patience_seconds: float | None = None
    """How long an attempt may wait for a machine; None for as long as it takes."""


@dataclass(frozen=True)
class JobResult:
    """A job that has come to its end."""

    job: Job
    run_ids: tuple[str, ...]
    """Its attempts' runs in the ledger, in the order of their launch."""
    attempts: int
    ended: JobEnd
    """How the last one ended."""


Tell = Callable[[str], None]


def drive(
    jobs: Sequence[Job],
    place: JobPlace,
    ledger: str | None,
    settings: DriverSettings | None = None,
    tell: Tell = lambda _: None,
) -> list[JobResult]:
    """Run all `jobs` at `place`, and bring every attempt's rows into `ledger`; all results in the order of the jobs.

    Whatever ends this, an interrupt included, no attempt is left running, and rows of those that were under way are
    taken in.
    """
    settings = settings or DriverSettings()
    under_way = [_UnderWay(job, place, settings, tell) for job in jobs]
    try:
        while any(each.result is None for each in under_way):
            if not any(each.proceed(ledger) for each in under_way if each.result is None):
                time.sleep(_POLL_SECONDS)
    except BaseException:
        for each in under_way:
            each.stop()
        for each in under_way:
            with contextlib.suppress(LedgerError):
                each.collect(ledger)
        raise
    finally:
        place.close()
    return [each.result for each in under_way if each.result is not None]


class _UnderWay:
    """One job and the attempt that stands for it at the moment."""

    def __init__(self, job: Job, place: JobPlace, settings: DriverSettings, tell: Tell) -> None:
        self.job = job
        self.result: JobResult | None = None
        self._place, self._settings, self._tell = place, settings, tell
        self._attempts = self._lost = 0
        self._run_ids: list[str] = []
        self._ticket: Ticket | None = None
        self._since = time.monotonic()
        self._told_where = False
        self._found: JobEnd | None = None

    def proceed(self, ledger: str | None) -> bool:
        """Look at the attempt, and place the next if one is needed; whether anything happened."""
        if self._ticket is None:
            self._ticket = self._place.submit(self.job)
            self._attempts += 1
            self._since, self._told_where = time.monotonic(), False
            return True
        found = self._ticket.ended()
        if found is None:
            self._mind_the_wait()
            return False
        if self._found is None:
            self._found, self._since = found, time.monotonic()
        self.collect(ledger)
        if found.outcome.is_final and _rows_wait(self.job.ledger) and time.monotonic() - self._since < ROWS_SECONDS:
            return False
        self._ticket = self._found = None
        self._lost += found.outcome is JobOutcome.LOST
        if found.outcome.is_final or self._lost > self._settings.retries:
            self.result = JobResult(self.job, tuple(self._run_ids), self._attempts, found)
            how = found.outcome.value if found.outcome.is_final else f"given up after {self._attempts} attempts"
            self._tell(f"{self.job.name}: {how}{f': {found.why}' if found.why else ''}")
        else:
            self._tell(f"{self.job.name}: {found.outcome.value} ({found.why}), trying again")
        return True

    def _mind_the_wait(self) -> None:
        """Say where the attempt runs, once; give up one that waits too long."""
        assert self._ticket is not None
        if not self._ticket.waits():
            if not self._told_where:
                self._tell(f"{self.job.name}: {self._ticket.where()}")
            self._told_where = True
            return
        waited = time.monotonic() - self._since
        if self._settings.patience_seconds is not None and waited > self._settings.patience_seconds:
            raise UsageError(
                f"{self.job.name} has not started within {self._settings.patience_seconds:g} s "
                f"({self._ticket.where()}): free a machine, ask for less, or raise --patience"
            )

    def stop(self) -> None:
        """End the attempt."""
        if self._ticket is not None:
            self._ticket.cancel()

    def collect(self, ledger: str | None) -> None:
        """Take the rows of the attempts so far into the ledger."""
        for run in merge(self.job.ledger, ledger):
            if run.run_id not in self._run_ids:
                self._run_ids.append(run.run_id)


def _rows_wait(source: Path) -> bool:
    """Whether the ledger at `source` lacks rows that somebody else is bringing into it, or a later one must."""
    return bool(spool.waiting(*spool.spool_dirs(database_url(str(source)))))


def merge(source: Path, ledger: str | None) -> list[Run]:
    """Bring all rows of the SQLite ledger at `source` into `ledger`; runs that died are closed first. Its runs."""
    if not source.exists() and not source.with_name(source.name + ".spool").exists():
        return []
    with Store(str(source)) as there, Store(ledger) as here:
        records = there.read(queries.records, Selector(), limit=None)
        runs = sorted((record.run for record in records), key=lambda run: run.launched_at)
        for run in runs:
            take_in(here, there.rows_of(run.run_id))
    return runs


@contextlib.contextmanager
def batch(place: Path, ledger: str | None) -> Iterator[Path]:
    """A directory for the jobs of one command. Rows that a killed command left in others are taken in first."""
    place.mkdir(parents=True, exist_ok=True)
    for left in sorted(place.iterdir()):
        with _locked(left) as mine:
            if mine and not (left / "taken").exists():
                for job in _jobs(left):
                    merge(job, ledger)
                _done_with(left)
    directory = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=place))
    with _locked(directory, create=True):
        yield directory
        _done_with(directory)


def _jobs(directory: Path) -> list[Path]:
    return [job / LEDGER for job in sorted(directory.iterdir()) if job.is_dir()]


def _done_with(directory: Path) -> None:
    """Mark a batch whose rows have been taken, all of them: otherwise the next command takes what is left."""
    if not any(_rows_wait(each) for each in _jobs(directory)):
        (directory / "taken").touch()


@contextlib.contextmanager
def _locked(directory: Path, *, create: bool = False) -> Iterator[bool]:
    """Whether this process holds the lock of a batch; the lock of a process that was killed is free."""
    try:
        file = (directory / _LOCK).open("a" if create else "r+")
    except OSError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


# --- The places that `--on` names ---
WAYS = "local[:N], ray, ray://HOST:PORT or slurm[:PARTITION]"


def place_called(text: str) -> JobPlace:
    """The place that `text` means: `local`, `local:4`, `ray`, `ray://head:10001`, `slurm`, `slurm:gpu`."""
    kind, colon, rest = text.partition(":")
    if kind == "local":
        if not colon:
            return Local()
        if not rest.isdecimal():
            raise UsageError(f"--on {text!r} cannot be read: write {WAYS}")
        return Local(int(rest))
    if kind == "ray" and (not colon or rest.startswith("//")):
        from mileage.jobs.ray import OnRay

        return OnRay(text if colon else None)
    if kind == "slurm" and (not colon or rest):
        from mileage.jobs.slurm import OnSlurm

        return OnSlurm(rest or None)
    raise UsageError(f"--on {text!r} is not known: write {WAYS}")
