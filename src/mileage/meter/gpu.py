"""GPU memory and utilisation through NVML, where there is one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any


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
