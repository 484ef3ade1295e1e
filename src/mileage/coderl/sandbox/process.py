"""Runs one command after the other, counts what they use, and ends them: the launcher's eyes and hands.

Where the job has control groups, the kernel keeps the limits and this only reads its counters; without, it looks at
the processes themselves every now and then. Part of the launcher: the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import time
from typing import TYPE_CHECKING

from . import seccomp
from .files import check
from .witness import Witness

if TYPE_CHECKING:  # as a script it has the standard library alone
    from mileage.records import Record

_LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
LAST_CAPABILITY = 63
PAGE = resource.getpagesize()
# A wait for the next sample that is this much too long was not a wait but a standstill.
STANDSTILL_SECONDS = 0.5
# A job that had this share of the standstill for itself did not stand still.
BUSY_SHARE = 0.1
# From this Linux on, RLIMIT_NPROC counts the processes of a user namespace instead of those of a user.
NPROC_PER_NAMESPACE = (5, 14)


class SpawnError(OSError):
    """A command that could not even be started in its groups and limits."""


class Group:
    """The job's control groups, seen through the descriptors that the caller opened."""

    def __init__(self, wire: Record | None) -> None:
        self.files: dict[str, int] = {}
        self.joins: list[int] = []
        self.max_processes: int | None = None
        self.refusals = 0
        """Processes that were refused while a command was being ended, which is no fault of the next one."""
        if wire:
            self.joins = list(wire["joins"])
            self.max_processes = wire["max_processes"]
            self.files = {name: file for name, file in wire.items() if name not in ("joins", "max_processes")}
        for file in (*self.joins, *self.files.values()):
            os.set_inheritable(file, False)

    def counter(self, name: str, key: str = "") -> int | None:
        """A number out of one of the group's files: all of it, or what stands behind `key`."""
        if name not in self.files:
            return None
        words = os.pread(self.files[name], 4096, 0).split()
        if not key:
            return int(words[0])
        return int(words[words.index(key.encode()) + 1]) if key.encode() in words else None

    def broken(self) -> str | None:
        """The limit that the kernel had to enforce, if any."""
        if self.counter("memory_events", "oom_kill"):
            return "memory"
        return "processes" if (self.counter("pids_events", "max") or 0) > self.refusals else None

    def cpu_seconds(self) -> float | None:
        """CPU time of all that ever ran in the group."""
        microseconds = self.counter("cpu_usage", "usage_usec")
        if microseconds is not None:
            return microseconds / 1e6
        nanoseconds = self.counter("cpu_usage")
        return None if nanoseconds is None else nanoseconds / 1e9

    def end(self) -> None:
        """Kill all members at once, or at least let them start no more."""
        for name, text in (("kill", b"1"), ("pids_max", b"0")):
            if name in self.files:
                with contextlib.suppress(OSError):
                    os.write(self.files[name], text)

    def begin(self) -> None:
        """Let the next command start processes again."""
        if "pids_max" in self.files:
            os.write(self.files["pids_max"], str(self.max_processes).encode())
            self.refusals = self.counter("pids_events", "max") or 0

    def members(self) -> list[int]:
        """The ids of the processes in the group."""
        found, offset = b"", 0
        while self.joins and (data := os.pread(self.joins[0], 1 << 16, offset)):
            found += data
            offset += len(data)
        return [int(word) for word in found.split()]


class Supervisor:
    """Reaps, measures, limits and kills the processes below this one."""

    group = Group(None)

    def __init__(self, job: Record, is_init: bool) -> None:
        self.job = job
        self.is_init = is_init
        self.group = Group(job["group"])
        self.witness = Witness(job["judging"], job["cwd"])
        self.deadline = time.monotonic() + job["timeout"] if job["timeout"] else None
        self.peak = 0
        self.statuses: dict[int, int] = {}
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def processes(self) -> list[int]:
        """The ids of all descendants."""
        if self.is_init:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        found: list[int] = self.group.members()
        pending = [os.getpid()]
        while pending:
            pid = pending.pop()
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/children") as file:
                        children = [int(word) for word in file.read().split()]
                    found += children
                    pending += children
        return found

    def reap(self) -> bool:
        """Collect every ended child; return whether any child is left."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_read, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.statuses[pid] = status

    def kill_all(self) -> None:
        """Kill every descendant and wait until the last one is gone."""
        while self.reap():
            self.group.end()
            if self.is_init:
                # One call for all that are in the namespace, those being forked at this moment included.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
            else:
                for pid in self.processes():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            select.select([self.wake_read], [], [], 0.005)

    def violation(self) -> str | None:
        """The limit that the processes broke, if any."""
        broken = self.group.broken() or self._sample()
        if broken:
            return broken
        return "timeout" if self.deadline and time.monotonic() >= self.deadline else None

    def _sample(self) -> str | None:
        """Measure the processes, as far as no group does; return the limit they broke, if any."""
        counts_memory = "memory_events" in self.group.files
        counts_processes = "pids_events" in self.group.files
        if counts_memory:
            self.peak = max(self.peak, self.group.counter("memory_peak") or 0)
        if counts_memory and counts_processes:
            return None
        resident = own = tasks = 0
        for pid in self.processes():
            with contextlib.suppress(OSError, IndexError, ValueError):
                tasks += len(os.listdir(f"/proc/{pid}/task"))
                resident += _resident(pid)
                own += _own_memory(pid) if self.job["memory_bytes"] and not counts_memory else 0
        if not counts_memory:
            self.peak = max(self.peak, resident)
            if self.job["memory_bytes"] and own > self.job["memory_bytes"]:
                return "memory"
        if self.job["max_processes"] and not counts_processes and tasks > self.job["max_processes"]:
            return "processes"
        return None

    def wait(self, watched: list[int]) -> list[int]:
        """Wait for the next sample or for news; return the descriptors that have some.

        Where this took much longer than asked, the machine or the job stood still (a stopped process, a paused virtual
        machine, no core to be had): that time does not count against the job, unless the job was what was busy.
        """
        began, busy = time.monotonic(), self.group.cpu_seconds()
        wait: float = self.job["sample_seconds"]
        if self.deadline:
            wait = min(wait, max(0.0, self.deadline - began))
        ready = select.select(watched, [], [], wait)[0]
        late = time.monotonic() - began - wait
        if self.deadline and late > STANDSTILL_SECONDS:
            used = 0.0 if busy is None else (self.group.cpu_seconds() or 0.0) - busy
            if used < BUSY_SHARE * late:
                self.deadline += late
        return ready

    def run(self, argv: list[str], *, witnessed: bool = False) -> Record:
        """Run one command to its end or to the first broken limit; `witnessed`, its programs say how they ended."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.peak = 0
        started = time.monotonic()
        spoken = self.witness.begin() if witnessed else {}
        pid = spawn(argv, self.job | {"env": self.job["env"] | spoken}, self.group, write)
        os.close(write)
        output, outcome = Output(self.job["output_bytes"]), "exited"
        watched = [read, self.wake_read, 0, *self.witness.descriptors]
        while pid not in self.statuses:
            broken = self.violation()
            if broken:
                outcome = broken
                break
            ready = self.wait(watched)
            if read in ready and not output.read_from(read):
                watched.remove(read)
            self.witness.listen()
            if 0 in ready and not os.read(0, 4096):
                outcome = "cancelled"
                break
            self.reap()
        wall = time.monotonic() - started
        if outcome == "exited":
            # The kernel may have refused a process or killed one since the last look.
            outcome = self.group.broken() or outcome
        self.kill_all()
        self.group.begin()
        output.drain(read)
        os.close(read)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = self.statuses.get(pid, 0)
        while self.witness.listen():
            pass
        return {
            "pid": pid,
            "argv": argv,
            "outcome": outcome,
            "exit_code": os.waitstatus_to_exitcode(status),
            "wall_seconds": wall,
            "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "peak_rss_bytes": max(self.peak, after.ru_maxrss * 1024),
            "output": output.text(),
        }


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE


def _own_memory(pid: int) -> int:
    """What a process holds for itself: its share of anonymous and of shared memory, but no mapped files."""
    total = 0
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total


class Output:
    """Keeps the beginning and the end of what a command prints."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.head = b""
        self.tail = b""
        self.dropped = 0

    def read_from(self, pipe: int) -> bool:
        """Take what is there; return whether the pipe is still open."""
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return True
        if len(self.head) < self.limit:
            space = self.limit - len(self.head)
            self.head, data_left = self.head + data[:space], data[space:]
        else:
            data_left = data
        tail = self.tail + data_left
        self.dropped += max(0, len(tail) - self.limit)
        self.tail = tail[-self.limit :]
        return bool(data)

    def drain(self, pipe: int) -> None:
        """Take the rest, once every writer is dead."""
        while select.select([pipe], [], [], 0)[0] and self.read_from(pipe):
            pass

    def text(self) -> str:
        """The beginning, a mark where bytes were left out, and the end."""
        gap = f"\n... {self.dropped} bytes left out ...\n".encode() if self.dropped else b""
        return (self.head + gap + self.tail).decode("utf-8", "replace")


def spawn(argv: list[str], job: Record, group: Group, output: int) -> int:
    """Start a command in a session and in groups of its own; SpawnError if that cannot be had."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(argv, job, group, output, write)
    os.close(write)
    problem = os.read(read, 4096).decode("utf-8", "replace")
    os.close(read)
    if problem:
        os.waitpid(pid, 0)
        raise SpawnError(0, problem)
    return pid


def _become(argv: list[str], job: Record, group: Group, output: int, problem: int) -> None:
    """In the child: enter limits, then be the command."""
    try:
        for file in group.joins:
            os.write(file, b"0")
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _limit_resources(job, group)
        # A process that may not be dumped may not raise its own badness either; exec would reset this anyway.
        _LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file_:
            file_.write("1000")
        if job["isolate"]:
            drop_privileges()
            seccomp.install(with_memfd=not job["memory_bytes"] or "memory_events" in group.files)
    except BaseException as error:
        os.write(problem, f"the command cannot be limited: {error}".encode())
        os._exit(126)
    try:
        os.chdir(job["cwd"])
        os.execvpe(argv[0], argv, job["env"])
    except BaseException as error:
        os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
    os._exit(127)


def drop_privileges() -> None:
    """Give up every privilege for good; process 1 keeps its own, to mount what judges a candidate."""
    for capability in range(LAST_CAPABILITY + 1):
        _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    check(_LIBC.syscall(SYS_CAPSET[os.uname().machine], header, nothing), "capset")
    check(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def _limit_resources(job: Record, group: Group) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if job["file_bytes"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"], job["file_bytes"]))
    if job["isolate"] and job["max_processes"] and "pids_events" not in group.files and nproc_counts():
        # Process 1 of the namespace counts as well.
        limit = job["max_processes"] + 1
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def nproc_counts() -> bool:
    """Whether RLIMIT_NPROC binds inside a namespace: not for the machine's root, not in an old kernel."""
    release = os.uname().release.split("-")[0].split(".")
    return os.geteuid() != 0 and tuple(int(word) for word in release[:2] if word.isdigit()) >= NPROC_PER_NAMESPACE
