"""The hostile corpus: candidates that attack the machine, watched from outside, with honest ones judged beside them.

    python benchmarks/coderl_hostile.py --output benchmarks/results/coderl_hostile.json

Limits of each candidate: 64 processes, 256 MB of memory, 512 MB of disk, 5 s. Every attack is a C program that the
candidate's test step runs. All processes of this benchmark are put into control groups first, with limits of their own
that the machine survives; the groups of the candidates are then read from there, every few milliseconds, by a thread
that the pool knows nothing of. Without control groups this refuses to run. `--loose` measures a version of mileage that
makes no groups of its own: then the peaks are those of all its processes together.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from _harness import markdown_table
from mileage.coderl import BuildReward, PatchSample, RewardConfig, RewardResult

SOURCE = Path(__file__).with_suffix(".c")
PROCESSES, MEMORY, DISK, SECONDS = 64, 256 << 20, 512 << 20, 5.0
OUTER_PROCESSES, OUTER_MEMORY = 1500, 3 << 30
MAKEFILE = "app: main.c part.c part.h\n\tcc -pthread -o app main.c part.c\ntest: app\n\t./app\n"
PART = '#include "part.h"\nint part(int x) { return x + 1; }\n'
MAIN = '#include "part.h"\nint main(void) { return part(1) == 2 ? 0 : 1; }\n'
# The attacks of coderl_hostile.c, whose functions have these names with underscores, and the verdicts that are right.
ATTACKS: dict[str, tuple[str, ...]] = {
    "fork bomb": (
        "killed",
        "timeout",
    ),
    "respawning swarm": (
        "killed",
        "timeout",
    ),
    "swarm that ignores signals": ("killed",),
    "double-forked daemons": ("pass",),
    "threads": ("killed",),
    "stops its neighbours": ("timeout",),
    "kills its neighbours": (
        "timeout",
        "test-failure",
    ),
    "private memory": ("killed",),
    "shared memory, 1.5 GB": ("killed",),
    "memfd, 1.6 GB": (
        "killed",
        "test-failure",
    ),
    "System V segments": (
        "killed",
        "test-failure",
    ),
    "memory in 40 processes": ("killed",),
    "disk": (
        "killed",
        "test-failure",
    ),
    "disk under the tree": (
        "killed",
        "test-failure",
    ),
    "disk by /dev/shm": (
        "killed",
        "test-failure",
    ),
    "files without number": (
        "killed",
        "timeout",
        "test-failure",
    ),
    "nested user namespace with a tmpfs": ("test-failure",),
    "nested namespace by clone": ("test-failure",),
    "mounting": ("test-failure",),
    "io_uring": ("test-failure",),
    "socket to the hypervisor": ("test-failure",),
    "socket to the world": ("test-failure",),
    "spins": ("timeout",),
    "spins in 60 processes": ("timeout",),
    "sleeps": ("timeout",),
    "prints without end": ("timeout",),
    "dumps core": ("test-failure",),
    "localhost, an honest server": ("pass",),
    "a terminal, honestly": ("pass",),
}
# Judged beside every attack.
NEIGHBOURS = {
    "same meaning": ("part.c", PART.replace("x + 1", "1 + x"), "pass"),
    "wrong answer": ("part.c", PART.replace("x + 1", "x + 2"), "test-failure"),
    "does not compile": ("part.c", PART.replace("x + 1", "y"), "compile-error"),
}

HONEST = {name: verdict for name, (_, _, verdict) in NEIGHBOURS.items()}


class Groups:
    """Control groups of this benchmark, and what is seen in those below them."""

    def __init__(self) -> None:
        from mileage.coderl.sandbox.limits import find_hierarchies

        found = find_hierarchies()
        if not {"pids", "memory"} <= set(found) or found["pids"].version != 1 or found["memory"].version != 1:
            raise SystemExit("this needs writable pids and memory control groups, version 1, to put itself into")
        self.pids = found["pids"].base / f"hostile-{os.getpid()}"
        self.memory = found["memory"].base / f"hostile-{os.getpid()}"
        self._homes = [self.pids.parent, self.memory.parent]
        for path, name, limit in (
            (self.pids, "pids.max", OUTER_PROCESSES),
            (self.memory, "memory.limit_in_bytes", OUTER_MEMORY),
        ):
            path.mkdir()
            (path / name).write_text(str(limit))
            (path / "cgroup.procs").write_text("0")
        self.seen: dict[str, dict[str, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.003):
            for key, base, names in (
                ("processes", self.pids, ("pids.peak", "pids.current")),
                ("memory", self.memory, ("memory.max_usage_in_bytes",)),
            ):
                for path in (base, *base.glob("mileage-*")):
                    row = self.seen.setdefault("outer" if path == base else path.name, {})
                    row[key] = max(row.get(key, 0), *(_number(path / name) for name in names))

    def forget(self) -> None:
        """Begin anew; the kernel's own peak of processes of all groups together cannot be reset."""
        (self.memory / "memory.max_usage_in_bytes").write_text("0")
        self.seen.clear()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for home in self._homes:
            (home / "cgroup.procs").write_text(str(os.getpid()))
        for path in (self.pids, self.memory):
            path.rmdir()


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def make_project(root: Path) -> Path:
    for name, text in {"Makefile": MAKEFILE, "part.c": PART, "main.c": MAIN, "part.h": "int part(int x);\n"}.items():
        (root / name).write_text(text)
    return root


def source_of(attack: str) -> str:
    function = re.sub(r"\W+", "_", attack.lower()).strip("_")
    return f"#define ATTACK {function}\n{SOURCE.read_text()}"


def attack(pool: BuildReward, groups: Groups, name: str) -> dict[str, Any]:
    """One attack, with honest candidates beside it: verdicts, times, and the peaks of every group that was seen."""
    groups.forget()
    sample = PatchSample(name, path="main.c", content=source_of(name))
    began = time.monotonic()
    (future,) = pool.submit([sample])
    beside = [PatchSample(key, path=path, content=text) for key, (path, text, _) in NEIGHBOURS.items()]
    neighbours: list[RewardResult] = pool.reward(beside)
    result = future.result()
    seconds = time.monotonic() - began
    time.sleep(0.02)
    inner = [row for key, row in groups.seen.items() if key != "outer"]
    outer = groups.seen.get("outer", {})
    return {
        "attack": name,
        "verdict": str(result.verdict),
        "diagnostic": result.diagnostic[:120],
        "seconds": round(seconds, 2),
        "wall_seconds": round(result.wall_seconds, 2),
        "peak_processes": max((row.get("processes", 0) for row in inner), default=0),
        "peak_memory_mb": round(max((row.get("memory", 0) for row in inner), default=0) / 2**20, 1),
        "all_processes": outer.get("processes", 0),
        "all_memory_mb": round(outer.get("memory", 0) / 2**20, 1),
        "neighbours": {neighbour.id: str(neighbour.verdict) for neighbour in neighbours},
    }


def faults(row: dict[str, Any], loose: bool) -> list[str]:
    """What of the promise was broken."""
    found = []
    right = ATTACKS[row["attack"]]
    if row["verdict"] not in right:
        found.append(f"verdict {row['verdict']}, not {' or '.join(right)}")
    processes = row["all_processes" if loose else "peak_processes"]
    memory = row["all_memory_mb" if loose else "peak_memory_mb"]
    if processes > PROCESSES:
        found.append(f"{processes} processes")
    if memory > MEMORY / 2**20:
        found.append(f"{memory} MB")
    if row["wall_seconds"] > SECONDS + 1:
        found.append(f"{row['wall_seconds']} s")
    wrong = [key for key, verdict in row["neighbours"].items() if verdict != NEIGHBOURS[key][2]]
    if wrong:
        found.append(f"neighbours judged otherwise: {', '.join(wrong)}")
    return found


def table(rows: list[dict[str, Any]]) -> str:
    limits = f"Limits: {PROCESSES} processes, {MEMORY >> 20} MB, {DISK >> 20} MB of disk, {SECONDS:.0f} s."
    body = [
        (row["attack"], row["verdict"], row["wall_seconds"], row["peak_processes"], row["peak_memory_mb"],
         "the same" if row["neighbours"] == HONEST else "others", "; ".join(row["faults"]) or "no")
        for row in rows
    ]  # fmt: skip
    header = ("attack", "verdict", "seconds", "most processes", "most memory, MB", "honest verdicts", "promise broken")
    return f"# Attacks on the reward pool\n\n{limits}\n\n{markdown_table(header, body)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--loose", action="store_true", help="count all processes: for versions without groups")
    parser.add_argument("--only", nargs="*", help="names of attacks")
    options = parser.parse_args()
    groups = Groups()
    rows = []
    try:
        with tempfile.TemporaryDirectory() as name:
            config = RewardConfig(
                ("build", "test"), workers=2, timeout_seconds=SECONDS, memory_bytes=MEMORY, disk_bytes=DISK,
                max_processes=PROCESSES, use_cache=False,
            )  # fmt: skip
            with BuildReward(make_project(Path(name)), config) as pool:
                for attack_name in ATTACKS:
                    if not options.only or attack_name in options.only:
                        row = attack(pool, groups, attack_name)
                        row["faults"] = faults(row, options.loose)
                        rows.append(row)
                        print(json.dumps(row), flush=True)
    finally:
        groups.close()
    broken = [row for row in rows if row["faults"]]
    print(f"{len(rows)} attacks, {len(broken)} broke a promise: {', '.join(row['attack'] for row in broken) or 'none'}")
    if options.output:
        limits = {"processes": PROCESSES, "memory_mb": MEMORY >> 20, "disk_mb": DISK >> 20, "seconds": SECONDS}
        record = {"limits": limits, "kernel": platform.release(), "broken": len(broken), "attacks": rows}
        options.output.write_text(json.dumps(record, indent=2) + "\n")
        options.output.with_suffix(".md").write_text(table(rows))
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
