"""A run announced as it begins, before anything heavy is imported.

A command that is going to train announces its run with what its command line says. From then on there is a row on disk
and a heartbeat; a process that is killed while it imports, or an environment whose constructor fails, is a run that
crashed or failed, billed from the start of the process. The run itself, once everything is known about it, takes the
announcement's place under the same id. A command that turns out to be none that trains withdraws it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Protocol

from mileage.errors import MileageError, UsageError
from mileage.ledger import exits, liveness
from mileage.ledger.address import check_is_database, database_url
from mileage.ledger.rows import FORMAT_VERSION, EndState, Run, new_run_id
from mileage.ledger.secrets import scrubbed_command
from mileage.ledger.writer import Writer
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
