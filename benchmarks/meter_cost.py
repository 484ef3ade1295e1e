"""What measuring costs: nanoseconds per phase event, and the sampler's share of one core.

    PYTHONPATH=src python benchmarks/meter_cost.py

Loops that enter and leave a phase take turns with an empty loop, whose time is taken off.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from typing import Any

from _harness import Report, markdown_table
from mileage.measure import Arm, PhaseClock, ResourceSampler, Sample, Turn
from mileage.measure.timing import ClockExecutor, TimingComparison, Work, compare

PAIRS = 20_000
ROUNDS = 15
EMPTY, READ = "empty loop", "reading all phases"


def empty_loop() -> None:
    """As many turns of a loop as the others make."""
    for _ in range(PAIRS):
        pass


def kept_handle(clock: PhaseClock) -> Callable[[], None]:
    """Enter a phase whose handle was kept."""
    phase = clock.phase("learn")

    def loop() -> None:
        for _ in range(PAIRS):
            with phase:
                pass

    return loop


def looked_up(clock: PhaseClock) -> Callable[[], None]:
    """Enter a phase by its name."""

    def loop() -> None:
        for _ in range(PAIRS):
            with clock.phase("learn"):
                pass

    return loop


def on_another_thread(loop: Callable[[], None]) -> Callable[[int], tuple[float, float]]:
    """Time a loop on a thread that does not own the clock."""

    def timer(repeats: int) -> tuple[float, float]:
        samples: list[Sample] = []
        arm, turn = Arm("", Work(loop, units=PAIRS)), Turn("", repeats=repeats)
        work = threading.Thread(target=lambda: samples.append(ClockExecutor().attempt(arm, turn)), name="collector")
        work.start()
        work.join()
        return samples[0].wall_seconds, samples[0].cpu_seconds

    return timer


def events(rounds: int = ROUNDS) -> TimingComparison:
    """All kinds of phase events in turn, in seconds each."""
    clock = PhaseClock()
    arms = [
        Arm(EMPTY, Work(empty_loop, units=PAIRS)),
        Arm("phase, kept handle", Work(kept_handle(clock), units=PAIRS)),
        Arm("phase, looked up", Work(looked_up(clock), units=PAIRS)),
        Arm("phase, on another thread", Work(timer=on_another_thread(kept_handle(clock)), units=PAIRS)),
        Arm(READ, Work(clock.times)),
    ]
    return compare("one event", arms, rounds=rounds)


def net_nanoseconds(found: TimingComparison) -> dict[str, float]:
    """Nanoseconds of every kind of event, net of the loop around it."""
    loop = found[EMPTY].median
    return {
        each.arm: 1e9 * (each.median - (0.0 if each.arm == READ else loop))
        for each in found.measurements
        if each.arm != EMPTY
    }


def sampler_share(seconds: float, busy: bool) -> dict[str, Any]:
    """What the sampler takes beside a thread that works, or sleeps."""
    with ResourceSampler() as sampler:
        stop = time.monotonic() + seconds
        while time.monotonic() < stop:
            if busy:
                sum(range(10_000))
            else:
                time.sleep(0.05)
    peaks = sampler.peaks()
    return {"seconds": seconds, "samples": peaks.samples, "share_of_one_core": peaks.sampler_share}


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each sampler measurement")
    options = parser.parse_args()
    found = events()
    shares = {name: sampler_share(options.seconds, busy=name == "busy") for name in ("idle", "busy")}
    nanoseconds = net_nanoseconds(found)
    tables = [
        markdown_table(["event", "ns, median"], [[name, f"{ns:,.0f}"] for name, ns in nanoseconds.items()]),
        markdown_table(
            ["sampler beside a thread that is", "readings", "of one core"],
            [[name, share["samples"], f"{share['share_of_one_core']:.3%}"] for name, share in shares.items()],
        ),
    ]
    data = {"ns_per_event": nanoseconds, "events": found.record(), "sampler": shares}
    print("\n\n".join(tables), *Report("meter_cost", "What measuring costs", tables, data).write(), sep="\n")


if __name__ == "__main__":
    main()
