"""What recording costs: the same training loop with the ledger on and off, arms alternating.

    PYTHONPATH=src python benchmarks/ledger_overhead.py

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
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from _harness import Report, markdown_table
from mileage import Ledger
from mileage.kernels.machine.jit import kernel
from mileage.ledger.recorder import RunRecorder
from mileage.measure import Arm, PhaseClock
from mileage.measure.timing import TimingComparison, Work, compare

ROUNDS = 150
OFF, ON = "not recorded", "recorded"


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
    """A block of iterations that nobody records."""
    for _ in range(mix.iterations):
        for _ in range(mix.phases):
            _work(x, part)


def block_on(mix: Mix, x: np.ndarray, part: int, run: RunRecorder, steps: Iterator[int]) -> None:
    """The same recorded."""
    learn = run.phase("learn")
    for _ in range(mix.iterations):
        for _ in range(mix.phases):
            with learn:
                _work(x, part)
        run.checkpoint(next(steps))


def own_time(call: Callable[[], object]) -> Callable[[int], tuple[float, float]]:
    """Wall-clock of a call, and CPU time of the calling thread alone: the writer's stands beside it."""

    def timer(repeats: int) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - wall) / repeats, (time.thread_time() - cpu) / repeats

    return timer


def slow_down(found: TimingComparison, field: str) -> float:
    """By how much recording slows a block down: the median over rounds."""
    pairs = zip(found[OFF].samples, found[ON].samples, strict=True)
    return statistics.median(
        getattr(on, f"{field}_seconds") / getattr(off, f"{field}_seconds") - 1.0 for off, on in pairs
    )


def measure(mix: Mix, directory: Path, rounds: int = ROUNDS) -> tuple[TimingComparison, dict[str, float]]:
    """Blocks with and without recording in turn, and what follows from them."""
    x = np.ones(1_000, np.float64)
    part = max(1, calibrate(x, mix.seconds) // mix.phases)
    with Ledger(directory / "mileage.db").run("overhead", price_usd_per_hour=2.2, clock=PhaseClock()) as run:
        time.sleep(2.0)  # the database library has been loaded
        steps = itertools.count()
        arms = [
            Arm(OFF, Work(timer=own_time(functools.partial(block_off, mix, x, part)))),
            Arm(ON, Work(timer=own_time(functools.partial(block_on, mix, x, part, run, steps)))),
        ]
        others = time.process_time() - time.thread_time()
        found = compare("block", arms, rounds=rounds)
        time.sleep(0.5)  # the last rows are written
        others = time.process_time() - time.thread_time() - others
    iterations = next(steps)
    recorded = found[ON].median_cpu / mix.iterations * iterations
    extra = statistics.median(on.cpu - off.cpu for off, on in zip(found[OFF].samples, found[ON].samples, strict=True))
    return found, {
        "events_per_cpu_second": iterations * (mix.phases + 1) / recorded,
        "slow_down_cpu": slow_down(found, "cpu"),
        "slow_down_wall": slow_down(found, "wall"),
        "background_cpu_share": others / recorded,
        "us_per_iteration": 1e6 * extra / mix.iterations,
        "background_us_per_iteration": 1e6 * others / iterations,
    }


def event_costs(db: Path, rounds: int = 100) -> TimingComparison:
    """Seconds of the calling thread per phase and per checkpoint."""
    with Ledger(db).run("events", clock=PhaseClock()) as run:
        time.sleep(1.0)
        phase, steps = run.phase("learn"), itertools.count()

        def enter() -> None:
            with phase:
                pass

        arms = [
            Arm("phase", Work(timer=own_time(enter))),
            Arm("checkpoint", Work(timer=own_time(lambda: run.checkpoint(next(steps))))),
        ]
        return compare("one event", arms, rounds=rounds)


def main() -> None:
    """Measure and write the report."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        mixes = {mix: measure(MIXES[mix], Path(name)) for mix in MIXES}
        events = event_costs(Path(name) / "events.db")
    rows = [
        [mix, f"{found['slow_down_wall']:+.1%}", f"{found['slow_down_cpu']:+.1%}",
         f"{found['background_cpu_share']:.1%} of a core", f"{found['us_per_iteration']:.0f} µs"]
        for mix, (_, found) in mixes.items()
    ]  # fmt: skip
    header = ["what", "training thread, wall-clock", "training thread, CPU", "background writer, CPU", "per iteration"]
    each = [[name, f"{1e9 * events[name].median_cpu:,.0f}"] for name in ("phase", "checkpoint")]
    tables = [markdown_table(header, rows), markdown_table(["event", "ns of CPU, median"], each)]
    data = {mix: found | {"blocks": blocks.record()} for mix, (blocks, found) in mixes.items()}
    data["events"] = {each.arm: {"median_cpu": each.median_cpu, "best": each.best} for each in events.measurements}
    print("\n\n".join(tables), *Report("ledger_overhead", "What recording costs", tables, data).write(), sep="\n")


if __name__ == "__main__":
    main()
