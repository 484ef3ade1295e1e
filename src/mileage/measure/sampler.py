"""Background sampling of memory and GPUs at a cost that is itself measured and kept within a budget."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from mileage.errors import UsageError
from mileage.measure.memory import GpuSampler, ProcessTree, load_nvml, peak_rss_bytes
from mileage.metrics import highest

_GB = 10**9
DEFAULT_BUDGET = 0.001
# The controller aims below the budget, because a sample's own cost is known only after it. Reading memory and GPUs is
# paced apart from looking for new processes, which costs many times more and must not slow the readings down.
_READING_AIM = 0.4
_SCANNING_AIM = 0.4
_SHORTEST_DELAY = 0.02
_LONGEST_DELAY = 30.0


@dataclass(frozen=True, slots=True)
class ResourcePeaks:
    """Highest memory and mean utilisation so far. What could not be measured is None, never 0.

    `peak_gpu_gb` and `gpu_utilisation` have one entry per visible GPU. `sampler_share` is the sampler's own CPU time
    as a share of one core, after loading NVML and a first look at the process table.
    """

    peak_rss_gb: float | None
    peak_gpu_gb: tuple[float | None, ...] | None
    gpu_utilisation: tuple[float | None, ...] | None
    samples: int
    sampler_share: float

    @property
    def readings(self) -> dict[str, float | None]:
        """One figure each, by the name of its metric: memory of the machine, and of the fullest GPU."""
        return {"peak_rss_gb": self.peak_rss_gb, "peak_gpu_gb": highest(self.peak_gpu_gb or ())}

    @property
    def per_gpu(self) -> dict[str, tuple[float | None, ...] | None] | None:
        """Every GPU's peak and utilisation; None without GPUs."""
        if self.peak_gpu_gb is None:
            return None
        return {"peak_gb": self.peak_gpu_gb, "utilisation": self.gpu_utilisation}


class ResourceSampler:
    """Samples the process tree's resident memory and the GPUs on a daemon thread until stopped.

    The cadence follows from the measured CPU cost of the samples, so that they take at most `budget` of one core. The
    peak of this process itself comes from the kernel and is exact; the sum over children is sampled.

    >>> with ResourceSampler() as sampler:
    ...     pass
    >>> sampler.peaks().peak_rss_gb > 0
    True
    """

    def __init__(
        self,
        *,
        budget: float = DEFAULT_BUDGET,
        nvml: Callable[[], Any] = load_nvml,
        tree: Callable[[], ProcessTree] = ProcessTree,
        high_water: Callable[[], int] = peak_rss_bytes,
        observe: Callable[[int], None] | None = None,
    ) -> None:
        """Prepare; `nvml`, `tree` and `high_water` are where the readings come from.

        `observe` is told the process tree's resident bytes at every reading, on the sampler's thread.
        """
        if not 0.0 < budget <= 1.0:
            raise UsageError(f"budget {budget} cannot be used: give a share of one core above 0 and up to 1")
        self._reading_aim = budget * _READING_AIM
        self._scanning_aim = budget * _SCANNING_AIM
        self._load_nvml = nvml
        self._make_tree = tree
        self._high_water = high_water
        self._observe = observe
        self._tree: ProcessTree | None = None
        self._gpus: GpuSampler | None = None
        self._peak_rss: int | None = None
        self._first_high_water: int | None = None
        self._samples = 0
        self._spent = 0.0
        self._next_scan = 0.0
        self._began = time.monotonic()
        self._lasted: float | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> ResourceSampler:
        """Begin sampling in the background."""
        with contextlib.suppress(OSError, ValueError):
            self._first_high_water = self._high_water()
        with contextlib.suppress(OSError):
            self._tree = self._make_tree()
            self._peak_rss = self._tree.rss_bytes()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="mileage-sampler", daemon=True)
        self._thread.start()
        return self

    def rss_bytes(self) -> int | None:
        """Resident memory of the process tree now, read on the calling thread; None where it cannot be read."""
        tree = self._tree
        return None if tree is None else tree.rss_bytes()

    def stop(self) -> ResourcePeaks:
        """Take a last sample, end the thread and return the peaks; may be called again."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None
            self._lasted = time.monotonic() - self._began
            if self._tree is not None:
                self._tree.close()
        return self.peaks()

    def peaks(self) -> ResourcePeaks:
        """The peaks so far; may be called from any thread."""
        gpus = self._gpus
        peak_gpu = gpus.peak_bytes if gpus else None
        lasted = time.monotonic() - self._began if self._lasted is None else self._lasted
        rss = self._peak_with_high_water()
        return ResourcePeaks(
            peak_rss_gb=None if rss is None else rss / _GB,
            peak_gpu_gb=None if peak_gpu is None else tuple(None if b is None else b / _GB for b in peak_gpu),
            gpu_utilisation=gpus.mean_utilisation if gpus else None,
            samples=self._samples,
            sampler_share=self._spent / lasted if lasted > 0 else 0.0,
        )

    def __enter__(self) -> ResourceSampler:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _peak_with_high_water(self) -> int | None:
        """The sampled peak of the tree, or this process's exact peak if it rose higher during the run."""
        try:
            high_water = self._high_water()
        except (OSError, ValueError):
            return self._peak_rss
        # An earlier run in this process may have set the mark: it is ours only if it has risen since the start.
        if self._first_high_water is None or high_water <= self._first_high_water:
            return self._peak_rss
        return max(self._peak_rss or 0, high_water)

    def _run(self) -> None:
        # Loading NVML and the first look at all processes are paid once and must not hold up the samples.
        self._gpus = GpuSampler(self._load_nvml())
        with contextlib.suppress(OSError):
            if self._tree is not None and self._tree.changed():
                self._tree.discover()
        base = time.thread_time()
        delay = 0.0
        while not self._stopping.wait(delay):
            before = self._spent
            scanning = self._sample()
            self._spent = time.thread_time() - base
            reading = self._spent - before - scanning
            delay = min(max(reading / self._reading_aim, _SHORTEST_DELAY), _LONGEST_DELAY)
        self._sample()
        self._spent = time.thread_time() - base

    def _sample(self) -> float:
        """Read everything once; the CPU seconds spent on looking for new processes."""
        scanning = 0.0
        if self._tree is not None:
            try:
                scanning = self._scan_if_due(self._tree)
                rss = self._tree.rss_bytes()
                self._peak_rss = max(self._peak_rss or 0, rss)
                if self._observe is not None:
                    self._observe(rss)
            except OSError:
                self._tree = None
        if self._gpus is not None:
            self._gpus.sample()
        self._samples += 1
        return scanning

    def _scan_if_due(self, tree: ProcessTree) -> float:
        """Look for new children when some process has started, but no more often than the budget allows."""
        now = time.monotonic()
        if now < self._next_scan or not tree.changed():
            return 0.0
        began = time.thread_time()
        tree.discover()
        cost = time.thread_time() - began
        self._next_scan = now + cost / self._scanning_aim
        return cost
