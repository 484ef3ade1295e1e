"""How fast a large ledger answers: 10,000 runs with 1,000,000 checkpoints.

    python benchmarks/ledger_scale.py [--out benchmarks/results/ledger_scale.json]

Fills an SQLite ledger, then times `ledger list` and `ledger compare` of 100 runs against 100 as whole commands (process
start included) and as library calls. CPU seconds stand beside wall-clock, because others may be using the machine. Then
everything is exported in every format, with the largest memory that the process had, and once more from a ledger of one
run with as many checkpoints.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _harness import write_json
from mileage.ledger import liveness, queries
from mileage.ledger.rows import Checkpoint, EndState, Phase, Run, new_run_id
from mileage.ledger.store import Store
from mileage.ledger.summary import Ending, Progress, cost_usd, end_row
from mileage.measure import fingerprint
from mileage.report.compare import compare_selections

RUNS = 10_000
CHECKPOINTS = 100
ARMS = 100
REPEATS = 5


def make_run(number: int) -> Run:
    now = 1_700_000_000.0 + 60.0 * number
    return Run(
        run_id=new_run_id(now), name=f"arm {number % ARMS}", launched_at=now, started_at=now, launched_by="bench",
        host=liveness.host_name(), pid=1, process_token="gone", framework="mileage", algorithm="ppo",
        env_id="CartPole-v1", config='{"learning_rate":0.0003}', git_revision=None, command="bench",
        seed=number // ARMS,
        panel=None, panel_id="panel", success=None, target="mean_return>=475.0", eval_every_steps=1000, batch_size=1024,
        step_budget=1_000_000, step_rule="env_steps", accounting_window="wall-clock", machine="{}", machine_id="m",
        instances=1, instance=None, price_usd_per_hour=2.2, price="{}", parent_run_id=None, mileage_version="0",
        format_version=1,
    )  # fmt: skip


def rows_of(number: int, rng: random.Random) -> list[Any]:
    run = make_run(number)
    seconds = rng.lognormvariate(0.0, 0.3) * (1.0 + 0.5 * (number % 2))
    reached = rng.random() < 0.9
    checkpoints = [
        Checkpoint(
            run.run_id, seq, 1000 * seq, seconds * seq, 0.9 * seconds * seq, 0.1 * seconds * seq,
            cost_usd(seconds * seq, run), None, 5.0 * seq, 5.0 * seq, reached and seq == CHECKPOINTS, 0.2, None, None,
            None, None, None,
        )
        for seq in range(1, CHECKPOINTS + 1)
    ]  # fmt: skip
    wall = seconds * CHECKPOINTS
    shares = {"rollout": 0.3, "learn": 0.55, "eval": 0.1, "other": 0.05}
    phases = [Phase(run.run_id, CHECKPOINTS + 1, p, wall, share * wall, 1, False) for p, share in shares.items()]
    state = EndState.REACHED if reached else EndState.NOT_REACHED
    ending = Ending(state, "", run.launched_at + wall, wall, phases={"eval": 0.1 * wall})
    return [run, *checkpoints, *phases, end_row(run, Progress.of(checkpoints), ending)]


def fill(db: Path) -> None:
    rng = random.Random(0)
    with Store(db) as store:
        for start in range(0, RUNS, 100):
            store.deliver([row for number in range(start, start + 100) for row in rows_of(number, rng)])


def timed(call: Callable[[], object]) -> dict[str, float]:
    walls, cpus = [], []
    for _ in range(REPEATS):
        wall, usage = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = time.process_time()
        call()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(time.perf_counter() - wall)
        children = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
        cpus.append(time.process_time() - cpu + children)
    return {
        "wall_median_s": statistics.median(walls),
        "wall_min_s": min(walls),
        "cpu_median_s": statistics.median(cpus),
    }


EXPORTS = {
    "json": (), "csv": ("--table", "checkpoints"), "parquet": ("--table", "checkpoints"), "markdown": (), "mllog": (),
    "tensorboard": (),
}  # fmt: skip


def exported(db: Path, place: Path) -> dict[str, dict[str, float]]:
    """What the export of the whole ledger takes, by format."""
    found = {}
    for name, table in EXPORTS.items():
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "mileage", "ledger", "export", "--format", name, *table, "-o", str(place / name)],
            env={**os.environ, "MILEAGE_DB": str(db), "PYTHONPATH": ":".join(sys.path)},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        found[name] = {
            "exit_code": process.returncode, "seconds": time.perf_counter() - began,
            "peak_mb": usage.ru_maxrss * 1024 / 1e6,
        }  # fmt: skip
    return found


def fill_one_run(db: Path) -> None:
    """A ledger whose checkpoints are all of one run."""
    run, *rows = rows_of(0, random.Random(0))
    checkpoint, end = rows[0], rows[-1]
    with Store(db) as store:
        store.deliver([run])
        for start in range(0, RUNS * CHECKPOINTS, 10_000):
            seqs = range(start + 1, start + 10_001)
            store.deliver([checkpoint._replace(seq=seq, step=seq, wall_seconds=0.001 * seq) for seq in seqs])
        store.deliver([end])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        db = Path(name) / "mileage.db"
        fill(db)

        def library(use: Callable[[Store], object]) -> Callable[[], object]:
            def call() -> object:
                with Store(db) as store:
                    return use(store)

            return call

        def command(*arguments: str) -> Callable[[], object]:
            code = "from mileage.cli.ledger import app; app()"
            return lambda: subprocess.run(
                [sys.executable, "-c", code, *arguments], check=True, capture_output=True,
                env={**os.environ, "MILEAGE_DB": str(db), "PYTHONPATH": ":".join(sys.path)},
            )  # fmt: skip

        result = {
            "machine": fingerprint().as_dict(),
            "runs": RUNS,
            "checkpoints": RUNS * CHECKPOINTS,
            "database_mb": db.stat().st_size / 1e6,
            "library": {
                "list 50": timed(library(lambda store: store.read(queries.records, limit=50))),
                "list all": timed(library(lambda store: store.read(queries.records))),
                "compare 100 with 100": timed(library(lambda s: compare_selections(s, "name=arm 0", "name=arm 1"))),
            },
            "command": {
                "ledger list": timed(command("list")),
                "ledger list --limit 0": timed(command("list", "--limit", "0")),
                "ledger compare": timed(command("compare", "name=arm 0", "name=arm 1")),
            },
            "export": exported(db, Path(name)),
            "load_average": os.getloadavg()[0],
        }
        one = Path(name) / "one.db"
        fill_one_run(one)
        (Path(name) / "one").mkdir()
        result["export of one run"] = exported(one, Path(name) / "one")
    write_json(result, options.out)


if __name__ == "__main__":
    main()
