"""Whether the machine was fit to be measured: load, frequency, stolen time, and a loop that should not change."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from mileage.measure.caveats import Cause, Caveat
from mileage.measure.machine import BUSY_SHARE as BUSY_SHARE
from mileage.measure.machine import Counters, between, counters
from mileage.records import Record

# Share of all cores that other work may use.
# Change of frequency, or of the same loop's time, from beginning to end.
FREQUENCY_CHANGE = 0.05
LOOP_CHANGE = 0.10
STOLEN_SHARE = 0.01
_LOOP = 20_000
_WATCH_SECONDS = 0.3


@dataclass(frozen=True)
class Reading:
    """The machine at one moment; a fact that cannot be read is None."""

    load: float
    """Load average of the last minute."""
    busy: float | None
    """Share of all cores that was in use while this process slept."""
    mhz: float | None
    governor: str | None
    stolen: float | None
    """Seconds the hypervisor has taken from all cores since the machine started."""
    loop_seconds: float
    """Best time of a loop that is always the same."""
    at: float
    """Seconds on a monotonic clock."""
    counters: Counters | None = None
    """What the system has counted up to here, to know what others used from one reading to the next."""

    def as_dict(self) -> Record:
        """The reading as JSON-ready values."""
        return {name: value for name, value in asdict(self).items() if name != "counters"}


def read() -> Reading:
    """Look at the machine for a third of a second."""
    busy, load, mhz = _busy_share(), round(os.getloadavg()[0], 2), _megahertz()
    governor = _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    loop_seconds = min(_loop() for _ in range(15))
    return Reading(load, busy, mhz, governor, _stolen_seconds(), loop_seconds, time.monotonic(), counters())


def conditions(before: Reading, after: Reading, cores: int) -> tuple[Caveat, ...]:
    """What speaks against numbers taken between two readings, with the evidence."""
    found: list[Caveat] = []
    if before.busy is not None and before.busy > BUSY_SHARE:
        found.append(Caveat(Cause.BUSY, f"{before.busy:.0%} of {cores} cores were in use before the start"))
    elif before.counters is not None and after.counters is not None:
        foreign = between(before.counters, after.counters, cores).foreign
        if foreign is not None and foreign > BUSY_SHARE * cores:
            found.append(Caveat(Cause.BUSY, f"others kept {foreign:.2g} of {cores} cores busy meanwhile"))
    if before.governor == "powersave":
        found.append(Caveat(Cause.GOVERNOR, "the governor is powersave"))
    if before.mhz and after.mhz and abs(after.mhz / before.mhz - 1.0) > FREQUENCY_CHANGE:
        found.append(Caveat(Cause.FREQUENCY, f"{before.mhz:.0f} MHz at the start, {after.mhz:.0f} MHz at the end"))
    seconds = (after.at - before.at) * cores
    if before.stolen is not None and after.stolen is not None and seconds > 0:
        share = (after.stolen - before.stolen) / seconds
        if share > STOLEN_SHARE:
            found.append(Caveat(Cause.STOLEN, f"{share:.1%} of the time was stolen"))
    change = after.loop_seconds / before.loop_seconds - 1.0
    if abs(change) > LOOP_CHANGE:
        found.append(Caveat(Cause.LOOP, f"a fixed loop took {change:+.0%} at the end"))
    return tuple(found)


def _loop() -> float:
    start = time.perf_counter()
    total = 0
    for i in range(_LOOP):
        total += i
    return time.perf_counter() - start


def _busy_share() -> float | None:
    before = _cpu_times()
    time.sleep(_WATCH_SECONDS)
    after = _cpu_times()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def _cpu_times(path: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """Ticks all cores were in use, and ticks in all."""
    text = _text(path)
    if text is None:
        return None
    ticks = [int(field) for field in text.splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _stolen_seconds(path: Path = Path("/proc/stat")) -> float | None:
    text = _text(path)
    return None if text is None else int(text.splitlines()[0].split()[8]) / os.sysconf("SC_CLK_TCK")


def _megahertz(path: Path = Path("/proc/cpuinfo")) -> float | None:
    """Median frequency of the cores."""
    text = _text(path) or ""
    found = [float(line.split(":")[1]) for line in text.splitlines() if line.startswith("cpu MHz")]
    return statistics.median(found) if found else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


Reader = Callable[[], Reading]
