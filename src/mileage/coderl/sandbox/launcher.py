"""Runs the commands of one job and leaves nothing behind: the process between mileage and a compiler.

Started as a process of its own, with the standard library alone, so that it starts in milliseconds and may change its
namespaces while the trainer that started it has many threads. This package is all of mileage that it sees.

The job is one line of JSON on standard input; the result is one line of JSON on standard output. Standard input
stays open for as long as the caller lives: its end means that the caller has died, and everything is killed.

With `isolate`, the job runs in user, mount, process, network and IPC namespaces of its own. The launcher's child is
then process 1 in there; when it ends, the kernel kills whatever else is left, double-forked daemons included, and
the mounts and the memory file system with every file the job wrote vanish with it. Without it, the launcher is
the subreaper of the commands and kills all descendants one by one. With `group`, the commands (not the launcher) are
put into control groups whose files the caller has opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import struct
from typing import TYPE_CHECKING

from .files import (
    JUDGE,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    Judging,
    bind_read_only,
    check,
    mount,
    renew_sources,
    write_changes,
)
from .process import PR_SET_DUMPABLE, Supervisor

if TYPE_CHECKING:  # as a script it has the standard library alone
    from collections.abc import Iterator

    from mileage.records import Record

_LIBC = ctypes.CDLL(None, use_errno=True)

# From linux/sched.h, sys/mount.h and linux/prctl.h.
CLONE_NEWNS, CLONE_NEWIPC = 0x20000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SCRATCH = ".overlay"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
# linux/sockios.h, linux/if.h
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40
AF_INET, SOCK_DGRAM_CLOEXEC = 2, 0x80002
LEAST_INODES, BYTES_PER_INODE = 8192, 16384
# The least that the kernel takes as the greatest process id of a namespace.
LEAST_PID_MAX = 301
# Files that the machine's own root may write without any capability, should mileage itself run as root.
KERNEL_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs")
# Changes that fail in one of these ways fail because of what they are.
CHANGE_ERRORS = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST, errno.EINVAL})


def enter_namespaces(network: bool) -> None:
    """Move this process into a user namespace that holds the caller's own id and nothing else."""
    uid, gid = os.geteuid(), os.getegid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | (0 if network else CLONE_NEWNET)
    check(_LIBC.unshare(flags), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def raise_loopback() -> None:
    """Let processes of the namespace talk to each other over localhost."""
    socket = _LIBC.socket(AF_INET, SOCK_DGRAM_CLOEXEC, 0)
    check(0 if socket >= 0 else -1, "socket")
    fcntl.ioctl(socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING))
    os.close(socket)


def close_loopholes(max_processes: int | None) -> None:
    """No further user namespaces, and an end to process ids, where the kernel has one for each namespace."""
    limits = {"/proc/sys/user/max_user_namespaces": 0}
    if max_processes:
        limits["/proc/sys/kernel/pid_max"] = max(LEAST_PID_MAX, max_processes + 2)
    for path, value in limits.items():
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write(str(value))


def build_root(jail: Record) -> str:
    """Mount the small file system that the job will see as its only one; return where it is."""
    root: str = jail["root"]
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    # Empty files take no space, but time to be forgotten.
    inodes = max(LEAST_INODES, jail["disk_bytes"] // BYTES_PER_INODE)
    mount("mileage", root, "tmpfs", MS_NOSUID | MS_NODEV, f"size={jail['disk_bytes']},nr_inodes={inodes},mode=755")
    for path in jail["read_only"]:
        if os.path.islink(path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(os.readlink(path), root + path)
        else:
            bind_read_only(path, root + path)
    for directory in ("tmp", "proc", "dev/shm", jail["home"].lstrip("/"), SCRATCH):
        os.makedirs(f"{root}/{directory}", exist_ok=True)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    for name in KERNEL_SETTINGS:
        if os.path.exists(f"{root}/proc/{name}"):
            bind_read_only(f"{root}/proc/{name}", f"{root}/proc/{name}")
    _make_devices(f"{root}/dev")
    for name, text in jail["files"].items():
        os.makedirs(os.path.dirname(root + name), exist_ok=True)
        with open(root + name, "w") as file:
            file.write(text)
    _mount_tree(root, jail["tree"])
    if jail["judge"]:
        bind_read_only(jail["judge"], root + JUDGE)
    return root


def _make_devices(directory: str) -> None:
    """The devices without a machine behind them, the standard streams, and terminals of the job's own."""
    for device in DEVICES:
        if os.path.exists(f"/dev/{device}"):
            with open(f"{directory}/{device}", "w"):
                pass
            mount(f"/dev/{device}", f"{directory}/{device}", None, MS_BIND)
    os.makedirs(f"{directory}/pts")
    mount("devpts", f"{directory}/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620")
    for name, target in LINKS.items():
        os.symlink(target, f"{directory}/{name}")


def _mount_tree(root: str, tree: Record) -> None:
    """Mount the project: itself (to build a snapshot), or a throw-away layer over it (to use one)."""
    target = root + tree["at"]
    os.makedirs(target, exist_ok=True)
    if not tree["overlay"]:
        mount(tree["source"], target, None, MS_BIND)
        return
    scratch = f"{root}/{SCRATCH}"
    if tree["upper"]:
        # A layer on disk, for builds too large for memory: the caller owns the directory and removes it.
        mount(tree["upper"], scratch, None, MS_BIND)
    os.makedirs(f"{scratch}/upper", exist_ok=True)
    os.makedirs(f"{scratch}/work", exist_ok=True)
    lower = tree["source"].replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
    layers = f"lowerdir={lower},upperdir={scratch}/upper,workdir={scratch}/work,userxattr"
    mount("overlay", target, "overlay", 0, layers)
    # The job must not reach its own layer behind the overlay's back.
    mount("mileage", scratch, "tmpfs", MS_RDONLY)


def enter_root(root: str) -> None:
    """Make `root` the only file system there is."""
    machine = os.uname().machine
    os.makedirs(f"{root}/.host", exist_ok=True)
    os.chdir(root)
    check(_LIBC.syscall(SYS_PIVOT_ROOT[machine], root.encode(), f"{root}/.host".encode()), "pivot_root")
    os.chdir("/")
    check(_LIBC.umount2(b"/.host", MNT_DETACH), "umount")
    os.rmdir("/.host")


class StrangeTreeError(Exception):
    """A tree that a candidate left so that what judges it cannot be restored or read."""


def run_job(job: Record, is_init: bool) -> Record:
    """Write the changes, run the steps up to the first that fails, and measure them."""
    watch = Supervisor(job, is_init)
    # In memory, a tree is full or strange because of the candidate; on disk there may be other reasons.
    in_memory = bool(job["isolate"] and not job["isolate"]["tree"]["upper"])
    try:
        write_changes(job["cwd"], job["changes"])
    except OSError as error:
        if error.errno in CHANGE_ERRORS or (error.errno == errno.ENOSPC and in_memory):
            return {"refused": str(error)}
        raise
    renew_sources(job["cwd"], job["renewed"], job["removed"])
    judging = Judging(job, is_init)
    results: list[Record] = []
    own: list[int] = []
    try:
        for index, step in enumerate(job["steps"]):
            if index == judging.step:
                with _candidates_fault(in_memory):
                    judging.before_tests()
            results.append(watch.run(step, witnessed=0 <= judging.step <= index))
            own.append(results[-1].pop("pid"))
            if results[-1]["outcome"] != "exited" or results[-1]["exit_code"] != 0:
                break
        if not 0 <= judging.step < len(results):
            return {"steps": results}
        with _candidates_fault(in_memory):
            left = watch.witness.left_early(own)
            said = {"reports": judging.read_reports(), "tampered": judging.tampered(), "left_early": left}
            return {"steps": results, **said, "told": list(watch.witness.told)}
    except StrangeTreeError as error:
        return {"steps": results, "tampered": [str(error)]}


@contextlib.contextmanager
def _candidates_fault(in_memory: bool) -> Iterator[None]:
    """Take a tree that cannot be worked with for the candidate's doing, where nobody else can have made it so."""
    try:
        yield
    except (OSError, RecursionError) as error:
        if in_memory:
            raise StrangeTreeError(f"the tree cannot be restored or read: {error}") from None
        raise


def _report(result: Record) -> None:
    data = json.dumps(result).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _run_isolated(job: Record) -> int:
    enter_namespaces(job["isolate"]["network"])
    if not job["isolate"]["network"]:
        raise_loopback()
    child = os.fork()
    if child:
        return 0 if os.waitpid(child, 0)[1] == 0 else 1
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    close_loopholes(job["max_processes"])
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
        check(_LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
        _report(run_job(job, is_init=False))
    except OSError as error:
        _report({"error": str(error)})
    return 0
