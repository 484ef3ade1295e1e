"""Memory of a process and its descendants from /proc, and of the GPU through NVML."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PPID_AFTER_NAME = 1


class ProcessTree:
    """Reads the resident memory of `pid` and its descendants; `proc` is the mounted process file system.

    Pages that a child shares with its parent count for both, as in every sum of resident set sizes.
    """

    def __init__(self, pid: int | None = None, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._root = os.getpid() if pid is None else pid
        self._files: dict[int, int] = {}
        self._parents: dict[int, int] = {}
        self._newest_pid = b""
        self._load: int | None = None
        self._open(self._root)

    def rss_bytes(self) -> int:
        """Sum over the known processes; one that has ended is forgotten."""
        total = 0
        for pid, file in list(self._files.items()):
            try:
                total += int(os.pread(file, 256, 0).split()[1]) * _PAGE
            except (OSError, IndexError, ValueError):
                self._close(pid)
        return total

    def changed(self) -> bool:
        """Whether any process or thread was started on this machine since the last call (a reason to look again)."""
        # The file stays open: every call into the system lets a training thread take the interpreter away from here.
        try:
            if self._load is None:
                self._load = os.open(self._proc / "loadavg", os.O_RDONLY | os.O_CLOEXEC)
            newest = os.pread(self._load, 256, 0).split()[-1]
        except (OSError, IndexError):
            return True
        changed = newest != self._newest_pid
        self._newest_pid = newest
        return changed

    def discover(self) -> None:
        """Look for descendants that were started since the last time; processes seen before are not read again."""
        present = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        self._parents = {pid: parent for pid, parent in self._parents.items() if pid in present}
        for pid in present - self._parents.keys():
            try:
                with open(self._proc / str(pid) / "stat", "rb") as file:
                    self._parents[pid] = int(file.read().rpartition(b")")[2].split()[_PPID_AFTER_NAME])
            except (OSError, IndexError, ValueError):
                continue  # It ended while we looked.
        for pid in self._descendants() - self._files.keys():
            self._open(pid)

    def _descendants(self) -> set[int]:
        children: dict[int, list[int]] = {}
        for pid, parent in self._parents.items():
            children.setdefault(parent, []).append(pid)
        found: set[int] = set()
        waiting = [self._root]
        while waiting:
            pid = waiting.pop()
            if pid not in found:
                found.add(pid)
                waiting.extend(children.get(pid, ()))
        return found

    def close(self) -> None:
        """Release all files."""
        for pid in list(self._files):
            self._close(pid)
        if self._load is not None:
            os.close(self._load)
            self._load = None

    def _open(self, pid: int) -> None:
        try:
            self._files[pid] = os.open(self._proc / str(pid) / "statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return

    def _close(self, pid: int) -> None:
        file = self._files.pop(pid, None)
        if file is not None:
            os.close(file)


def peak_rss_bytes(status: str | None = None) -> int:
    """The kernel's own record of this process's highest resident memory, from the text of /proc/self/status."""
    text = Path("/proc/self/status").read_text() if status is None else status
    found = re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise ValueError("no VmHWM in /proc/self/status")
    return int(found[1]) * 1024


# --- GPU memory and utilisation through NVML, where there is one ---
@dataclass(slots=True)
class _Gpu:
    """What was seen of one GPU; a metric that could never be read stays None."""

    handle: Any
    peak_bytes: int | None = None
    utilisation_sum: float = 0.0
    utilisation_count: int = 0

    @property
    def mean_utilisation(self) -> float | None:
        return self.utilisation_sum / self.utilisation_count if self.utilisation_count else None


def load_nvml() -> ModuleType | None:
    """The initialised NVML binding, or None without the package, the driver or a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        # NVML raises an error class of its own per cause; whatever the cause, there is nothing to measure.
        return None
    return pynvml  # type: ignore[no-any-return]


def visible_indices(uuids: Sequence[str], setting: str | None) -> list[int]:
    """Which GPUs a process may use: `setting` is CUDA_VISIBLE_DEVICES, numbers or beginnings of `uuids`."""
    if setting is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            chosen.append(int(entry))
        elif entry.startswith("GPU-") and any(uuid.startswith(entry) for uuid in uuids):
            chosen.append(next(i for i, uuid in enumerate(uuids) if uuid.startswith(entry)))
        else:
            break  # CUDA ignores everything after the first entry it does not know.
    return chosen


class GpuSampler:
    """Keeps peak memory and mean utilisation per visible GPU; one failing metric never removes another."""

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        self._nvml = nvml
        self._gpus: list[_Gpu] = []
        if nvml is None:
            return
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        except Exception:
            return
        setting = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        try:
            uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        except Exception:
            uuids = [""] * len(handles)
        self._gpus = [_Gpu(handles[i]) for i in visible_indices(uuids, setting)]

    def sample(self) -> None:
        """Read every metric of every GPU once."""
        for gpu in self._gpus:
            try:
                used = int(self._nvml.nvmlDeviceGetMemoryInfo(gpu.handle).used)
                gpu.peak_bytes = max(gpu.peak_bytes or 0, used)
            except Exception:  # Each metric on its own: a GPU may refuse one and give the other.
                pass
            try:
                gpu.utilisation_sum += float(self._nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu) / 100.0
                gpu.utilisation_count += 1
            except Exception:
                pass

    @property
    def peak_bytes(self) -> tuple[int | None, ...] | None:
        """Highest memory in use per GPU, or None without GPUs."""
        return tuple(gpu.peak_bytes for gpu in self._gpus) or None

    @property
    def mean_utilisation(self) -> tuple[float | None, ...] | None:
        """Mean utilisation per GPU from 0 to 1, or None without GPUs."""
        return tuple(gpu.mean_utilisation for gpu in self._gpus) or None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
