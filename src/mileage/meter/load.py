"""Who else uses the machine: foreign CPU time, waits for a core, stolen time and pressure between two instants."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from mileage._cores import usable_cores
from mileage._records import PlainData

BUSY_SHARE = 0.10
"""Of all cores: others that keep more of them busy than this colour what is measured meanwhile."""
OTHERS = "others/cpu"
"""What the CPU seconds of others are called among what goes on beside a run."""
_TICKS = 0.05
"""Seconds by which counters that are kept in ticks may be wrong."""
_PROC = Path("/proc")
_USER_TICKS_AFTER_NAME = 11


@dataclass(frozen=True, slots=True)
class Counters:
    """What the system has counted up to one instant, in seconds; a fact that cannot be read is None."""

    at: float
    """On a monotonic clock."""
    busy: float | None
    """In which some core was in use, added up over cores."""
    stolen: float | None
    """In which the hypervisor gave a core to others."""
    own: float | None
    """CPU time of this process, its threads and all processes that descend from it."""
    waited: float | None
    """In which threads of this process could have run and no core was free for them."""
    pressure: float | None
    """In which some task of the machine waited for a core."""


@dataclass(frozen=True, slots=True)
class Load(PlainData):
    """The machine between two instants. What could not be read is None."""

    seconds: float
    cores: int
    foreign: float | None
    """Cores that processes of others kept busy, on average."""
    own: float | None
    """Cores that this process and its descendants kept busy."""
    stolen: float | None
    """Share of all cores that the hypervisor took."""
    waited: float | None
    """Seconds that this process's threads waited for a core, by those in which they ran or waited."""
    pressure: float | None
    """Share of the time in which some task of the machine waited for a core."""

    @property
    def foreign_seconds(self) -> float:
        """CPU seconds that others used or a hypervisor took; 0 if too few to be told from rounding, or unknown."""
        found = self.seconds * ((self.foreign or 0.0) + (self.stolen or 0.0) * self.cores)
        return found if found > BUSY_SHARE * self.cores * self.seconds + _TICKS else 0.0


def counters(proc: Path = _PROC) -> Counters:
    """The system's counters now: some files of /proc, a fraction of a millisecond for a small process tree."""
    ticks = _cpu_ticks(proc / "stat")
    return Counters(
        at=time.monotonic(),
        busy=None if ticks is None else ticks[0],
        stolen=None if ticks is None else ticks[1],
        own=_tree_seconds(proc),
        waited=_waited(proc / "self" / "task"),
        pressure=_pressure(proc / "pressure" / "cpu"),
    )


def between(before: Counters, after: Counters, cores: int | None = None) -> Load:
    """How the machine was used from one reading to the next."""
    cores = usable_cores() if cores is None else cores
    seconds = max(after.at - before.at, 1e-9)

    def rate(name: str) -> float | None:
        first, last = getattr(before, name), getattr(after, name)
        return None if first is None or last is None else max(0.0, last - first) / seconds

    busy, own, waited = rate("busy"), rate("own"), rate("waited")
    foreign = None if busy is None or own is None else max(0.0, busy - own)
    stolen = rate("stolen")
    alive = None if own is None or waited is None else own + waited
    return Load(
        seconds,
        cores,
        foreign,
        own,
        None if stolen is None else stolen / cores,
        None if alive is None or waited is None else (waited / alive if alive > 0.0 else 0.0),
        rate("pressure"),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _cpu_ticks(path: Path) -> tuple[float, float] | None:
    """Seconds in which cores were in use, stolen ones not among them, and stolen seconds."""
    text = _text(path)
    if text is None:
        return None
    fields = [int(field) for field in text.splitlines()[0].split()[1:9]]
    user, nice, system, _, _, interrupts, soft, stolen = fields
    rate = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupts + soft) / rate, stolen / rate


def _tree_seconds(proc: Path) -> float | None:
    """CPU seconds of this process and its descendants, those that have ended and were waited for among them."""
    found, known, waiting = 0.0, False, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            with open(proc / str(pid) / "stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            ticks = fields[_USER_TICKS_AFTER_NAME : _USER_TICKS_AFTER_NAME + 4]
            found, known = found + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), True
            waiting += _children(proc / str(pid) / "task")
        except (OSError, IndexError, ValueError):
            continue  # It ended while we looked.
    return found if known else None


def _children(tasks: Path) -> list[int]:
    """Processes that the threads in this folder have started, and that have not ended."""
    return [int(pid) for name in os.listdir(tasks) for pid in (_text(tasks / name / "children") or "").split()]


def _waited(tasks: Path) -> float | None:
    """Seconds that the threads of this process stood in a run queue; those of threads that have ended are lost."""
    total, known = 0, False
    try:
        names = os.listdir(tasks)
    except OSError:
        return None
    for name in names:
        text = _text(tasks / name / "schedstat")
        if text is not None:
            total, known = total + int(text.split()[1]), True
    return total / 1e9 if known else None


def _pressure(path: Path) -> float | None:
    text = _text(path)
    if text is None:
        return None
    _, found, rest = text.partition("total=")
    return int(rest.split()[0]) / 1e6 if found else None
