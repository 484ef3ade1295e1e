"""Sixteen processes write to one ledger for minutes while its disk fills up or its server goes away, then count.

    python benchmarks/ledger_soak.py sqlite --disk SMALL --place NOTES --out benchmarks/results/ledger_soak_sqlite.json
    python benchmarks/ledger_soak.py postgresql --disk SMALL --place NOTES --out …/ledger_soak_postgresql.json

Every writer records runs one after the other, a few seconds each, with checkpoints, episodes and phases, and notes what
it recorded. On SQLite the disk (`--disk`, a small file system of its own) is filled to the last byte for a while; the
PostgreSQL server, one of our own, is killed and started again twice, and its spool's disk is filled where `--disk` is
given. At the end every row that a writer noted must be in the ledger, once, and nothing else.

Every call is timed. What sixteen processes on few cores wait for is mostly each other, so each writer also notes how
late it wakes from its pauses: a wait that nothing of the ledger has a part in.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from mileage.ledger import schema, spool
from mileage.ledger.panels import Panel
from mileage.ledger.recorder import Ledger
from mileage.ledger.store import Store
from mileage.ledger.targets import Evaluation
from mileage.measure import fingerprint

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / folder) for folder in ("", "contracts")]
WRITERS = 16
RUN_SECONDS = 5.0
EPISODES = 3
PAUSE_SECONDS = 0.1


def write_runs(db: str, number: int, until: float, notes: Path) -> None:
    """Record runs until the time is up, and note what was recorded."""
    logging.disable(logging.WARNING)  # what is wrong with the disk is known
    panel = Panel.default("CartPole-v1", EPISODES)
    with notes.open("w") as file:
        while time.time() < until:
            run = Ledger(db).run(f"writer {number}", panel=panel, target="mean_return>=1000", resources=False)
            began, calls, late = time.monotonic(), [], []
            while time.monotonic() - began < RUN_SECONDS:
                step = len(calls) + 1
                evaluation = Evaluation.of(panel.seeds, [float(step)] * EPISODES, [step] * EPISODES)
                before = time.perf_counter()
                run.checkpoint(step, evaluation)
                after = time.perf_counter()
                time.sleep(PAUSE_SECONDS)
                calls.append(after - before)
                late.append(time.perf_counter() - after - PAUSE_SECONDS)
            before = time.monotonic()
            run.end()
            closing = time.monotonic() - before
            noted = {"run_id": run.run_id, "at": time.time(), "checkpoints": calls, "late": late, "end": closing}
            file.write(json.dumps(noted) + "\n")
            file.flush()


def fill(disk: Path, seconds: float) -> int:
    """Take all that is left of the file system at `disk` for some seconds; return how much that was."""
    ballast, taken = disk / "ballast", 0
    fd = os.open(ballast, os.O_CREAT | os.O_WRONLY)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for size in (65_536, 4_096, 1):
            with contextlib.suppress(OSError):
                while True:
                    taken += os.write(fd, b"x" * size)
        time.sleep(0.05)
    os.close(fd)
    ballast.unlink()
    return taken


def count(db: str, expected: dict[str, int]) -> dict[str, Any]:
    """Hold the ledger against what the writers noted."""
    with Store(db) as store:
        left = spool.waiting(*store.spool_dirs)
        with store.engine.connect() as connection:
            runs = set(connection.execute(sa.select(schema.run.c.run_id)).scalars())
            found = {
                kind: Counter(dict(connection.execute(
                    sa.select(table.c.run_id, sa.func.count()).group_by(table.c.run_id)
                ).all()))
                for kind, table in (("checkpoint", schema.checkpoint), ("episode", schema.episode), ("end", schema.end))
            }  # fmt: skip
    wrong = [
        run_id
        for run_id, steps in expected.items()
        if (found["checkpoint"][run_id], found["episode"][run_id], found["end"][run_id]) != (steps, EPISODES * steps, 1)
    ]
    return {
        "runs": len(expected),
        "checkpoints": sum(expected.values()),
        "episodes": EPISODES * sum(expected.values()),
        "runs_missing": len(set(expected) - runs),
        "runs_nobody_made": len(runs - set(expected)),
        "runs_with_a_wrong_number_of_rows": len(wrong),
        "spool_files_left": len(left),
    }


def soak(db: str, minutes: float, place: Path, disk: Path | None, server: Any) -> dict[str, Any]:
    """Write for so long, with everything that can go wrong going wrong in between."""
    began = time.time()
    until = began + 60.0 * minutes
    context = multiprocessing.get_context("spawn")
    notes = [place / f"writer{number}.json" for number in range(WRITERS)]
    writers = [context.Process(target=write_runs, args=(db, i, until, notes[i])) for i in range(WRITERS)]
    for writer in writers:
        writer.start()
    troubles = []
    for share, trouble in ((0.2, "server"), (0.4, "disk"), (0.6, "server")):
        time.sleep(max(0.0, began + share * 60.0 * minutes - time.time()))
        if trouble == "disk" and disk is not None:
            taken = fill(disk, 12.0)
            troubles.append({"at_seconds": time.time() - began, "disk_full_for_seconds": 12.0, "bytes_taken": taken})
        if trouble == "server" and server is not None:
            server.kill()
            time.sleep(8.0)
            server.start()
            troubles.append({"at_seconds": time.time() - began, "server_away_for_seconds": 8.0})
    for writer in writers:
        writer.join()
    rows = [json.loads(line) for path in notes for line in path.read_text().splitlines()]
    return {
        "minutes": minutes,
        "writers": WRITERS,
        "exit_codes": sorted({writer.exitcode for writer in writers}),
        "troubles": troubles,
        **count(db, {row["run_id"]: len(row["checkpoints"]) for row in rows}),
        "checkpoint_ms": spread([1e3 * call for row in rows for call in row["checkpoints"]]),
        "late_from_pause_ms": spread([1e3 * each for row in rows for each in row["late"]]),
        "end_seconds": spread([row["end"] for row in rows]),
        "slowest_ends": sorted(({"at_seconds": row["at"] - began, "seconds": row["end"]} for row in rows),
                               key=lambda end: -end["seconds"])[:5],
        "load": os.getloadavg()[1],
    }  # fmt: skip


def spread(values: list[float]) -> dict[str, float]:
    """How many there are, and what most of them, all but a few and all stay below."""
    ordered = sorted(values)
    shares = {"median": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {
        "calls": len(ordered), **{name: ordered[int(share * (len(ordered) - 1))] for name, share in shares.items()},
        "largest": ordered[-1],
    }  # fmt: skip


def main() -> None:
    """Soak, count, and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", choices=("sqlite", "postgresql"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--disk", type=Path, help="A small file system that may be filled.")
    parser.add_argument(
        "--place", type=Path, required=True, help="A directory for the writers' notes, on another disk."
    )
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    wanted.place.mkdir(parents=True, exist_ok=True)
    server = None
    if wanted.database == "postgresql":
        from postgres_server import PostgresServer

        os.environ["MILEAGE_SPOOL"] = str((wanted.disk or wanted.place) / "spool")
        server = PostgresServer()
        server.start()
    try:
        db = server.url if server is not None else str((wanted.disk or wanted.place) / "mileage.db")
        found = soak(db, wanted.minutes, wanted.place, wanted.disk, server)
    finally:
        if server is not None:
            server.stop()
            server.remove()
    found = {"database": wanted.database, **found, "machine": fingerprint().as_dict()}
    print(json.dumps(found, indent=1))
    if wanted.out is not None:
        wanted.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
