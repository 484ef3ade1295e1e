"""Memory and GPUs of a watched program over time, and what others did on the machine meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mileage.measure.memory import GpuSampler, ProcessTree, load_nvml

_SECONDS = 0.25
_MOST = 4_000
_GB = 1e9
_TICKS = os.sysconf("SC_CLK_TCK")
_FEWEST = 12
_LOOK_EVERY = 8


@dataclass(frozen=True)
class Growth:
    """A line through the memory of the second half of a run."""

    gb_per_hour: float
    first_gb: float
    last_gb: float
    hours_left: float | None
    """Until what was free at the end is used up."""

    @property
    def gained_gb(self) -> float:
        """From the middle to the end."""
        return self.last_gb - self.first_gb


@dataclass(frozen=True)
class Resources:
    """Readings of a run."""

    seconds: tuple[float, ...] = ()
    """When they were taken, from the start of the program."""
    rss_gb: tuple[float, ...] = ()
    gpu: tuple[float | None, ...] = ()
    """Utilisation of the busiest GPU at each reading, from 0 to 1; empty without GPUs."""
    gpu_utilisation: tuple[float | None, ...] = ()
    """Mean of each GPU."""
    peak_gpu_gb: tuple[float | None, ...] = ()
    others_cores: float | None = None
    """Cores that anything but the program kept busy; None where it is not known."""
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    free_gb: float | None = None
    """Memory that was available when the program ended."""

    @property
    def peak_rss_gb(self) -> float | None:
        """The highest of the readings."""
        return max(self.rss_gb, default=None)

    @property
    def growth(self) -> Growth | None:
        """How memory grows in the second half; None of a short run or of one that does not grow."""
        times, sizes = np.array(self.seconds), np.array(self.rss_gb)
        late = times >= (times[-1] / 2 if len(times) else 0.0)
        times, sizes = times[late], sizes[late]
        if len(times) < _FEWEST or times[-1] <= times[0]:
            return None
        slope, start = np.polyfit(times, sizes, 1)
        fitted = start + slope * times
        spread = float(np.abs(sizes - fitted).max())
        first, last = float(fitted[0]), float(fitted[-1])
        # A step is no growth: the line must explain most of what there is.
        if slope <= 0 or spread > 0.5 * (last - first):
            return None
        per_hour = float(slope) * 3600
        left = None if self.free_gb is None else self.free_gb / per_hour
        return Growth(per_hour, first, last, left)


class ResourceWatch:
    """Reads on a thread of its own from `start` to `stop`."""

    def __init__(self) -> None:
        self._readings: list[tuple[float, float, float | None]] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = time.monotonic()
        self._busy = _machine_busy()
        self._nvml = load_nvml()
        self._gpus = GpuSampler(self._nvml)

    def start(self, pid: int) -> None:
        """Begin, with the program whose first process is `pid`."""
        self._began, self._busy = time.monotonic(), _machine_busy()
        self._thread = threading.Thread(target=self._run, args=(pid,), name="mileage-resources", daemon=True)
        self._thread.start()

    def stop(self, cpu_seconds: float) -> Resources:
        """Everything read; `cpu_seconds` are those of the program."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        lasted, busy = time.monotonic() - self._began, _machine_busy()
        others = None
        if self._busy is not None and busy is not None and lasted > 0:
            others = max(0.0, (busy - self._busy - cpu_seconds) / lasted)
        times = tuple(each[0] for each in self._readings)
        gpu = tuple(each[2] for each in self._readings) if self._gpus.peak_bytes is not None else ()
        return Resources(
            times, tuple(each[1] for each in self._readings), gpu, self._gpus.mean_utilisation or (),
            tuple(None if each is None else each / _GB for each in self._gpus.peak_bytes or ()), others,
            len(os.sched_getaffinity(0)), _free_gb(),
        )  # fmt: skip

    def _run(self, pid: int) -> None:
        tree, every, number = ProcessTree(pid), _SECONDS, 0
        while not self._stopping.wait(every):
            with contextlib.suppress(OSError):
                # Looking for new processes costs many times what reading does.
                if number % _LOOK_EVERY == 0 and tree.changed():
                    tree.discover()
            number += 1
            self._gpus.sample()
            now = GpuSampler(self._nvml)
            now.sample()
            busy = max((each for each in now.mean_utilisation or () if each is not None), default=None)
            self._readings.append((time.monotonic() - self._began, tree.rss_bytes() / _GB, busy))
            if len(self._readings) > _MOST:
                self._readings, every = self._readings[::2], every * 2
        tree.close()


def _machine_busy() -> float | None:
    """Seconds of all cores that were busy since the machine started."""
    try:
        user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft) / _TICKS


def _free_gb() -> float | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 / _GB
    return None
