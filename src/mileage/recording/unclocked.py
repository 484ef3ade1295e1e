"""How much a process has worked that no run is billed for: training before the clock starts would be in there."""

from __future__ import annotations

import os
import threading
import time

from mileage._process import process_age_seconds

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
