"""What is written down about a run before it starts."""

from __future__ import annotations

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
from mileage.ledger.secrets import scrubbed_command, scrubbed_value
from mileage.ledger.targets import Target
from mileage.meter import PhaseClock, fingerprint

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
    from mileage.recording.revision import git_revision  # what starts processes takes a while to import

    return git_revision()


def _command() -> str:
    text = scrubbed_command(sys.argv)[:2000]
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
