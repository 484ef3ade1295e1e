"""A run over time: memory, phases, and the training thread's time on and off its core, at some instants of it."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mileage._records import Record
from mileage.meter import PhaseClock, PhaseTimes, ResourceSampler

_MIB = 2**20
# Share of a core that readings may take: some ten a second, twice as many as a recorded run makes. Each wakes a thread
# beside a training that keeps all cores busy, which costs that training more than the reading itself.
_BUDGET = 0.002
_MOST_HISTORY = 200
# A callback's memory is looked at no more often than this: a look takes a few microseconds.
_CALLBACK_SECONDS = 0.005
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Moment:
    """One instant of a run."""

    times: PhaseTimes
    """The clock's reading."""
    rss_mib: float
    """Resident memory of the process tree."""
    on_cpu: float | None = None
    """Seconds that the training thread has had a core so far; None where the system does not tell."""
    waited: float | None = None
    """Seconds that it stood in a run queue."""

    def as_dict(self) -> Record:
        """Plain data."""
        return {
            "wall_seconds": self.times.wall_seconds,
            "rss_mib": self.rss_mib,
            "on_cpu": self.on_cpu,
            "waited": self.waited,
            "phases": self.times.phases,
            "entries": dict(self.times.entries),
        }


class PhaseMemory:
    """Keeps the highest resident memory of every phase, as the sampler that a recorded run has anyway reads it.

    It also notes the clock and the training thread's schedule at every reading, so that a run can be seen over time.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self.sampler = ResourceSampler(budget=_BUDGET, observe=self._note)
        """To be started and stopped by whoever records the run."""
        self.peaks_mib: dict[str, float] = {}
        """Highest resident memory in MiB by phase; a phase too short to be met has none."""
        self.moments: list[Moment] = []
        """Some instants of the run, in their order."""
        self._schedule: int | None = None
        with contextlib.suppress(OSError):
            self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def close(self) -> None:
        """Let go of files; the sampler has been stopped."""
        if self._schedule is not None:
            os.close(self._schedule)
            self._schedule = None

    def look(self, phase: str) -> None:
        """Read now, on the calling thread, for `phase`: for one that is over before the sampler would look."""
        rss = self.sampler.rss_bytes()
        if rss is not None:
            self._keep(phase, rss)

    def _note(self, rss: int) -> None:
        self._keep(self._clock.current, rss)
        on_cpu, waited = self._scheduled()
        self.moments.append(Moment(self._clock.times(), rss / _MIB, on_cpu, waited))
        if len(self.moments) >= _MOST_HISTORY:
            self.moments = self.moments[1::2]

    def _scheduled(self) -> tuple[float | None, float | None]:
        """Seconds that the training thread has run and waited to run."""
        if self._schedule is None:
            return None, None
        try:
            ran, waited, *_ = os.pread(self._schedule, 128, 0).split()
        except (OSError, ValueError):
            return None, None
        return int(ran) / 1e9, int(waited) / 1e9

    def _keep(self, phase: str, rss: int) -> None:
        self.peaks_mib[phase] = max(rss / _MIB, self.peaks_mib.get(phase, 0.0))


class WatchedCallback:
    """A user's callback, with what it adds to the memory: looked at now and then, before and after a call."""

    def __init__(self, callback: Callable[..., bool | None], memory: PhaseMemory) -> None:
        self._callback, self._memory = callback, memory
        self._next = 0.0
        self._calls = self._looked = self._grown = 0

    def __call__(self, progress: object) -> bool | None:
        """As the callback itself."""
        self._calls += 1
        now = time.perf_counter()
        if now < self._next:
            return self._callback(progress)
        before = self._memory.sampler.rss_bytes()
        answer = self._callback(progress)
        after = self._memory.sampler.rss_bytes()
        if before is not None and after is not None:
            self._looked += 1
            self._grown += after - before
        self._next = time.perf_counter() + _CALLBACK_SECONDS
        return answer

    @property
    def grown_mib(self) -> float:
        """What all calls have added to the memory, by those that were looked at."""
        return self._grown / self._looked * self._calls / _MIB if self._looked else 0.0

    @property
    def place(self) -> str:
        """Where the callback is written: "name (file.py:12)"."""
        return place_of(self._callback)


def place_of(function: object) -> str:
    """Where a function, or what is called like one, is written: "name (file.py:12)"."""
    known = inspect.unwrap(function) if callable(function) else function
    if not inspect.isroutine(known):
        known = inspect.getattr_static(type(known), "__call__")
    try:
        file, (_, line) = inspect.getsourcefile(known), inspect.getsourcelines(known)
    except (OSError, TypeError):
        file = None
    name = known.__qualname__.rpartition("<locals>.")[2] if inspect.isroutine(known) else type(known).__qualname__
    return name if file is None else f"{name} ({Path(file).name}:{line})"


def available_mib(proc: Path = Path("/proc/meminfo"), group: Path = _CGROUP) -> float | None:
    """Memory that this process may still take: the machine's, or what its control group leaves."""
    found: list[float] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        found.append(int(proc.read_text().partition("MemAvailable:")[2].split()[0]) / 1024)
    with contextlib.suppress(OSError, ValueError):
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        found.append((int(limit) - int(used)) / _MIB)
    return min(found, default=None)
