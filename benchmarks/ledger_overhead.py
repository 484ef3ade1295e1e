"""What recording costs: the same training loop with the ledger on and off, arms alternating.

    python benchmarks/ledger_overhead.py [--out benchmarks/results/ledger_overhead.json]

Two mixes, both with a compiled kernel that releases the interpreter, as fused training does:

- `1,000 events/s`: iterations of ten milliseconds with nine phases and one checkpoint row each;
- `1,000 checkpoints/s`: iterations of one millisecond with two phases and one checkpoint row each.

Blocks of a twentieth of a second with and without recording alternate within one process, so that whatever else the
machine does falls on both alike; the figures are medians over pairs of neighbouring blocks. Slow-down of the training
thread is given by wall-clock and by its own CPU time; the CPU time of the background writer, which another core takes
over where one is free, stands beside it. Also nanoseconds per event.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mileage.kernels._jit import kernel
from mileage.meter import PhaseClock, fingerprint
from mileage.training.recorder import Ledger, RunRecorder

PAIRS = 150


@kernel
def _work(x: np.ndarray, rounds: int) -> float:
    total = 0.0
    for _ in range(rounds):
        for i in range(x.shape[0]):
            total += x[i] * 1.000001
    return total


def calibrate(x: np.ndarray, seconds: float) -> int:
    """Return the rounds that make an iteration take `seconds` of CPU."""
    rounds = 1
    while True:
        best = min(_seconds(x, rounds) for _ in range(5))
        if best > 0.5e-3:
            return max(1, round(rounds * seconds / best))
        rounds *= 2


def _seconds(x: np.ndarray, rounds: int) -> float:
    start = time.thread_time()
    _work(x, rounds)
    return time.thread_time() - start


class Mix(NamedTuple):
    """How often what happens."""

    seconds: float
    """CPU seconds of an iteration."""
    phases: int
    """Phases of an iteration; there is one checkpoint besides."""

    @property
    def iterations(self) -> int:
        """Iterations of a block."""
        return round(BLOCK_SECONDS / self.seconds)


BLOCK_SECONDS = 0.05
MIXES = {"1,000 events/s": Mix(0.010, 9), "1,000 checkpoints/s": Mix(0.001, 2)}


def block_off(mix: Mix, x: np.ndarray, part: int) -> None:
    for _ in range(mix.iterations):
        for _ in range(mix.phases):
            _work(x, part)


def block_on(mix: Mix, x: np.ndarray, part: int, run: RunRecorder, step: int) -> None:
    learn = run.phase("learn")
    for i in range(mix.iterations):
        for _ in range(mix.phases):
            with learn:
                _work(x, part)
        run.checkpoint(step + i)


def timed(call: Callable[[], None]) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of this thread."""
    wall, cpu = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - wall, time.thread_time() - cpu


def measure(mix: Mix, directory: Path) -> dict[str, object]:
    x = np.ones(1_000, np.float64)
    part = max(1, calibrate(x, mix.seconds) // mix.phases)
    off, on = [], []
    with Ledger(directory / "mileage.db").run("overhead", price=2.2, clock=PhaseClock()) as run:
        time.sleep(2.0)  # the database library has been loaded
        block_on(mix, x, part, run, 0)
        others = time.process_time() - time.thread_time()
        for pair in range(PAIRS):
            step = pair * mix.iterations
            arms = [
                (off, functools.partial(block_off, mix, x, part)),
                (on, functools.partial(block_on, mix, x, part, run, step)),
            ]
            for times, block in arms if pair % 2 else arms[::-1]:
                times.append(timed(block))
        time.sleep(0.5)  # the last rows are written
        others = time.process_time() - time.thread_time() - others
    recorded = sum(cpu for _, cpu in on)
    return {
        "pairs": PAIRS,
        "events_per_cpu_second": PAIRS * mix.iterations * (mix.phases + 1) / recorded,
        "slow_down_cpu": statistics.median(b[1] / a[1] - 1 for a, b in zip(off, on, strict=True)),
        "slow_down_wall": statistics.median(b[0] / a[0] - 1 for a, b in zip(off, on, strict=True)),
        "background_cpu_share": others / recorded,
        "us_per_iteration": 1e6 * statistics.median(b[1] - a[1] for a, b in zip(off, on, strict=True)) / mix.iterations,
        "background_us_per_iteration": 1e6 * others / (PAIRS * mix.iterations),
    }


def event_costs(db: Path) -> dict[str, float]:
    """Return nanoseconds of the calling thread per phase and per checkpoint."""
    with Ledger(db).run("events", clock=PhaseClock()) as run:
        time.sleep(1.0)
        phase = run.phase("learn")
        n = 100_000
        start = time.thread_time_ns()
        for _ in range(n):
            with phase:
                pass
        per_phase = (time.thread_time_ns() - start) / n
        costs = []
        for step in range(2_000):
            start = time.thread_time_ns()
            run.checkpoint(step)
            costs.append(time.thread_time_ns() - start)
            time.sleep(0.0005)
    return {"phase_enter_and_exit_ns": per_phase, "checkpoint_call_ns": statistics.median(costs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        result = {
            "machine": fingerprint().as_dict(),
            **{name: measure(mix, directory) for name, mix in MIXES.items()},
            "events": event_costs(directory / "events.db"),
            "load_average": os.getloadavg()[0],
        }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
