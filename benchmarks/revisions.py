"""Two revisions of mileage side by side: is anything slower than it was?

    git worktree add ../before REVISION
    PYTHONPATH=src python benchmarks/revisions.py ../before/src --rounds 120

Both revisions run the same program, through the public interface alone, each in a process of its own. Of a training,
the two processes stay and take turns, a slice of some tenths of a second each: neighbours and clock rates change more
slowly than that and meet both alike. A start is a new process every round. Who comes first changes from round to
round; the ratio is the median over rounds of after by before, with a 95 % interval by the sign test. CPU seconds stand
beside the wall-clock. *cold start* is the command with an empty kernel cache, *warm start* with a full
one, both from process start to the end; *learn* is the learner's own phase, per update.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from scipy.stats import binom

from _harness import Report, markdown_table
from arm_revision import LEARNING


def _command(source: Path, folder: Path, cache: Path) -> dict[str, float]:
    """Wall-clock and CPU of the command that a user types, its children's included."""
    words = ["train", "ppo", "CartPole-v1", "--target", "mean_return>=475", "--seed", "0", "--json"]
    words += ["--out", str(folder / "runs"), "--db", str(folder / "ledger.db")]
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "mileage", *words],
        env=_environment(source) | {"MILEAGE_CACHE_DIR": str(cache)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall": wall, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def _environment(source: Path) -> dict[str, str]:
    """As a user has it: modules are compiled to bytecode once, by the first round."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(source)}


def cold_start(source: Path, cache: Path) -> dict[str, float]:
    """The command with an empty cache."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # rows may still be delivered
        return _command(source, Path(folder), Path(folder) / "cache")


def warm_start(source: Path, cache: Path) -> dict[str, float]:
    """The command with a cache that holds every kernel."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # rows may still be delivered
        return _command(source, Path(folder), cache)


def importing(source: Path, cache: Path) -> dict[str, float]:
    """`import mileage`, from process start."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import mileage"], env=_environment(source), check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall": wall, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


class Trainer:
    """A process that trains a slice at each call."""

    def __init__(self, name: str, source: Path, cache: Path, *threads: int) -> None:
        command = [sys.executable, str(Path(__file__).with_name("arm_revision.py")), name, *map(str, threads)]
        variables = _environment(source) | {"MILEAGE_CACHE_DIR": str(cache)}
        self._process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __call__(self) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        """End of the process."""
        self._process.communicate()


STARTS: dict[str, Callable[[Path, Path], dict[str, float]]] = {
    "warm start to 475": warm_start,
    "cold start to 475": cold_start,
    "import mileage": importing,
}
JOBS = [*LEARNING, *STARTS]


def interval(ratios: list[float]) -> tuple[float, float]:
    """Order statistics around the median that hold it with at least 95 %, by the sign test."""
    ordered, n = sorted(ratios), len(ratios)
    k = 0
    while k + 1 < n / 2 and 2.0 * binom.cdf(k, n, 0.5) <= 0.05:
        k += 1
    k = max(0, k - 1) if 2.0 * binom.cdf(k, n, 0.5) > 0.05 else k
    return ordered[k], ordered[n - 1 - k]


@contextmanager
def arms(
    name: str, sources: dict[str, Path], caches: dict[str, Path], threads: list[int]
) -> Iterator[dict[str, Callable[[], Any]]]:
    """What takes one sample of a job, for each revision."""
    if name in STARTS:
        yield {arm: partial(STARTS[name], sources[arm], caches[arm]) for arm in sources}
        return
    trainers = {arm: Trainer(name, sources[arm], caches[arm], *threads) for arm in sources}
    yield trainers
    for trainer in trainers.values():
        trainer.close()


def measure(
    name: str, sources: dict[str, Path], caches: dict[str, Path], rounds: int, threads: list[int]
) -> dict[str, Any]:
    """All samples of one job, arms in turn; the first round warms up and is kept apart."""
    samples: dict[str, list[dict[str, float]]] = {arm: [] for arm in sources}
    with arms(name, sources, caches, threads) as take:
        for number in range(rounds + 1):
            for arm in sources if number % 2 else reversed(sources):
                samples[arm].append(take[arm]())
    return {"job": name, "warmups": {arm: each[0] for arm, each in samples.items()},
            "samples": {arm: each[1:] for arm, each in samples.items()}}  # fmt: skip


def row(found: dict[str, Any]) -> list[str]:
    """Medians and ratios of one job."""
    cells = [found["job"]]
    for what in ("wall", "cpu", "learn"):
        pairs = [
            (a[what], b[what])
            for a, b in zip(found["samples"]["after"], found["samples"]["before"], strict=True)
            if what in a and b[what] > 0.0
        ]
        if not pairs:
            cells.append("–")
            continue
        ratios = [after / before for after, before in pairs]
        low, high = interval(ratios)
        text = f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
        if what == "wall":
            cells.append(f"{statistics.median(b for _, b in pairs):.3f}")
            cells.append(f"{statistics.median(a for a, _ in pairs):.3f}")
        cells.append(text)
    return cells


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="source directory of the earlier revision")
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    parser.add_argument("--rounds", type=int, default=120, help="of slices; starts take a tenth as many")
    parser.add_argument("--threads", type=int, nargs="*", default=[], help="of trainings; left out: the default")
    parser.add_argument("--output", default="revisions", help="name of the result")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB")
    options = parser.parse_args()
    sources = {"before": options.before.resolve(), "after": options.after.resolve()}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # rows may still be delivered
        caches = {arm: Path(folder) / arm for arm in sources}
        found = []
        for name in options.jobs:
            found.append(
                measure(name, sources, caches, options.rounds // (10 if name in STARTS else 1), options.threads)
            )
            print(" | ".join(row(found[-1])), flush=True)
    header = ["job", "before s", "after s", "after / before, wall-clock", "CPU", "learn phase"]
    table = markdown_table(header, [row(each) for each in found])
    about = options.output.removeprefix("revisions").replace("_", " ").strip()
    title = f"Two revisions: {about}" if about else "Two revisions"
    report = Report(options.output, title, [table], {"rounds": options.rounds, "jobs": found})
    print(table, *report.write(), sep="\n")


if __name__ == "__main__":
    main()
