"""The machine that a number was measured on, and who else uses it.

Reads files and package metadata only; nothing heavy is imported to find out its version.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from mileage.records import PlainData, ReadRecord, Record
from mileage.system import usable_cores

FINGERPRINT_VERSION = 1
_PACKAGES = ("numpy", "numba", "torch", "jax")
_CGROUP = Path("/sys/fs/cgroup")
# Version 1 control groups say "no limit" with a number near 2**63.
_NO_LIMIT = 2**60
_GIB = 2**30

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Machine:
    """CPU, memory, GPUs and the software that decides speed. A fact that cannot be read is `None`."""

    cpu: str | None
    cores: int
    cpu_quota: float | None
    memory_gb: int | None
    gpus: tuple[str, ...]
    os: str
    python: str
    versions: Mapping[str, str]
    version: int = FINGERPRINT_VERSION

    @property
    def hardware_id(self) -> str:
        """Twelve hex digits that are equal where CPU, usable cores, memory and GPUs are."""
        return _digest([self.cpu, self.cores, self.cpu_quota, self.memory_gb, list(self.gpus)])

    @property
    def id(self) -> str:
        """Twelve hex digits that are equal where the whole record is."""
        return _digest(self.as_dict())

    def as_dict(self) -> Record:
        """The record as JSON-ready values."""
        record = asdict(self)
        return record | {"gpus": list(self.gpus), "versions": dict(self.versions)}

    @classmethod
    def from_dict(cls, record: ReadRecord) -> Machine:
        """The inverse of `as_dict`."""
        return cls(**{**record, "gpus": tuple(record["gpus"]), "versions": dict(record["versions"])})

    def __str__(self) -> str:
        gpus = f", {' + '.join(self.gpus)}" if self.gpus else ""
        memory = f", {self.memory_gb} GiB" if self.memory_gb is not None else ""
        return f"{self.cores} × {self.cpu or 'unknown CPU'}{memory}{gpus}"


@functools.cache
def fingerprint() -> Machine:
    """Describe this machine, once per process."""
    return Machine(
        cpu=_or_none(cpu_model),
        cores=usable_cores(),
        cpu_quota=_or_none(cpu_quota),
        memory_gb=_or_none(memory_gb),
        gpus=_or_none(gpu_names) or (),
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions=package_versions(),
    )


def cpu_model(cpuinfo: str | None = None) -> str | None:
    """The CPU's model name from the text of /proc/cpuinfo (read if not given)."""
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    fields = dict(reversed([_field(line) for line in text.splitlines() if ":" in line]))
    # ARM kernels give no model name; the part number is the best there is.
    for key in ("model name", "Hardware", "Model", "CPU part"):
        if fields.get(key):
            return " ".join(fields[key].split())
    return platform.processor() or None


def cpu_quota(root: Path = _CGROUP) -> float | None:
    """Cores' worth of CPU time the container may use, or None without a quota."""
    text = _read(root / "cpu.max")
    if text is not None:
        quota, period = text.split()
        return None if quota == "max" else int(quota) / int(period)
    old = _read(root / "cpu/cpu.cfs_quota_us"), _read(root / "cpu/cpu.cfs_period_us")
    if old[0] is None or old[1] is None or int(old[0]) <= 0:
        return None
    return int(old[0]) / int(old[1])


def memory_gb(root: Path = _CGROUP, meminfo: str | None = None) -> int:
    """Memory this process may use in whole GiB: the machine's, or the container's limit if that is lower.

    Whole, because kernels reserve a little more or less at each boot and the same machine should keep its fingerprint.
    """
    text = Path("/proc/meminfo").read_text() if meminfo is None else meminfo
    total = next(int(_field(line)[1].split()[0]) * 1024 for line in text.splitlines() if line.startswith("MemTotal"))
    for limit_file in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _read(root / limit_file)
        if limit is not None and limit != "max" and int(limit) < _NO_LIMIT:
            total = min(total, int(limit))
    return round(total / _GIB)


def gpu_names(driver: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """Names of the NVIDIA GPUs the driver shows, in bus order."""
    models = (_read(path / "information") for path in sorted(driver.iterdir()))
    fields = (dict(_field(line) for line in text.splitlines() if ":" in line) for text in models if text)
    return tuple(record["Model"] for record in fields if "Model" in record)


def package_versions(packages: tuple[str, ...] = _PACKAGES) -> dict[str, str]:
    """Installed versions of `packages`; one that is not installed is left out."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _field(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _or_none(read: Callable[[], T]) -> T | None:
    """One fact that cannot be read must not remove the others."""
    try:
        return read()
    except (OSError, ValueError, StopIteration):
        return None


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# --- Who else uses the machine: foreign CPU time, waits for a core, stolen time and pressure between two instants ---
BUSY_SHARE = 0.10
"""Of all cores: others that keep more of them busy than this colour what is measured meanwhile."""
OTHERS = "others/cpu"
"""What the CPU seconds of others are called among what goes on beside a run."""
_TICKS = 0.05
"""Seconds by which counters that are kept in ticks may be wrong."""
_PROC = Path("/proc")
_USER_TICKS_AFTER_NAME = 11


@dataclass(frozen=True, slots=True)
class Counters:
    """What the system has counted up to one instant, in seconds; a fact that cannot be read is None."""

    at: float
    """On a monotonic clock."""
    busy: float | None
    """In which some core was in use, added up over cores."""
    stolen: float | None
    """In which the hypervisor gave a core to others."""
    own: float | None
    """CPU time of this process, its threads and all processes that descend from it."""
    waited: float | None
    """In which threads of this process could have run and no core was free for them."""
    pressure: float | None
    """In which some task of the machine waited for a core."""


@dataclass(frozen=True, slots=True)
class Load(PlainData):
    """The machine between two instants. What could not be read is None."""

    seconds: float
    cores: int
    foreign: float | None
    """Cores that processes of others kept busy, on average."""
    own: float | None
    """Cores that this process and its descendants kept busy."""
    stolen: float | None
    """Share of all cores that the hypervisor took."""
    waited: float | None
    """Seconds that this process's threads waited for a core, by those in which they ran or waited."""
    pressure: float | None
    """Share of the time in which some task of the machine waited for a core."""

    @property
    def foreign_seconds(self) -> float:
        """CPU seconds that others used or a hypervisor took; 0 if too few to be told from rounding, or unknown."""
        found = self.seconds * ((self.foreign or 0.0) + (self.stolen or 0.0) * self.cores)
        return found if found > BUSY_SHARE * self.cores * self.seconds + _TICKS else 0.0


def counters(proc: Path = _PROC) -> Counters:
    """The system's counters now: some files of /proc, a fraction of a millisecond for a small process tree."""
    ticks = _cpu_ticks(proc / "stat")
    return Counters(
        at=time.monotonic(),
        busy=None if ticks is None else ticks[0],
        stolen=None if ticks is None else ticks[1],
        own=_tree_seconds(proc),
        waited=_waited(proc / "self" / "task"),
        pressure=_pressure(proc / "pressure" / "cpu"),
    )


def between(before: Counters, after: Counters, cores: int | None = None) -> Load:
    """How the machine was used from one reading to the next."""
    cores = usable_cores() if cores is None else cores
    seconds = max(after.at - before.at, 1e-9)

    def rate(name: str) -> float | None:
        first, last = getattr(before, name), getattr(after, name)
        return None if first is None or last is None else max(0.0, last - first) / seconds

    busy, own, waited = rate("busy"), rate("own"), rate("waited")
    foreign = None if busy is None or own is None else max(0.0, busy - own)
    stolen = rate("stolen")
    alive = None if own is None or waited is None else own + waited
    return Load(
        seconds,
        cores,
        foreign,
        own,
        None if stolen is None else stolen / cores,
        None if alive is None or waited is None else (waited / alive if alive > 0.0 else 0.0),
        rate("pressure"),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _cpu_ticks(path: Path) -> tuple[float, float] | None:
    """Seconds in which cores were in use, stolen ones not among them, and stolen seconds."""
    text = _text(path)
    if text is None:
        return None
    fields = [int(field) for field in text.splitlines()[0].split()[1:9]]
    user, nice, system, _, _, interrupts, soft, stolen = fields
    rate = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupts + soft) / rate, stolen / rate


def _tree_seconds(proc: Path) -> float | None:
    """CPU seconds of this process and its descendants, those that have ended and were waited for among them."""
    found, known, waiting = 0.0, False, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            with open(proc / str(pid) / "stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            ticks = fields[_USER_TICKS_AFTER_NAME : _USER_TICKS_AFTER_NAME + 4]
            found, known = found + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), True
            waiting += _children(proc / str(pid) / "task")
        except (OSError, IndexError, ValueError):
            continue  # It ended while we looked.
    return found if known else None


def _children(tasks: Path) -> list[int]:
    """Processes that the threads in this folder have started, and that have not ended."""
    return [int(pid) for name in os.listdir(tasks) for pid in (_text(tasks / name / "children") or "").split()]


def _waited(tasks: Path) -> float | None:
    """Seconds that the threads of this process stood in a run queue; those of threads that have ended are lost."""
    total, known = 0, False
    try:
        names = os.listdir(tasks)
    except OSError:
        return None
    for name in names:
        text = _text(tasks / name / "schedstat")
        if text is not None:
            total, known = total + int(text.split()[1]), True
    return total / 1e9 if known else None


def _pressure(path: Path) -> float | None:
    text = _text(path)
    if text is None:
        return None
    _, found, rest = text.partition("total=")
    return int(rest.split()[0]) / 1e6 if found else None
