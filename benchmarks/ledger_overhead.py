"""What recording costs: the same training loop with the ledger on and off, arms alternating.

    python benchmarks/ledger_overhead.py [--out benchmarks/results/ledger_overhead.json]

Two mixes, both with a compiled kernel that releases the interpreter, as fused training does:

- `1,000 events/s`: iterations of ten milliseconds with nine phases and one checkpoint row each;
- `1,000 checkpoints/s`: iterations of one millisecond with two phases and one checkpoint row each.

Reports the slow-down by wall-clock and, because a machine that others use makes wall-clocks useless, by CPU time: of
the training thread alone (what it loses while another core is free for the writer) and of the whole process (what it
loses where there is none). Also nanoseconds per event.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mileage.kernels._jit import kernel
from mileage.meter import PhaseClock, fingerprint
from mileage.training.recorder import Ledger

PAIRS = 5


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


class Seconds(NamedTuple):
    """What a loop took."""

    wall: float
    thread: float
    process: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.perf_counter(), time.thread_time(), time.process_time())

    def since(self, start: Seconds) -> Seconds:
        return Seconds(*(b - a for a, b in zip(start, self, strict=True)))


class Mix(NamedTuple):
    """How often what happens."""

    seconds: float
    iterations: int
    phases: int


MIXES = {"1,000 events/s": Mix(0.010, 200, 9), "1,000 checkpoints/s": Mix(0.001, 1000, 2)}


def train(mix: Mix, x: np.ndarray, rounds: int, db: Path | None) -> Seconds:
    """Return what the loop alone took; opening and the last delivery happen once a run, not once an iteration."""
    part = max(1, rounds // mix.phases)
    if db is None:
        start = Seconds.now()
        for _ in range(mix.iterations):
            for _ in range(mix.phases):
                _work(x, part)
        return Seconds.now().since(start)
    with Ledger(db).run("overhead", price=2.2, clock=PhaseClock()) as run:
        time.sleep(1.0)  # the database library has been loaded
        learn = run.phase("learn")
        start = Seconds.now()
        for step in range(mix.iterations):
            for _ in range(mix.phases):
                with learn:
                    _work(x, part)
            run.checkpoint(step)
        return Seconds.now().since(start)


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


def measure(mix: Mix, directory: Path) -> dict[str, object]:
    x = np.ones(1_000, np.float64)
    rounds = calibrate(x, mix.seconds)
    train(mix, x, rounds, directory / "warm.db")
    pairs = []
    for pair in range(PAIRS):
        arms = [None, directory / "mileage.db"]
        if pair % 2:
            arms.reverse()
        seconds = {arm is not None: train(mix, x, rounds, arm) for arm in arms}
        pairs.append((seconds[False], seconds[True]))

    def slow_down(clock: str) -> dict[str, float]:
        ratios = [getattr(on, clock) / getattr(off, clock) - 1 for off, on in pairs]
        extra = [(getattr(on, clock) - getattr(off, clock)) / mix.iterations for off, on in pairs]
        return {"median": statistics.median(ratios), "median_us_per_checkpoint": 1e6 * statistics.median(extra)}

    return {
        "seconds_off_on": pairs,
        "slow_down": {clock: slow_down(clock) for clock in Seconds._fields},
        "events_per_cpu_second": statistics.median(mix.iterations * (mix.phases + 1) / on.thread for _, on in pairs),
    }


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
        }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
