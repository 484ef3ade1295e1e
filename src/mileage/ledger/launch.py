"""What is written down about a run before it starts: its command, its revision, and CPU time from before its clock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from mileage.ledger import liveness
from mileage.ledger.panels import Panel
from mileage.ledger.prices import Price
from mileage.ledger.rows import Run, check_json, check_run
from mileage.ledger.runs import new_run
from mileage.ledger.secrets import scrubbed_command, scrubbed_value
from mileage.ledger.targets import Target
from mileage.measure import PhaseClock, fingerprint
from mileage.records import ReadRecord
from mileage.seeding import check_training_seed
from mileage.system import process_age_seconds
from mileage.version import __version__

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
