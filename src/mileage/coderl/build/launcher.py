"""Runs the commands of one job and leaves nothing behind: the process between mileage and a compiler.

Started as a script of its own (`python -I -S launcher.py`), with the standard library alone, so that it starts in
milliseconds and may change its namespaces while the trainer that started it has many threads.

The job is one line of JSON on standard input; the result is one line of JSON on standard output. Standard input
stays open for as long as the caller lives: its end means that the caller has died, and everything is killed.

With `isolate`, the job runs in user, mount, process, network and IPC namespaces of its own. The launcher's child is
then process 1 in there; when it ends, the kernel kills whatever else is left, double-forked daemons included, and
the mounts and the memory file system with every file the job wrote vanish with it. Without it, the launcher is
the subreaper of the commands and kills all descendants one by one.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # as a script it has the standard library alone
    from mileage._records import Record

_LIBC = ctypes.CDLL(None, use_errno=True)

# From linux/sched.h, sys/mount.h, linux/prctl.h and linux/mount.h.
CLONE_NEWNS, CLONE_NEWIPC = 0x20000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
AT_RECURSIVE = 0x8000
LAST_CAPABILITY = 63
SCRATCH = ".overlay"
DEVICES = ("null", "zero", "full", "random", "urandom")
# Files that the machine's own root may write without any capability, should mileage itself run as root.
KERNEL_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs")
PAGE = resource.getpagesize()
# A wait for the next sample that is this much too long was not a wait but a standstill.
STANDSTILL_SECONDS = 0.5


class _MountAttr(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    form = kind.encode() if kind else None
    _check(_LIBC.mount(source.encode(), target.encode(), form, flags, data.encode() or None), f"mount {target}")


def _bind_read_only(source: str, target: str) -> None:
    """Show `source` at `target`, unchangeable, with everything mounted below it."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a"):
            pass
    _mount(source, target, None, MS_BIND | MS_REC)
    attr = _MountAttr(MS_RDONLY | MS_NOSUID, 0, 0, 0)
    where = (-100, target.encode(), AT_RECURSIVE)
    result = _LIBC.syscall(SYS_MOUNT_SETATTR, *where, ctypes.byref(attr), ctypes.sizeof(attr))
    _check(result, f"make {target} read-only")


def enter_namespaces(network: bool) -> None:
    """Move this process into a user namespace that holds the caller's own id and nothing else."""
    uid, gid = os.geteuid(), os.getegid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | (0 if network else CLONE_NEWNET)
    _check(_LIBC.unshare(flags), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def build_root(jail: Record) -> str:
    """Mount the small file system that the job will see as its only one; return where it is."""
    root: str = jail["root"]
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("mileage", root, "tmpfs", MS_NOSUID | MS_NODEV, f"size={jail['disk_bytes']},mode=755")
    for path in jail["read_only"]:
        if os.path.islink(path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(os.readlink(path), root + path)
        else:
            _bind_read_only(path, root + path)
    for directory in ("tmp", "proc", "dev/shm", jail["home"].lstrip("/"), SCRATCH):
        os.makedirs(f"{root}/{directory}", exist_ok=True)
    _mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    for name in KERNEL_SETTINGS:
        if os.path.exists(f"{root}/proc/{name}"):
            _bind_read_only(f"{root}/proc/{name}", f"{root}/proc/{name}")
    for device in DEVICES:
        with open(f"{root}/dev/{device}", "w"):
            pass
        _mount(f"/dev/{device}", f"{root}/dev/{device}", None, MS_BIND)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    for name, text in jail["files"].items():
        os.makedirs(os.path.dirname(root + name), exist_ok=True)
        with open(root + name, "w") as file:
            file.write(text)
    _mount_tree(root, jail["tree"])
    return root


def _mount_tree(root: str, tree: Record) -> None:
    """Mount the project: itself (to build a snapshot), or a throw-away layer over it (to use one)."""
    target = root + tree["at"]
    os.makedirs(target, exist_ok=True)
    if not tree["overlay"]:
        _mount(tree["source"], target, None, MS_BIND)
        return
    scratch = f"{root}/{SCRATCH}"
    if tree["upper"]:
        # A layer on disk, for builds too large for memory: the caller owns the directory and removes it.
        _mount(tree["upper"], scratch, None, MS_BIND)
    os.makedirs(f"{scratch}/upper", exist_ok=True)
    os.makedirs(f"{scratch}/work", exist_ok=True)
    lower = tree["source"].replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
    layers = f"lowerdir={lower},upperdir={scratch}/upper,workdir={scratch}/work,userxattr"
    _mount("overlay", target, "overlay", 0, layers)
    # The job must not reach its own layer behind the overlay's back.
    _mount("mileage", scratch, "tmpfs", MS_RDONLY)


def enter_root(root: str) -> None:
    """Make `root` the only file system there is, then give up every privilege for good."""
    machine = os.uname().machine
    os.makedirs(f"{root}/.host", exist_ok=True)
    os.chdir(root)
    _check(_LIBC.syscall(SYS_PIVOT_ROOT[machine], root.encode(), f"{root}/.host".encode()), "pivot_root")
    os.chdir("/")
    _check(_LIBC.umount2(b"/.host", MNT_DETACH), "umount")
    os.rmdir("/.host")
    for capability in range(LAST_CAPABILITY + 1):
        _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_LIBC.syscall(SYS_CAPSET[machine], header, nothing), "capset")
    _check(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def write_changes(tree: str, changes: list[Record]) -> None:
    """Write and delete files below `tree`; no path component may be a symbolic link."""
    for change in changes:
        *parents, name = change["path"].split("/")
        directory = os.open(tree, os.O_DIRECTORY | os.O_RDONLY)
        try:
            for part in parents:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=directory)
                inner = os.open(part, os.O_DIRECTORY | os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
                os.close(directory)
                directory = inner
            mode = 0o644
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode & 0o777
                # A new file, never a write into the old one: the old one may be shared by hard links.
                os.unlink(name, dir_fd=directory)
            if change["content"] is not None:
                file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, change.get("mode") or mode, dir_fd=directory)
                with os.fdopen(file, "wb") as stream:
                    stream.write(base64.b64decode(change["content"]))
        finally:
            os.close(directory)


class Watch:
    """Reaps, measures, limits and kills the processes below this one."""

    def __init__(self, job: Record, is_init: bool) -> None:
        self.job = job
        self.is_init = is_init
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
        found: list[int] = []
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
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            select.select([self.wake_read], [], [], 0.005)

    def violation(self) -> str | None:
        """Measure the processes; return the limit they broke, if any."""
        pids = self.processes()
        resident = private = 0
        for pid in pids:
            with contextlib.suppress(OSError, IndexError, ValueError):
                with open(f"/proc/{pid}/statm") as file:
                    fields = file.read().split()
                resident += int(fields[1])
                private += int(fields[1]) - int(fields[2])
        self.peak = max(self.peak, resident * PAGE)
        if self.job["memory_bytes"] and private * PAGE > self.job["memory_bytes"]:
            return "memory"
        if self.job["max_processes"] and len(pids) > self.job["max_processes"]:
            return "processes"
        if self.deadline and time.monotonic() >= self.deadline:
            return "timeout"
        return None

    def wait(self, watched: list[int]) -> list[int]:
        """Wait for the next sample or for news; return the descriptors that have some.

        Where this took much longer than asked, the machine or the job stood still (a stopped process, a paused virtual
        machine, no core to be had): that time does not count against the job.
        """
        began = time.monotonic()
        wait: float = self.job["sample_seconds"]
        if self.deadline:
            wait = min(wait, max(0.0, self.deadline - began))
        ready = select.select(watched, [], [], wait)[0]
        late = time.monotonic() - began - wait
        if self.deadline and late > STANDSTILL_SECONDS:
            self.deadline += late
        return ready

    def run(self, argv: list[str]) -> Record:
        """Run one command to its end or to the first broken limit."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.peak = 0
        started = time.monotonic()
        pid = _spawn(argv, self.job, write)
        os.close(write)
        output, outcome = Output(self.job["output_bytes"]), "exited"
        watched = [read, self.wake_read, 0]
        while pid not in self.statuses:
            broken = self.violation()
            if broken:
                outcome = broken
                break
            ready = self.wait(watched)
            if read in ready and not output.read_from(read):
                watched.remove(read)
            if 0 in ready and not os.read(0, 4096):
                outcome = "cancelled"
                break
            self.reap()
        wall = time.monotonic() - started
        self.kill_all()
        output.drain(read)
        os.close(read)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = self.statuses.get(pid, 0)
        return {
            "argv": argv,
            "outcome": outcome,
            "exit_code": os.waitstatus_to_exitcode(status),
            "wall_seconds": wall,
            "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "peak_rss_bytes": max(self.peak, after.ru_maxrss * 1024),
            "output": output.text(),
        }


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


def _spawn(argv: list[str], job: Record, output: int) -> int:
    """Start a command in a session of its own."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if job["file_bytes"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"], job["file_bytes"]))
        # A process that may not be dumped may not raise its own badness either; exec would reset this anyway.
        _LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        os.chdir(job["cwd"])
        os.execvpe(argv[0], argv, job["env"])
    except BaseException as error:
        os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
    os._exit(127)


def run_job(job: Record, is_init: bool) -> Record:
    """Write the changes, run the steps up to the first that fails, and measure them."""
    watch = Watch(job, is_init)
    write_changes(job["cwd"], job["changes"])
    results = []
    for step in job["steps"]:
        results.append(watch.run(step))
        if results[-1]["outcome"] != "exited" or results[-1]["exit_code"] != 0:
            break
    return {"steps": results}


def _report(result: Record) -> None:
    data = json.dumps(result).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _run_isolated(job: Record) -> int:
    enter_namespaces(job["isolate"]["network"])
    child = os.fork()
    if child:
        return 0 if os.waitpid(child, 0)[1] == 0 else 1
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    enter_root(build_root(job["isolate"]))
    # The job may not trace process 1 and forge its own verdict.
    _LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    _report(run_job(job, is_init=True))
    os._exit(0)


def main() -> int:
    """Read the job, run it, print the result."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1 << 16)
        if not data:
            return 1
        line += data
    job = json.loads(line)
    try:
        if job["isolate"]:
            return _run_isolated(job)
        _check(_LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
        _report(run_job(job, is_init=False))
    except OSError as error:
        _report({"error": str(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
