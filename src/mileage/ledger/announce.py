"""A run announced as it begins: its command, its revision, and the CPU time of before its clock.

A command that is going to train announces its run with what its command line says. From then on there is a row on disk
and a heartbeat; a process that is killed while it imports, or an environment whose constructor fails, is a run that
crashed or failed, billed from the start of the process. The run itself, once everything is known about it, takes the
announcement's place under the same id. A command that turns out to be none that trains withdraws it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from mileage.errors import MileageError, UsageError
from mileage.ledger import exits, liveness
from mileage.ledger.address import check_is_database, database_url
from mileage.ledger.panels import Panel
from mileage.ledger.prices import Price
from mileage.ledger.rows import FORMAT_VERSION, EndState, Run, check_json, check_run, new_run_id
from mileage.ledger.runs import new_run
from mileage.ledger.secrets import scrubbed_command, scrubbed_value
from mileage.ledger.targets import Target
from mileage.ledger.writer import Writer
from mileage.measure import PhaseClock, fingerprint
from mileage.records import ReadRecord
from mileage.seeding import check_training_seed
from mileage.system import process_age_seconds
from mileage.version import __version__

_STOPPED_CODES = (130, 143)
"""Exit codes of a process that was interrupted or terminated."""
_pending: Announcement | None = None


class Begun(Protocol):
    """A run of which there is a file and nothing else."""

    run_id: str
    launched_at: float

    def taken_over(self) -> None:
        """Somebody else writes to the file now."""

    def withdraw(self) -> None:
        """There is no such run."""


class Announcement:
    """A run of which little is known yet."""

    def __init__(self, writer: Writer, start_ns: int | None) -> None:
        self.writer = writer
        self.start_ns = start_ns
        """When it began, on the scale of `time.perf_counter_ns`; None is the start of the process."""

    def begin(self) -> Writer:
        """The run itself takes its place, with the writer."""
        global _pending
        _pending = None
        exits.forget(self)
        return self.writer

    @property
    def reached(self) -> bool:
        """Whether it met its target: it has not even begun."""
        return False

    def end(self, state: EndState | None = None, reason: str = "") -> None:
        """It ended before it began: `state` says how; None takes it back."""
        global _pending
        if _pending is not self:
            return
        _pending = None
        exits.forget(self)
        if state is None:
            self.writer.withdraw()
            return
        from mileage.ledger.summary import Ending, Progress, end_row

        wall = self.writer.wall_seconds
        ending = Ending(state, reason[:2000], time.time(), wall, phases={"init": wall})
        self.writer.append([end_row(self.writer.run, Progress(), ending)])
        self.writer.close()


def announce(
    command: Sequence[str],
    *,
    db: str | None = None,
    name: str = "",
    algorithm: str = "",
    env_id: str = "",
    seed: int | None = None,
    price: str | None = None,
    instance: str | None = None,
    spot: bool = False,
    first: bool = True,
    begun: Begun | None = None,
) -> None:
    """Write down that a run is about to begin; one that is pending already stands for it.

    `first` bills from the start of the process; `begun` is a first sign of life, whose place this takes. What is wrong
    with the ledger or the price is left to the run to say.
    """
    global _pending
    if _pending is not None:
        return
    from mileage.ledger.prices import launch_price

    now = time.time()
    try:
        check_is_database(database_url(db))
        frozen = launch_price(price, instance, spot=spot)
        run = Run(
            run_id=new_run_id(now) if begun is None else begun.run_id, name=name or f"{algorithm}-{env_id}",
            launched_at=now if begun is None else begun.launched_at,
            started_at=now - process_age_seconds() if first else now, launched_by=liveness.user_name(),
            host=liveness.host_name(), pid=os.getpid(), process_token=liveness.own_token(), framework="mileage",
            algorithm=algorithm, env_id=env_id, config="{}", git_revision=None,
            command=scrubbed_command(command)[:2000], seed=seed, panel=None, panel_id=None, success=None,
            target=None, eval_every_steps=None, batch_size=None,
            step_budget=None, step_rule="env_steps", accounting_window="wall-clock", machine="{}", machine_id="",
            instances=1, instance=frozen.instance, price_usd_per_hour=frozen.usd_per_hour, price=frozen.to_json(),
            parent_run_id=None, mileage_version=__version__, format_version=FORMAT_VERSION,
        )  # fmt: skip
        _pending = Announcement(Writer(run, db, launched=False), None if first else time.perf_counter_ns())
    except MileageError:
        if begun is not None:
            begun.withdraw()
        return
    if begun is not None:
        begun.taken_over()
    exits.watch(_pending)


def pending(url: str) -> Announcement | None:
    """The run that was announced to the ledger at `url` and has not begun yet."""
    return _pending if _pending is not None and _pending.writer.url == url and not _pending.writer.forked else None


def settle(error: BaseException | None) -> None:
    """The command is over, by `error` if there is one: say what became of a run that was announced and never began."""
    if _pending is None:
        return
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(error, KeyboardInterrupt) or code in _STOPPED_CODES:
        _pending.end(EndState.STOPPED, "stopped before training began")
    elif error is None or isinstance(error, UsageError | SystemExit):
        _pending.end()
    else:
        _pending.end(EndState.FAILED, f"{type(error).__name__}: {error}")


# --- What is written down about a run before it starts ---
ACCOUNTING_WINDOW = "wall-clock"
"""Everything from the start of the run's clock to its end is billable: failed, idle and evaluation time included."""


def launched_run(
    name: str, clock: PhaseClock, *, panel: Panel | None, target: Target | None, price: Price, seed: int | None,
    config: ReadRecord, env_id: str | None, announced: Run | None = None, **facts: Any,
) -> Run:  # fmt: skip
    """The row of a run that is being launched now, under the id of one that was `announced` for it.

    The other arguments are those of `Ledger.run`. The row has no revision and no machine yet: see `identified`.
    """
    now = time.time()
    row = new_run(
        name, now, panel, target, price, started_at=now - clock.times().wall_seconds,
        launched_by=liveness.user_name(), process_token=liveness.own_token(),
        env_id=env_id if env_id is not None else panel.env_id if panel else "",
        config=check_json("config", scrubbed_value(dict(config))), git_revision=None, command=_command(),
        seed=None if seed is None else check_training_seed(seed), accounting_window=ACCOUNTING_WINDOW, machine="{}",
        machine_id="", mileage_version=__version__, **facts,
    )  # fmt: skip
    if announced is not None:
        row = row._replace(run_id=announced.run_id, launched_at=announced.launched_at)
    return check_run(row)


def identified(row: Run, threads: int | None, worked_before: float) -> Run:
    """`row` with revision, machine and the threads it may use, which take longer to find than a short run lasts.

    `worked_before` is what the process has worked that no run is billed for, in CPU seconds.
    """
    machine = fingerprint()
    found = machine.as_dict() | {"threads": threads, "cpu_seconds_before_clock": worked_before}
    return row._replace(
        git_revision=_revision(),
        machine=check_json("machine", scrubbed_value(found)),
        machine_id=machine.hardware_id,
    )


def _revision() -> str | None:
    # what starts processes takes a while to import

    return git_revision()


def _command() -> str:
    text = scrubbed_command(sys.argv)[:2000]
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")


# --- How much a process has worked that no run is billed for: training before the clock starts would be in there ---
_NO_TIME_AT_ALL = 0.5
"""Seconds before the clock that are the start of the process itself."""
_lock = threading.Lock()
_open = 0
_told = 0.0
"""CPU seconds that belong to a run, or that a run has reported as nobody's."""


def begin(clock_seconds: float) -> float:
    """A run begins whose clock shows `clock_seconds`: CPU seconds since the run before, if that clock missed them."""
    global _open, _told
    used = time.process_time()
    with _lock:
        before = 0.0 if _open else used - _told
        _told = used
        _open += 1
    unseen = process_age_seconds() - clock_seconds
    if unseen < _NO_TIME_AT_ALL:
        return 0.0
    return round(max(min(before, unseen * (os.cpu_count() or 1)), 0.0), 3)


def end() -> None:
    """A run has ended."""
    global _open, _told
    with _lock:
        _open = max(_open - 1, 0)
        _told = time.process_time()


# --- The git revision of the working directory, without making training wait ---
_TIMEOUT_SECONDS = 2.0


def git_revision(directory: Path | None = None) -> str | None:
    """The commit `directory` is at, with `+dirty` if tracked files have changed; None outside a repository."""
    directory = Path.cwd() if directory is None else directory
    if not any((parent / ".git").exists() for parent in (directory, *directory.parents)):
        return None
    command = ["git", "-C", str(directory), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
