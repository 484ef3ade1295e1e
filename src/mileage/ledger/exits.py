"""However a process ends, what it recorded is kept: runs that nobody ended are ended when the interpreter goes.

The end of a script, `sys.exit` and an exception that nobody caught all pass here. SIGTERM, which would end the process
without a word, becomes an exit like any other while a run is being recorded. A process that was forked off has nothing
to say about its parent's runs.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from types import FrameType
from typing import Protocol

from mileage.ledger.rows import EndState


class Endable(Protocol):
    """A run that is being recorded."""

    def end(self, state: EndState | None = None, reason: str = "") -> object:
        """Record how it ended; the first call counts."""

    @property
    def reached(self) -> bool:
        """Whether it met its target."""


class Terminated(SystemExit):
    """SIGTERM, as an exit."""


_running: list[Endable] = []
_lock = threading.Lock()
_registered = False


def watch(run: Endable) -> None:
    """End `run` when the interpreter exits, unless it has ended by then."""
    global _registered
    with _lock:
        if not _registered:
            _registered = True
            atexit.register(_end_all)
            os.register_at_fork(after_in_child=_forget_all)
        _running.append(run)
    catch_termination()


def forget(run: Endable) -> None:
    """`run` has ended."""
    with _lock:
        if run in _running:
            _running.remove(run)


def catch_termination() -> None:
    """Turn SIGTERM into an exit, unless somebody handles it already; only the main thread can."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, _: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the second one ends the process at once
    raise Terminated(128 + number)


def _end_all() -> None:
    error = vars(sys).get("last_value")  # what ended the main thread, if nobody caught it
    with _lock:
        runs = list(_running)
    for run in reversed(runs):
        if run.reached:
            run.end()
        elif error is not None:
            run.end(EndState.FAILED, f"{type(error).__name__}: {error}")
        else:
            run.end(EndState.STOPPED, "the program ended before the run did")


def _forget_all() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _running.clear()
