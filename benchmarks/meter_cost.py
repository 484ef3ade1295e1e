"""What measuring costs: nanoseconds per phase event, and the sampler's share of one core.

python benchmarks/meter_cost.py --out benchmarks/results/meter_cost.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from mileage.meter import PhaseClock, ResourceSampler, fingerprint

PAIRS = 100_000
ROUNDS = 9


def empty_loop() -> float:
    start = time.perf_counter_ns()
    for _ in range(PAIRS):
        pass
    return (time.perf_counter_ns() - start) / PAIRS


def kept_handle(clock: PhaseClock) -> float:
    phase = clock.phase("learn")
    start = time.perf_counter_ns()
    for _ in range(PAIRS):
        with phase:
            pass
    return (time.perf_counter_ns() - start) / PAIRS


def looked_up(clock: PhaseClock) -> float:
    start = time.perf_counter_ns()
    for _ in range(PAIRS):
        with clock.phase("learn"):
            pass
    return (time.perf_counter_ns() - start) / PAIRS


def other_thread(clock: PhaseClock) -> float:
    result: list[float] = []
    thread = threading.Thread(target=lambda: result.append(kept_handle(clock)), name="collector")
    thread.start()
    thread.join()
    return result[0]


def clock_costs() -> dict[str, Any]:
    clock = PhaseClock()
    samples: dict[str, list[float]] = {"kept_handle": [], "looked_up": [], "other_thread": []}
    for _ in range(ROUNDS):
        base = empty_loop()
        samples["kept_handle"].append(kept_handle(clock) - base)
        samples["looked_up"].append(looked_up(clock) - base)
        samples["other_thread"].append(other_thread(clock) - base)
    start = time.perf_counter_ns()
    for _ in range(1000):
        clock.times()
    read = (time.perf_counter_ns() - start) / 1000
    return {
        "ns_per_enter_exit_pair": {name: statistics.median(values) for name, values in samples.items()},
        "ns_per_times": read,
        "raw": samples,
    }


def sampler_share(seconds: float, busy: bool) -> dict[str, Any]:
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each sampler measurement")
    args = parser.parse_args()
    result = {
        "machine": fingerprint().as_dict(),
        "clock": clock_costs(),
        "sampler_idle": sampler_share(args.seconds, busy=False),
        "sampler_busy": sampler_share(args.seconds, busy=True),
    }
    for name, ns in result["clock"]["ns_per_enter_exit_pair"].items():  # type: ignore[index]
        print(f"phase enter + exit, {name:13} {ns:7.0f} ns")
    for name in ("sampler_idle", "sampler_busy"):
        share = result[name]
        print(f"{name}: {share['share_of_one_core']:.3%} of one core, {share['samples']} samples")  # type: ignore[index]
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
