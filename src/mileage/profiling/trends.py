"""What changes while a run goes on: memory that grows, phases that take longer and longer."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mileage._records import PlainData, Record
from mileage.meter import Phase, PhaseTimes
from mileage.profiling.memory import Moment

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
