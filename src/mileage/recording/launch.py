"""What is written down about a run before it starts."""

from __future__ import annotations

import getpass
import os
import sys
import time
from typing import Any

from mileage._records import ReadRecord
from mileage._seeding import check_training_seed
from mileage._version import __version__
from mileage.ledger import liveness
from mileage.ledger.panels import Panel
from mileage.ledger.prices import Price
from mileage.ledger.rows import Run, check_json, check_run
from mileage.ledger.runs import new_run
from mileage.ledger.targets import Target
from mileage.meter import PhaseClock, fingerprint

ACCOUNTING_WINDOW = "wall-clock"
"""Everything from the start of the run's clock to its end is billable: failed, idle and evaluation time included."""


def launched_run(
    name: str, clock: PhaseClock, *, panel: Panel | None, target: Target | None, price: Price, seed: int | None,
    config: ReadRecord, env_id: str | None, identified: bool, **facts: Any,
) -> Run:  # fmt: skip
    """The row of a run that is being launched now; the arguments are those of `Ledger.run`.

    A run that is not `identified`, because nothing of it is written, has no revision and no machine: finding them takes
    longer than a short run.
    """
    now = time.time()
    machine = fingerprint() if identified else None
    row = new_run(
        name, now, panel, target, price, started_at=now - clock.times().wall_seconds, launched_by=_user(),
        process_token=liveness.own_token(), env_id=env_id if env_id is not None else panel.env_id if panel else "",
        config=check_json("config", dict(config)), git_revision=_revision() if identified else None,
        command=_command(), seed=None if seed is None else check_training_seed(seed),
        accounting_window=ACCOUNTING_WINDOW, machine=check_json("machine", machine.as_dict() if machine else {}),
        machine_id=machine.hardware_id if machine else "", mileage_version=__version__, **facts,
    )  # fmt: skip
    return check_run(row)


def _revision() -> str | None:
    from mileage.recording.revision import git_revision  # what starts processes takes a while to import

    return git_revision()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())


def _command() -> str:
    text = " ".join(sys.argv)[:2000]
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
