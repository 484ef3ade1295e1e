"""The hostile corpus: candidates that attack the machine, watched from outside while honest ones are judged beside them.

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
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from mileage.coderl import BuildReward, PatchSample, RewardConfig, RewardResult

PROCESSES, MEMORY, DISK, SECONDS = 64, 256 << 20, 512 << 20, 5.0
OUTER_PROCESSES, OUTER_MEMORY = 1500, 3 << 30
MAKEFILE = (
    "app: main.c part.c part.h\n\tcc -pthread -o app main.c part.c\ntest: app\n\t./app\n"
)
PART = '#include "part.h"\nint part(int x) { return x + 1; }\n'
MAIN = '#include "part.h"\nint main(void) { return part(1) == 2 ? 0 : 1; }\n'
HEAD = """
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void fill(const char *name) {
    static char block[1 << 20];
    memset(block, 7, sizeof block);
    int file = open(name, O_CREAT | O_WRONLY, 0600);
    for (int i = 0; i < 3000; i++) if (write(file, block, sizeof block) <= 0) { perror(name); exit(3); }
}
static void *sleeper(void *unused) { pause(); return unused; }
int main(void) {
"""
# Name, what the attack does, and the verdicts that are right.
ATTACKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fork bomb": ("for (;;) fork();", ("killed", "timeout")),
    "respawning swarm": ("for (int i = 0; i < 6; i++) fork(); for (;;) { if (fork()) _exit(0); setsid(); }", ("killed", "timeout")),
    "swarm that ignores signals": ("signal(SIGTERM, SIG_IGN); signal(SIGHUP, SIG_IGN); for (;;) { if (!fork()) { setsid(); for (;;) pause(); } }", ("killed",)),
    "double-forked daemons": ("for (int i = 0; i < 20; i++) if (!fork()) { setsid(); if (!fork()) for (;;) pause(); _exit(0); } return 0;", ("pass",)),
    "threads": ("for (;;) { pthread_t t; if (pthread_create(&t, 0, sleeper, 0)) return 3; }", ("killed",)),
    "stops its neighbours": ("kill(-1, SIGSTOP); for (;;) pause();", ("timeout",)),
    "kills its neighbours": ("kill(-1, SIGKILL); kill(1, SIGKILL); for (;;) pause();", ("timeout", "test-failure")),
    "private memory": ("for (;;) { char *p = malloc(32 << 20); memset(p, 7, 32 << 20); }", ("killed",)),
    "shared memory, 1.5 GB": ("size_t n = 1500u << 20; char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); memset(p, 7, n); return 0;", ("killed",)),
    "memfd, 1.6 GB": ("static char b[1 << 20]; memset(b, 7, sizeof b); int f = memfd_create(\"x\", 0); for (int i = 0; i < 1600; i++) if (write(f, b, sizeof b) < 0) return 3; return 0;", ("killed", "test-failure")),
    "System V segments": ("for (int i = 0; i < 60; i++) { int s = shmget(IPC_PRIVATE, 32 << 20, IPC_CREAT | 0600); void *p = shmat(s, 0, 0); if (p == (void *)-1) return 3; memset(p, 7, 32 << 20); shmdt(p); } return 0;", ("killed", "test-failure")),
    "memory in 40 processes": ("for (int i = 0; i < 40; i++) if (!fork()) { char *p = malloc(32 << 20); memset(p, i, 32 << 20); pause(); } for (;;) pause();", ("killed",)),
    "disk": ("fill(\"/tmp/big\"); return 0;", ("killed", "test-failure")),
    "disk under the tree": ("fill(\"big\"); return 0;", ("killed", "test-failure")),
    "disk by /dev/shm": ("fill(\"/dev/shm/big\"); return 0;", ("killed", "test-failure")),
    "files without number": ("char n[64]; for (int i = 0;; i++) { sprintf(n, \"/tmp/f%d\", i); if (open(n, O_CREAT | O_WRONLY, 0600) < 0 && errno != EMFILE) return 3; close(3); }", ("killed", "timeout", "test-failure")),
    "nested user namespace with a tmpfs": ("if (unshare(CLONE_NEWUSER | CLONE_NEWNS) || mount(\"t\", \"/tmp\", \"tmpfs\", 0, \"size=4g\")) return 3; fill(\"/tmp/big\"); return 0;", ("test-failure",)),
    "nested namespace by clone": ("if (syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) < 0) return 3; return 0;", ("test-failure",)),
    "mount": ("return mount(\"t\", \"/tmp\", \"tmpfs\", 0, \"\") ? 3 : 0;", ("test-failure",)),
    "io_uring": ("char p[512] = {0}; return syscall(425, 8, p) < 0 ? 3 : 0;", ("test-failure",)),
    "socket to the hypervisor": ("return socket(AF_VSOCK, SOCK_STREAM, 0) < 0 ? 3 : 0;", ("test-failure",)),
    "socket to the world": ("int s = socket(AF_INET, SOCK_STREAM, 0); struct sockaddr_in a = {AF_INET, htons(53), {inet_addr(\"192.0.2.1\")}}; return connect(s, (void *)&a, sizeof a) ? 3 : 0;", ("test-failure",)),
    "spins": ("for (;;);", ("timeout",)),
    "spins in 60 processes": ("for (int i = 0; i < 59; i++) if (!fork()) for (;;); for (;;);", ("timeout",)),
    "sleeps": ("for (;;) pause();", ("timeout",)),
    "prints without end": ("for (;;) puts(\"x\");", ("timeout",)),
    "dumps core": ("abort();", ("test-failure",)),
    "localhost, an honest server": ("int s = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0); struct sockaddr_in a = {AF_INET, htons(4711), {htonl(INADDR_LOOPBACK)}}; if (bind(s, (void *)&a, sizeof a) || listen(s, 1)) return 3; return connect(c, (void *)&a, sizeof a) ? 3 : 0;", ("pass",)),
    "a terminal, honestly": ("int m = posix_openpt(O_RDWR); if (m < 0 || grantpt(m) || unlockpt(m)) return 3; return open(ptsname(m), O_RDWR) < 0 ? 4 : 0;", ("pass",)),
}  # fmt: skip
# Judged beside every attack.
NEIGHBOURS = {
    "same meaning": ("part.c", PART.replace("x + 1", "1 + x"), "pass"),
    "wrong answer": ("part.c", PART.replace("x + 1", "x + 2"), "test-failure"),
    "does not compile": ("part.c", PART.replace("x + 1", "y"), "compile-error"),
}


class Groups:
    """Control groups of this benchmark, and what is seen in those below them."""

    def __init__(self) -> None:
        from mileage.coderl.build.cgroups import find_hierarchies

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

    def outer(self) -> dict[str, int]:
        """The most that was seen since the last call in all groups together."""
        self.seen.pop("outer", None)
        (self.memory / "memory.max_usage_in_bytes").write_text("0")
        return self.seen

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


def attack(pool: BuildReward, groups: Groups, name: str, body: str) -> dict[str, Any]:
    """One attack, with honest candidates beside it: verdicts, times, and the peaks of every group that was seen."""
    groups.outer()
    groups.seen.clear()
    sample = PatchSample(name, path="main.c", content=HEAD + body + "\n}\n")
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
    right = ATTACKS[row["attack"]][1]
    if row["verdict"] not in right:
        found.append(f"verdict {row['verdict']}, not {' or '.join(right)}")
    processes = row["all_processes" if loose else "peak_processes"]
    memory = row["all_memory_mb" if loose else "peak_memory_mb"]
    if processes > PROCESSES:
        found.append(f"{processes} processes")
    if memory > MEMORY / 2**20:
        found.append(f"{memory} MB")
    if row["timed_seconds"] > SECONDS + 1:
        found.append(f"{row['timed_seconds']} s")
    wrong = [key for key, verdict in row["neighbours"].items() if verdict != NEIGHBOURS[key][2]]
    if wrong:
        found.append(f"neighbours judged otherwise: {', '.join(wrong)}")
    return found


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
                for attack_name, (body, _) in ATTACKS.items():
                    if not options.only or attack_name in options.only:
                        row = attack(pool, groups, attack_name, body)
                        row["timed_seconds"] = row["wall_seconds"]
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
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
