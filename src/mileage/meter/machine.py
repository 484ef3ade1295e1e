"""The machine fingerprint: what a measured number was measured on.

Reads files and package metadata only; nothing heavy is imported to find out its version.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from mileage._cores import usable_cores
from mileage._records import ReadRecord, Record

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
