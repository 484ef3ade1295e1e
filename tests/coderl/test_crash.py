"""`kill -9` in the middle of a benchmark."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from coderl.fakes import FakeExecutor, fake_result
from mileage.coderl.bench import BenchConfig, run_bench
from mileage.coderl.projects.detection import detect
from mileage.coderl.projects.workarea import tree_digest
from mileage.coderl.store import KpiStore
from waiting import until

SCRIPT = """
import sys
from pathlib import Path
from mileage.coderl.bench import BenchConfig, run_bench
from mileage.coderl.projects.detection import detect

from mileage.coderl.store import KpiStore

root, work, database = map(Path, sys.argv[1:])
run_bench(detect(root), BenchConfig(runs=50), store=KpiStore(database), work_base=work)
"""


def count(database: Path) -> int:
    if not database.exists():
        return 0
    try:
        with sqlite3.connect(database) as connection:
            return int(connection.execute("SELECT count(*) FROM rl_sample").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def alive(marker: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and marker.encode() in Path("/proc", name, "cmdline").read_bytes():
                found.append(name)
        except OSError:
            continue
    return found


def test_a_killed_benchmark_loses_nothing_and_leaves_nothing_for_long(tmp_path: Path, work: Path) -> None:
    root, database = tmp_path / "project", tmp_path / "kpi.db"
    root.mkdir()
    marker = f"0.2{os.getpid():08d}"
    (root / "a.py").write_text("x = 1\n")
    (root / "rl-bench.toml").write_text(
        f'[rl-bench]\nbuild = "mkdir out; sleep {marker}"\noutputs = ["out"]\nedit_file = "a.py"\n'
    )
    before = tree_digest(root)
    arguments = [sys.executable, "-c", SCRIPT, str(root), str(work), str(database)]
    process = subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    until(lambda: count(database) >= 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = count(database)

    # The build that was running dies with the benchmark, because its launcher sees the pipe close.
    until(lambda: not alive(marker))
    assert tree_digest(root) == before
    assert len(list(work.iterdir())) == 1

    # The next run removes what was left, closes the dead run, and keeps its samples.
    store = KpiStore(database)
    executor = FakeExecutor(lambda job: fake_result(1.0))
    report = run_bench(detect(root), BenchConfig(runs=1), store=store, executor=executor, work_base=work)
    store.close()
    assert any("leftovers of 1 earlier run" in note for note in report.notes)
    assert list(work.iterdir()) == []
    with sqlite3.connect(database) as connection:
        statuses = [
            row[0]
            for row in connection.execute(
                "SELECT status FROM rl_run JOIN ledger_run USING (run_id) ORDER BY launched_at"
            )
        ]
    assert statuses == ["crashed", "finished"]
    assert count(database) == finished + 2
    assert [file.name for file in tmp_path.iterdir() if file.name.endswith(".lock")] == ["kpi.db.lock"]
