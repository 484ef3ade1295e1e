"""How fast the pages of `mileage serve` answer with 10,000 runs and 1,000,000 checkpoints, and what watching costs.

    python benchmarks/serve_scale.py [--out benchmarks/results/serve_scale.json] [--rounds 5]

Fills an SQLite ledger, starts the server as its own process, and asks for every kind of page: wall-clock of the request
from outside and the CPU seconds of the server, medians over repeats. Then trains with and without fifty pages watching
the run, arms alternating, and compares training steps a second: without pages, with fifty pages on the same cores, and
the CPU time that the server took.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from _harness import write_json
from ledger_scale import CHECKPOINTS, RUNS, fill
from mileage.ledger import queries
from mileage.ledger.store import Store
from mileage.measure import fingerprint

REPEATS = 7
WATCHERS = 50
LIMIT_SECONDS = 0.3


@contextmanager
def server(db: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A server on a free port, and its process."""
    code = "from mileage.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--port", "0", "--db", str(db)]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None
        yield found[0].rstrip("/"), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(10)


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def asked(base: str, path: str, process: psutil.Process) -> dict[str, Any]:
    """Times of one page, the first request apart: it loads what the others find loaded."""
    walls, cpus, size = [], [], 0
    for _ in range(REPEATS + 1):
        begun, used = time.perf_counter(), cpu(process)
        with urllib.request.urlopen(base + path, timeout=60) as answer:
            size = len(answer.read())
        walls.append(time.perf_counter() - begun)
        cpus.append(cpu(process) - used)
    return {
        "path": path, "bytes": size, "first_s": walls[0], "wall_median_s": statistics.median(walls[1:]),
        "wall_max_s": max(walls[1:]), "cpu_median_s": statistics.median(cpus[1:]),
    }  # fmt: skip


def pages(db: Path) -> list[dict[str, Any]]:
    with Store(db) as store:
        newest = store.read(queries.records, limit=1)[0].run_id
    paths = [
        "/", "/?page=150", "/?sort=cost&order=up", "/?sort=return", "/?q=arm+42", "/?state=not_reached", "/recipes",
        "/recipes?q=arm+7", f"/recipes/{newest}", f"/runs/{newest}", f"/runs/{newest}/live",
        "/compare?a=name%3Darm+0&b=name%3Darm+1", "/builds", "/api/runs.json", f"/api/runs/{newest}.json",
        "/api/compare.json?a=name%3Darm+0&b=name%3Darm+1",
    ]  # fmt: skip
    with server(db) as (base, process):
        return [asked(base, path, process) for path in paths]


def watching(base: str, run_id: str, stop: threading.Event) -> threading.Thread:
    """A page that watches: listens for events and asks for what has changed, as the script of the page does."""

    def listen() -> None:
        try:
            with urllib.request.urlopen(f"{base}/events/{run_id}", timeout=120) as stream:
                for line in stream:
                    if stop.is_set():
                        return
                    if line.startswith(b"event: changed"):
                        urllib.request.urlopen(f"{base}/runs/{run_id}/live", timeout=60).read()
        except OSError:
            return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    return thread


def train(db: Path, base: str | None, seed: int) -> float:
    """Training steps a second of one run, watched by fifty pages where there is a server."""
    code = "from mileage.cli import main; main()"
    command = [
        sys.executable, "-c", code, "train", "ppo", "CartPole-v1", "--steps", "3000000", "--eval-every", "100000",
        "--seed", str(seed), "--threads", "1", "--db", str(db), "--out", str(db.parent / "runs"), "--json",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    stop = threading.Event()
    if base is not None:
        run_id = _running(db)
        for _ in range(WATCHERS):
            watching(base, run_id, stop)
    out, _ = process.communicate()
    stop.set()
    return float(json.loads(out)["runs"][0]["steady_steps_per_second"])


def _running(db: Path) -> str:
    """The id of the run that goes on, once it is there."""
    for _ in range(600):
        with Store(db, recover=False) as store:
            found = store.read(queries.open_runs)
        if found:
            return found[-1].run_id
        time.sleep(0.05)
    raise TimeoutError("no run began")


def watched(db: Path, rounds: int) -> dict[str, Any]:
    """Steps a second without and with watchers, in turns."""
    found: dict[str, list[float]] = {"alone": [], "watched": []}
    used = []
    train(db, None, 99)  # compiles
    with server(db) as (base, process):
        for number in range(rounds):
            order = ("alone", "watched") if number % 2 == 0 else ("watched", "alone")
            for arm in order:
                before, begun = cpu(process), time.perf_counter()
                found[arm].append(train(db, base if arm == "watched" else None, number))
                if arm == "watched":
                    used.append((cpu(process) - before) / (time.perf_counter() - begun))
    ratios = [b / a for a, b in zip(found["alone"], found["watched"], strict=True)]
    return {
        "watchers": WATCHERS, "steps_per_second": found, "ratio_median": statistics.median(ratios), "ratios": ratios,
        "server_share_of_a_core": statistics.median(used),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--db", type=Path, help="a filled ledger to use, made if it is not there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        db = options.db or Path(name) / "mileage.db"
        if not db.exists():
            fill(db)
        answered = pages(db)
        result = {
            "machine": fingerprint().as_dict(),
            "runs": RUNS,
            "checkpoints": RUNS * CHECKPOINTS,
            "limit_s": LIMIT_SECONDS,
            "slowest_median_s": max(page["wall_median_s"] for page in answered),
            "pages": answered,
            "watched": watched(Path(name) / "live.db", options.rounds) if options.rounds else None,
            "load_average": os.getloadavg()[0],
        }
    write_json(result, options.out)


if __name__ == "__main__":
    main()
