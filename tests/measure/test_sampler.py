from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mileage.errors import UsageError
from mileage.measure import ResourceSampler
from mileage.measure.memory import GpuSampler, ProcessTree, peak_rss_bytes, visible_indices

PAGE = os.sysconf("SC_PAGE_SIZE")
GB = 10**9


def fake_process(proc: Path, pid: int, parent: int, pages: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a) (b) S {parent} 0 0")
    (proc / str(pid) / "statm").write_text(f"999 {pages} 0 0 0 0 0")


def test_tree_memory_is_the_sum_over_all_descendants(tmp_path: Path) -> None:
    fake_process(tmp_path, 10, 1, 100)
    tree = ProcessTree(10, tmp_path)
    assert tree.rss_bytes() == 100 * PAGE
    fake_process(tmp_path, 11, 10, 20)  # child
    fake_process(tmp_path, 12, 11, 3)  # grandchild
    fake_process(tmp_path, 13, 1, 5000)  # a stranger
    tree.discover()
    assert tree.rss_bytes() == 123 * PAGE
    (tmp_path / "11" / "statm").write_text("")  # what the kernel shows of a process that has ended
    assert tree.rss_bytes() == 103 * PAGE
    tree.close()


def test_tree_looks_again_only_if_a_process_was_started(tmp_path: Path) -> None:
    fake_process(tmp_path, 10, 1, 1)
    tree = ProcessTree(10, tmp_path)
    assert tree.changed()  # no loadavg to tell
    (tmp_path / "loadavg").write_text("0.0 0.1 0.2 1/50 700\n")
    assert tree.changed()
    assert not tree.changed()
    (tmp_path / "loadavg").write_text("0.0 0.1 0.2 1/50 701\n")
    assert tree.changed()
    tree.close()


def test_a_real_child_is_found_and_forgotten() -> None:
    tree = ProcessTree()
    tree.discover()  # what other tests left running
    alone = tree.rss_bytes()
    hold = "x = bytearray(50_000_000); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        tree.discover()
        assert tree.rss_bytes() - alone > 45_000_000
        child.communicate(b"\n")
    assert tree.rss_bytes() - alone < 45_000_000
    tree.close()


def test_high_water_mark_is_the_kernels() -> None:
    assert peak_rss_bytes("VmPeak:\t 9 kB\nVmHWM:\t    1612 kB\n") == 1612 * 1024
    with pytest.raises(ValueError, match="VmHWM"):
        peak_rss_bytes("Name: x")


def test_a_peak_between_two_samples_is_taken_from_the_kernel() -> None:
    marks = iter([100 * GB, 700 * GB])
    with ResourceSampler(high_water=lambda: next(marks, 700 * GB)) as sampler:
        pass
    assert sampler.peaks().peak_rss_gb == 700.0


def test_a_peak_of_an_earlier_run_is_not_ours(tmp_path: Path) -> None:
    fake_process(tmp_path, 10, 1, 2 * GB // PAGE)
    with ResourceSampler(high_water=lambda: 700 * GB, tree=lambda: ProcessTree(10, tmp_path)) as sampler:
        assert sampler.peaks().peak_rss_gb == pytest.approx(2.0, rel=1e-5)
    assert sampler.peaks().peak_rss_gb == pytest.approx(2.0, rel=1e-5)


class Nvml:
    """Two GPUs; the first refuses utilisation, the second refuses memory."""

    def __init__(self) -> None:
        self.used = [3 * GB, 1 * GB, 2 * GB]
        self.utilisation = [50, 100]

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:  # noqa: N802
        return i

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return [b"GPU-aa", b"GPU-bb"][handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if handle == 1:
            raise RuntimeError("not supported")
        return SimpleNamespace(used=self.used.pop(0))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        if handle == 0:
            raise RuntimeError("not supported")
        return SimpleNamespace(gpu=self.utilisation.pop(0))


def test_a_gpu_metric_that_fails_does_not_remove_another() -> None:
    gpus = GpuSampler(Nvml(), visible="0,1")
    gpus.sample()
    gpus.sample()
    assert gpus.peak_bytes == (3 * GB, None)
    assert gpus.mean_utilisation == (None, 0.75)


def test_without_nvml_gpu_metrics_are_none_and_memory_is_still_measured() -> None:
    with ResourceSampler(nvml=lambda: None) as sampler:
        pass
    peaks = sampler.peaks()
    assert peaks.peak_gpu_gb is None
    assert peaks.gpu_utilisation is None
    assert peaks.peak_rss_gb is not None


def test_without_proc_gpus_are_still_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise OSError

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with ResourceSampler(nvml=Nvml, tree=refuse, high_water=refuse) as sampler:
        pass
    assert sampler.peaks().peak_rss_gb is None
    assert sampler.peaks().peak_gpu_gb == (3.0,)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, [0, 1, 2]), ("1,0", [1, 0]), ("", []), ("GPU-bb,GPU-c", [1, 2]), ("0,7,1", [0]), ("-1", [])],
)
def test_visible_devices_are_read_as_cuda_reads_them(setting: str | None, expected: list[int]) -> None:
    assert visible_indices(["GPU-aa", "GPU-bb", "GPU-cc"], setting) == expected


def test_stopping_ends_the_thread_and_can_be_repeated() -> None:
    sampler = ResourceSampler().start()
    first = sampler.stop()
    assert "mileage-sampler" not in {thread.name for thread in threading.enumerate()}
    assert sampler.stop().samples == first.samples >= 1


@pytest.mark.parametrize("budget", [0.0, -1.0, 2.0])
def test_an_unusable_budget_is_refused(budget: float) -> None:
    with pytest.raises(UsageError, match="budget"):
        ResourceSampler(budget=budget)
