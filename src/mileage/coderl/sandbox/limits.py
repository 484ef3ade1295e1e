"""Limits that the kernel keeps: control groups for jobs, below the one this process is in.

Version 2 where it is delegated to us, version 1 where it can be written; each controller is looked for on its own,
since machines mix them. A group is made for one job, its limits are set, its files are opened, and the launcher gets
the descriptors: nothing of it needs a path inside the job's own file system, and no limit of ours is ever escaped,
because groups nest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PIDS, MEMORY, CPU, CPU_USAGE = "pids", "memory", "cpu", "cpuacct"
CONTROLLERS = (PIDS, MEMORY, CPU)
PREFIX = "mileage-"
CPU_PERIOD_MICROSECONDS = 100_000
MAIN = "mileage-main"
# How long the kernel may take to forget the last process of a group.
REMOVAL_SECONDS = 5.0
_DELEGATED = ("user.delegate", "trusted.delegate")
_counter = itertools.count()


@dataclass(frozen=True)
class Hierarchy:
    """Where groups with one controller can be made."""

    controller: str
    version: int
    base: Path

    def __str__(self) -> str:
        return f"{self.controller} cgroup (v{self.version})"


@dataclass(frozen=True)
class GroupLimits:
    """What a group may use together; None is no limit."""

    memory_bytes: int | None = None
    max_processes: int | None = None
    cpu_cores: float | None = None


class NoGroupError(OSError):
    """A group that cannot be made, or has vanished: a matter of the machine, not of the job."""


def find_hierarchies(proc: Path = Path("/proc")) -> dict[str, Hierarchy]:
    """The hierarchies this process may make groups in, by controller; those it may not write to are left out."""
    try:
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
        memberships = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return {}
    own = {names: path for _, names, path in (line.split(":", 2) for line in memberships)}
    found: dict[str, Hierarchy] = {}
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup":
            for names, path in own.items():
                if names and set(names.split(",")) <= set(options.split(",")):
                    _add_version_1(found, names.split(","), _below(point, root, path))
        elif kind == "cgroup2" and "" in own:
            _add_version_2(found, _below(point, root, own[""]), Path(point))
    return found


def _below(point: str, root: str, path: str) -> Path:
    """The directory of group `path` in a mount that shows the hierarchy from `root` on."""
    return Path(point, os.path.relpath(path, root) if root != "/" else path.lstrip("/"))


def _add_version_1(found: dict[str, Hierarchy], names: list[str], base: Path) -> None:
    for name in names:
        if name in (*CONTROLLERS, CPU_USAGE) and os.access(base, os.W_OK):
            found[name] = Hierarchy(name, 1, base)


def _add_version_2(found: dict[str, Hierarchy], own: Path, mount: Path) -> None:
    """Groups go below our own, or beside it where our own holds processes and sets no limit that this would escape."""
    for base in (own, own.parent) if own != mount and _is_unlimited(own) else (own,):
        enabled = _enable(base)
        for name in CONTROLLERS:
            if name in enabled and name not in found:
                found[name] = Hierarchy(name, 2, base)
        if enabled:
            return


def _is_unlimited(group: Path) -> bool:
    return all(_read(group / name).split()[:1] in ([], ["max"]) for name in ("memory.max", "pids.max", "cpu.max"))


def _enable(base: Path) -> set[str]:
    """The controllers that groups below `base` have, after asking for ours."""
    if not os.access(base, os.W_OK) or not os.access(base / "cgroup.procs", os.W_OK):
        return set()
    control = base / "cgroup.subtree_control"
    wanted = {name for name in CONTROLLERS if name in _read(base / "cgroup.controllers").split()}
    for name in sorted(wanted - set(_read(control).split())):
        with contextlib.suppress(OSError):
            if _read(base / "cgroup.procs").split() == [str(os.getpid())] and _is_delegated(base):
                # Processes may only be in the leaves: this one is alone here, so it moves into a leaf of its own.
                (base / MAIN).mkdir(exist_ok=True)
                (base / MAIN / "cgroup.procs").write_text("0")
            control.write_text(f"+{name}")
    return wanted & set(_read(control).split())


def _is_delegated(group: Path) -> bool:
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def remove_leftovers(hierarchies: Mapping[str, Hierarchy]) -> None:
    """Remove the empty groups of processes that died without doing so."""
    for base in {hierarchy.base for hierarchy in hierarchies.values()}:
        for path in base.glob(f"{PREFIX}[0-9]*"):
            owner = path.name.removeprefix(PREFIX).split("-")[0]
            if not Path("/proc", owner).exists():
                with contextlib.suppress(OSError):
                    path.rmdir()


class JobGroup:
    """The groups of one job in all hierarchies, and their open files; removed by `close`."""

    def __init__(self, hierarchies: Mapping[str, Hierarchy], limits: GroupLimits) -> None:
        self._name = f"{PREFIX}{os.getpid()}-{next(_counter)}"
        self._paths: dict[Path, None] = {}
        self._files: dict[str, int] = {}
        self.joins: list[int] = []
        try:
            self._make(hierarchies, limits)
        except OSError as error:
            self.close()
            raise NoGroupError(error.errno, f"a control group for the job cannot be made: {error}") from None

    def _make(self, hierarchies: Mapping[str, Hierarchy], limits: GroupLimits) -> None:
        wanted = {
            PIDS: limits.max_processes is not None,
            MEMORY: limits.memory_bytes is not None,
            CPU: limits.cpu_cores is not None,
            CPU_USAGE: True,
        }
        for name, hierarchy in hierarchies.items():
            if wanted[name]:
                path = hierarchy.base / self._name
                if path not in self._paths:
                    path.mkdir()
                    self._paths[path] = None
                    self.joins.append(os.open(path / "cgroup.procs", os.O_RDWR | os.O_CLOEXEC))
                self._limit(path, hierarchy, limits)
                self._open(path, hierarchy)

    def _limit(self, path: Path, hierarchy: Hierarchy, limits: GroupLimits) -> None:
        first = hierarchy.version == 1
        if hierarchy.controller == PIDS:
            _write(path / "pids.max", limits.max_processes)
        elif hierarchy.controller == MEMORY and first:
            _write(path / "memory.limit_in_bytes", limits.memory_bytes)
            # Memory and swap together; absent where swap is not accounted for.
            _write_if_there(path / "memory.memsw.limit_in_bytes", limits.memory_bytes)
        elif hierarchy.controller == MEMORY:
            _write(path / "memory.max", limits.memory_bytes)
            _write_if_there(path / "memory.swap.max", 0)
            _write_if_there(path / "memory.oom.group", 1)
        elif hierarchy.controller == CPU and limits.cpu_cores:
            quota = int(limits.cpu_cores * CPU_PERIOD_MICROSECONDS)
            if first:
                _write(path / "cpu.cfs_period_us", CPU_PERIOD_MICROSECONDS)
                # Refused where a group above allows less; then that holds for this one, too.
                _write_if_there(path / "cpu.cfs_quota_us", quota)
            else:
                _write(path / "cpu.max", f"{quota} {CPU_PERIOD_MICROSECONDS}")

    def _open(self, path: Path, hierarchy: Hierarchy) -> None:
        names = {
            (PIDS, 1): {"pids_events": "pids.events", "pids_max": "pids.max"},
            (PIDS, 2): {"pids_events": "pids.events", "pids_max": "pids.max"},
            (MEMORY, 1): {"memory_events": "memory.oom_control", "memory_peak": "memory.max_usage_in_bytes"},
            (MEMORY, 2): {"memory_events": "memory.events", "memory_peak": "memory.peak"},
            (CPU, 2): {"cpu_usage": "cpu.stat"},
            (CPU_USAGE, 1): {"cpu_usage": "cpuacct.usage"},
        }.get((hierarchy.controller, hierarchy.version), {})
        if hierarchy.version == 2:
            names = {**names, "kill": "cgroup.kill"}
        for key, name in names.items():
            if (path / name).exists() and key not in self._files:
                flags = {"pids_max": os.O_RDWR, "kill": os.O_WRONLY}.get(key, os.O_RDONLY)
                self._files[key] = os.open(path / name, flags | os.O_CLOEXEC)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Every open file, for the launcher to inherit."""
        return (*self.joins, *self._files.values())

    def wire(self, limits: GroupLimits) -> dict[str, object]:
        """The group as the launcher reads it."""
        return {"joins": self.joins, "max_processes": limits.max_processes, **self._files}

    def close(self) -> None:
        """Kill what is left in the groups and remove them."""
        for file in self.descriptors:
            os.close(file)
        self.joins, self._files = [], {}
        end = time.monotonic() + REMOVAL_SECONDS
        for path in self._paths:
            while not _remove(path) and time.monotonic() < end:
                time.sleep(0.005)
        self._paths = {}


def _remove(path: Path) -> bool:
    """Kill the members of a group and remove it; False while the kernel still counts one."""
    for pid in _read(path / "cgroup.procs").split():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(pid), signal.SIGKILL)
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(path: Path, value: object) -> None:
    path.write_text(str(value))


def _write_if_there(path: Path, value: object) -> None:
    if path.exists():
        with contextlib.suppress(OSError):
            path.write_text(str(value))
