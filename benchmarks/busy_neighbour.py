"""Threads beside busy neighbours: is any number of them slower than one?

    PYTHONPATH=src python benchmarks/busy_neighbour.py --neighbours 0 1 2

One process per number of threads stays and takes turns with the others, a slice of training of some tenths of a second
each, while so many foreign processes burn a core each. The ratio is the median over rounds of the slice by the
one-threaded slice of the same round, with a 95 % interval by the sign test; below 1 the threads helped. Another
revision's source, checked out beside, joins as `--before`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _harness import Report, markdown_table
from arm_revision import LEARNING
from revisions import Trainer, interval

HERE = Path(__file__).resolve().parents[1] / "src"


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that do nothing but burn a core each."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    time.sleep(0.5)
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def measure(job: str, arms: dict[str, Trainer], count: int, rounds: int) -> dict[str, Any]:
    """The slices of all arms beside so many neighbours, in turn."""
    samples: dict[str, list[float]] = {arm: [] for arm in arms}
    with neighbours(count):
        for number in range(rounds):
            for arm in arms if number % 2 else reversed(arms):
                samples[arm].append(arms[arm]()["wall"])
    return {"job": job, "neighbours": count, "samples": samples}


def rows(found: dict[str, Any]) -> Iterator[list[str]]:
    """One row for every arm: its slice, and that by the slice on one thread."""
    one = found["samples"]["1 thread"]
    for arm, each in found["samples"].items():
        ratios = [a / b for a, b in zip(each, one, strict=True)]
        low, high = interval(ratios)
        ratio = "1" if each is one else f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
        yield [found["job"], str(found["neighbours"]), arm, f"{statistics.median(each):.3f}", ratio]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, nargs="+", default=[os.cpu_count() or 1])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--before", type=Path, help="source directory of an earlier revision")
    parser.add_argument("--jobs", nargs="+", choices=LEARNING, default=list(LEARNING)[:4], metavar="JOB")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for job in options.jobs:
            arms = {"1 thread": Trainer(job, HERE, Path(folder) / "now", 1)}
            for threads in options.threads:
                arms[f"{threads} threads"] = Trainer(job, HERE, Path(folder) / "now", threads)
                if options.before:
                    source = options.before.resolve()
                    arms[f"{threads} threads, before"] = Trainer(job, source, Path(folder) / "before", threads)
            for trainer in arms.values():
                trainer()
            for count in options.neighbours:
                found.append(measure(job, arms, count, options.rounds))
                print(*(" | ".join(row) for row in rows(found[-1])), sep="\n", flush=True)
            for trainer in arms.values():
                trainer.close()
    header = ["job", "busy neighbours", "arm", "slice s", "by one thread"]
    table = markdown_table(header, [row for each in found for row in rows(each)])
    report = Report(
        "busy_neighbour", "Threads beside busy neighbours", [table], {"rounds": options.rounds, "jobs": found}
    )
    print(table, *report.write(), sep="\n")


if __name__ == "__main__":
    main()
