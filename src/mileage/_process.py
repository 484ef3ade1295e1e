"""When this process started, on the clock that everything else is measured with, and which helpers it has."""

from __future__ import annotations

import os
import time
from pathlib import Path

# Field 22 of /proc/PID/stat; the command name before it may contain spaces, so fields are counted after its bracket.
_STARTTIME_AFTER_NAME = 19
_LONGEST_CREDIBLE_AGE = 10 * 365 * 86_400.0

helpers: set[int] = set()
"""Processes that this one started for itself, and that are no part of a program it watches."""


def parse_start_seconds(stat: str, ticks_per_second: int) -> float:
    """Seconds between boot and the start of the process that `stat` (a line of /proc/PID/stat) describes."""
    return int(stat.rpartition(")")[2].split()[_STARTTIME_AFTER_NAME]) / ticks_per_second


def process_age_seconds() -> float:
    """Seconds since the operating system started this process (resolution 10 ms on Linux)."""
    try:
        stat = Path("/proc/self/stat").read_text()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - parse_start_seconds(stat, os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        import psutil

        age = time.time() - psutil.Process().create_time()
    # A sandbox that does not fill in the start time reports the age of the machine or worse.
    if not 0.0 <= age < _LONGEST_CREDIBLE_AGE:
        return time.process_time()
    return age


def process_start_ns() -> int:
    """The start of this process on the scale of `time.perf_counter_ns`."""
    age = process_age_seconds()  # first: whatever holds the process up in between must not make it older
    return time.perf_counter_ns() - round(age * 1e9)
