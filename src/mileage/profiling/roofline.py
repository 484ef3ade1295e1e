"""What this machine can do at most: matrix products, memory, threads together, and a call from Python into a kernel."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mileage.description import Product
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.kernels.machine.frames import Frame
from mileage.kernels.machine.gauges import STREAM, nothing, product_frame, products, stream
from mileage.kernels.machine.team import Team
from mileage.measure.timing import every_call
from mileage.system import usable_cores

# Far above any last-level cache.
_STREAM_FLOATS = 16 * 2**20
_USUAL_CACHE = 32.0 * 2**20
# A product large enough for BLAS to be at its best, and that of a small network's hidden layer.
_LARGE, _SMALL = Product(0, 0, 1024, 1024, 1024), Product(0, 0, 128, 64, 64)


@dataclass(frozen=True)
class MachineLimits:
    """The machine's measured limits with one team of threads."""

    threads: int
    gemm_gflops: float
    """Single precision, the higher of a large product and a small network's, one on every thread."""
    memory_gb_per_s: float
    """Two reads and a write of arrays far larger than the caches; what the write reads first is not counted."""
    crossing_seconds: float
    """A call from Python into a native kernel that does nothing, on one thread."""
    team_crossing_seconds: float
    """The same on all threads of the team, with the meeting at the end."""

    cache_bytes: float
    """The largest cache of a core."""

    def roof(self, intensity: float) -> float:
        """Most GFLOP/s at `intensity` operations per byte."""
        return min(self.gemm_gflops, intensity * self.memory_gb_per_s)


def medians(arms: Mapping[str, Callable[[], object]], **options: Any) -> dict[str, float]:
    """Median seconds per call of every arm; options as for `every_call`."""
    return {name: statistics.median(taken) for name, taken in every_call(arms, **options).items()}


def best(arms: Mapping[str, Callable[[], object]], **options: Any) -> dict[str, float]:
    """Shortest seconds per call of every arm, for comparing arms on a busy machine; options as for `every_call`."""
    return {name: min(taken) for name, taken in every_call(arms, **options).items()}


def gemm_rate(team: Team, shape: Product, seconds: float = 0.1) -> float:
    """GFLOP/s of products of one shape, one after the other on every thread of the team."""
    flops = 2.0 * shape[2] * shape[3] * shape[4]
    # About 10 ms a call at 50 GFLOP/s and thread.
    repeats = max(1, int(0.01 * 50e9 / flops))
    frame = product_frame([shape], team.n_ranks, repeats, team.n_ranks)
    with single_threaded_blas():
        call = medians({"": lambda: team.run(products, frame.record, team.n_ranks)}, seconds=seconds)[""]
    return flops * repeats * team.n_ranks / call / 1e9


def memory_rate(team: Team, seconds: float = 0.15) -> float:
    """GB/s of adding two large arrays into a third on all threads of the team."""
    arrays = [np.ones(_STREAM_FLOATS, np.float32) for _ in range(3)]
    frame = Frame(STREAM, a=arrays[0], b=arrays[1], c=arrays[2], size=_STREAM_FLOATS)
    call = medians({"": lambda: team.run(stream, frame.record, team.n_ranks)}, seconds=seconds)[""]
    return 3 * 4 * _STREAM_FLOATS / call / 1e9


def crossing_seconds(team: Team, ranks: int, calls: int = 500) -> float:
    """What it costs to enter a native kernel from Python on `ranks` threads and to come back."""
    empty = np.zeros(1, np.float32)
    frame = Frame(STREAM, a=empty, b=empty, c=empty, size=0)
    record = frame.record

    def call_often() -> None:
        for _ in range(calls):
            team.run(nothing, record, ranks)

    return medians({"": call_often}, seconds=0.05)[""] / calls


@functools.lru_cache(maxsize=8)
def measure_limits(threads: int) -> MachineLimits:
    """Measure the machine with `threads` threads, no more than it has cores; once per process."""
    team = Team(min(threads, usable_cores()))
    try:
        return MachineLimits(
            threads=team.n_ranks,
            gemm_gflops=max(gemm_rate(team, _LARGE), gemm_rate(team, _SMALL)),
            memory_gb_per_s=memory_rate(team),
            crossing_seconds=crossing_seconds(team, 1),
            team_crossing_seconds=crossing_seconds(team, team.n_ranks),
            cache_bytes=cache_bytes(),
        )
    finally:
        team.close()


def cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> float:
    """Size of the largest cache that the system tells of; a common last-level cache where it tells nothing."""
    sizes = []
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        sizes.append(float(text.rstrip("KM")) * unit)
    return max(sizes, default=_USUAL_CACHE)
