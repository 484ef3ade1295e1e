"""What changes while a run goes on: memory, phases, time on and off the core."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mileage.measure import Phase, PhaseClock, PhaseTimes, ResourceSampler
from mileage.records import PlainData, Record

# --- A run over time: memory, phases, and the training thread's time on and off its core, at some instants of it ---
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


# A run is looked at in so many pieces; fewer moments than pieces say nothing.
_PIECES = 6
_FEWEST_MOMENTS = 8
# Share of the training before which memory is still being filled for the first time.
_WARM_UP = 0.2
# Growth below these is what allocators do.
_LEAST_MIB, _LEAST_SHARE = 32.0, 0.10
# Of all pairs of readings, how many more rise than fall: 1 is a line.
_STEADY = 0.8
# Times as long as at the start, beyond what all phases do.
_LEAST_RATIO = 1.4
_FEWEST_ENTRIES = 3
# What an entry does in these depends on what has been learned.
_NOT_COMPARABLE = frozenset({str(Phase.OTHER), str(Phase.EVAL), str(Phase.INIT), str(Phase.COMPILE)})


@dataclass(frozen=True)
class MemoryGrowth(PlainData):
    """Memory that grows as long as the run goes on."""

    mib_per_second: float
    from_mib: float
    to_mib: float
    seconds: float
    """In which it was seen to grow."""
    left_mib: float | None
    """What the process may still take."""
    where: str = ""
    """Where it grows, as far as it is known."""

    @property
    def seconds_left(self) -> float | None:
        """When the memory will be used up at this rate."""
        return None if self.left_mib is None else self.left_mib / self.mib_per_second

    def as_dict(self) -> Record:
        """Plain data."""
        return super().as_dict() | {"seconds_left": self.seconds_left}


@dataclass(frozen=True)
class Drift(PlainData):
    """A phase whose entries take longer and longer."""

    phase: str
    first_each: float
    """Seconds per entry at the start."""
    last_each: float
    """At the end."""
    ratio: float
    """How many times as long at the end, beyond what the other phases have got slower too."""
    extra_seconds: float
    """What the run would have been spared had entries stayed as at the start."""


def training(moments: Sequence[Moment]) -> list[Moment]:
    """The moments after everything had started."""
    if not moments:
        return []
    last = moments[-1].times.phases_ns
    started = sum(last.get(phase, 0) for phase in (Phase.INIT, Phase.COMPILE))
    return [each for each in moments if each.times.wall_ns >= started]


def growth(
    moments: Sequence[Moment], left_mib: float | None, filling: Mapping[str, tuple[float, int]] | None = None
) -> MemoryGrowth | None:
    """Memory that grows steadily, beyond what buffers take as they fill.

    Args:
        moments: of the run.
        left_mib: what the process may still take.
        filling: for a phase's name, the MiB that every entry of it adds to a buffer, and after how many it is full.
    """
    seen = training(moments)
    first = int(_WARM_UP * len(seen))
    seen = seen[first:]
    if len(seen) < _FEWEST_MOMENTS:
        return None
    at = np.array([each.times.wall_seconds for each in seen])
    explained = [_filled(each.times, filling or {}) for each in seen]
    mib = np.array([each.rss_mib for each in seen]) - np.array(explained)
    rise = float(mib[-1] - mib[0])
    if rise < max(_LEAST_MIB, _LEAST_SHARE * seen[0].rss_mib) or _concordance(mib) < _STEADY:
        return None
    upper = np.triu_indices(len(at), 1)
    slope = float(np.median((mib[upper[1]] - mib[upper[0]]) / np.maximum(at[upper[1]] - at[upper[0]], 1e-9)))
    if slope <= 0.0:
        return None
    return MemoryGrowth(slope, seen[0].rss_mib, seen[-1].rss_mib, float(at[-1] - at[0]), left_mib)


def _filled(times: PhaseTimes, filling: Mapping[str, tuple[float, int]]) -> float:
    """MiB of buffers that have been written to."""
    return sum(each * min(times.entries.get(phase, 0), most) for phase, (each, most) in filling.items())


def _concordance(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Kendall's tau against time."""
    upper = np.triu_indices(len(values), 1)
    return float(np.sign(values[upper[1]] - values[upper[0]]).mean())


def drifts(moments: Sequence[Moment]) -> tuple[Drift, ...]:
    """Phases that get slower while the others do not, the one that costs most first.

    A machine that gets busier slows all phases down alike: what counts is how a phase changes against the others.
    """
    pieces = list(_pieces(training(moments)))
    if len(pieces) < _PIECES:
        return ()
    each = {name: _per_entry(pieces, name) for name in pieces[-1][1].entries if name not in _NOT_COMPARABLE}
    known = {name: values for name, values in each.items() if values is not None}
    changes = {name: statistics.fmean(v[-2:]) / statistics.fmean(v[:2]) for name, v in known.items()}
    found = []
    for name, values in known.items():
        others = [ratio for other, ratio in changes.items() if other != name]
        ratio = changes[name] / max(1.0, statistics.median(others) if others else 1.0)
        if ratio < _LEAST_RATIO or _concordance(np.array(values)) < _STEADY:
            continue
        start = values[0]
        counts = [_entries(before, after, name) for before, after in pieces]
        extra = sum(max(0.0, value - start) * count for value, count in zip(values, counts, strict=True))
        found.append(Drift(name, start, values[-1], ratio, extra))
    return tuple(sorted(found, key=lambda drift: -drift.extra_seconds))


def _pieces(moments: Sequence[Moment]) -> Iterator[tuple[PhaseTimes, PhaseTimes]]:
    """The run in pieces of about the same length: where each begins and ends."""
    if len(moments) < _PIECES + 1:
        return
    start, end = moments[0].times.wall_ns, moments[-1].times.wall_ns
    bounds = [start + (end - start) * k / _PIECES for k in range(_PIECES + 1)]
    marks = [min(moments, key=lambda each: abs(each.times.wall_ns - bound)).times for bound in bounds]
    yield from itertools.pairwise(marks)


def _entries(before: PhaseTimes, after: PhaseTimes, name: str) -> int:
    return after.entries.get(name, 0) - before.entries.get(name, 0)


def _per_entry(pieces: Sequence[tuple[PhaseTimes, PhaseTimes]], name: str) -> list[float] | None:
    """Seconds per entry of a phase in every piece; None if one has too few."""
    found = []
    for before, after in pieces:
        entries = _entries(before, after, name)
        if entries < _FEWEST_ENTRIES:
            return None
        found.append((after.phases_ns.get(name, 0) - before.phases_ns.get(name, 0)) / entries / 1e9)
    return found if all(value > 0.0 for value in found) else None
