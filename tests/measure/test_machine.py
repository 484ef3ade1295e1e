from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from mileage.measure import Machine, fingerprint, machine

RECORD = Machine(
    cpu="Example 9000",
    cores=8,
    cpu_quota=None,
    memory_gb=64,
    gpus=("H100",),
    os="Linux 6.1",
    python="3.11.7",
    versions={"numpy": "2.0.0"},
)


def test_this_machine_is_described_as_the_system_does() -> None:
    here = fingerprint()
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.cpu is not None
    assert here.cpu in Path("/proc/cpuinfo").read_text()
    assert here.versions["numpy"] == version("numpy")
    assert here.python == ".".join(map(str, sys.version_info[:3]))


def test_ids_are_stable_across_processes() -> None:
    program = "from mileage.measure import fingerprint as f; print(f().id, f().hardware_id)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.split() == [fingerprint().id, fingerprint().hardware_id]


def test_fingerprint_imports_nothing_heavy() -> None:
    program = (
        "import sys; from mileage.measure import fingerprint; fingerprint()\n"
        "print([m for m in ('torch', 'jax', 'numba', 'numpy', 'psutil', 'pynvml') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_software_changes_the_id_but_not_the_hardware_id() -> None:
    newer = replace(RECORD, versions={"numpy": "2.1.0"})
    assert newer.id != RECORD.id
    assert newer.hardware_id == RECORD.hardware_id


@pytest.mark.parametrize(
    "change", [{"cpu": "Other"}, {"cores": 4}, {"cpu_quota": 1.5}, {"memory_gb": 32}, {"gpus": ("H100", "H100")}]
)
def test_each_hardware_fact_changes_the_hardware_id(change: dict[str, object]) -> None:
    assert replace(RECORD, **change).hardware_id != RECORD.hardware_id  # type: ignore[arg-type]


def test_record_survives_json() -> None:
    assert Machine.from_dict(json.loads(json.dumps(RECORD.as_dict()))) == RECORD
    assert str(RECORD) == "8 × Example 9000, 64 GiB, H100"


def test_cpu_model_of_intel_and_of_arm() -> None:
    assert (
        machine.cpu_model("processor\t: 0\nmodel name\t: Xeon(R)  6430\nprocessor: 1\nmodel name: Z") == "Xeon(R) 6430"
    )
    assert machine.cpu_model("processor\t: 0\nCPU part\t: 0xd0c\n") == "0xd0c"


def test_container_limits_of_both_control_group_versions(tmp_path: Path) -> None:
    meminfo = f"MemTotal: {64 * 2**20} kB\nMemFree: 1 kB"
    assert machine.memory_gb(tmp_path, meminfo) == 64
    assert machine.cpu_quota(tmp_path) is None
    new, old = tmp_path / "new", tmp_path / "old"
    (old / "cpu").mkdir(parents=True)
    (old / "memory").mkdir()
    new.mkdir()
    (new / "cpu.max").write_text("150000 100000\n")
    (new / "memory.max").write_text(f"{8 * 2**30}\n")
    (old / "cpu/cpu.cfs_quota_us").write_text("50000")
    (old / "cpu/cpu.cfs_period_us").write_text("100000")
    (old / "memory/memory.limit_in_bytes").write_text(str(4 * 2**30))
    assert (machine.cpu_quota(new), machine.memory_gb(new, meminfo)) == (1.5, 8)
    assert (machine.cpu_quota(old), machine.memory_gb(old, meminfo)) == (0.5, 4)
    (new / "cpu.max").write_text("max 100000")
    (new / "memory.max").write_text("max")
    (old / "cpu/cpu.cfs_quota_us").write_text("-1")
    (old / "memory/memory.limit_in_bytes").write_text("9223372036854771712")
    assert (machine.cpu_quota(new), machine.memory_gb(new, meminfo)) == (None, 64)
    assert (machine.cpu_quota(old), machine.memory_gb(old, meminfo)) == (None, 64)


def test_gpu_names_come_from_the_driver(tmp_path: Path) -> None:
    for bus, name in (("0000:01:00.0", "NVIDIA A100"), ("0000:41:00.0", "NVIDIA H100")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {name}\nIRQ: 1\n")
    assert machine.gpu_names(tmp_path) == ("NVIDIA A100", "NVIDIA H100")


def test_a_fact_that_cannot_be_read_does_not_remove_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise OSError

    monkeypatch.setattr(machine, "cpu_model", refuse)
    blind = fingerprint.__wrapped__()
    assert blind.cpu is None
    assert blind.cores == fingerprint().cores


def test_packages_that_are_not_installed_are_left_out() -> None:
    assert machine.package_versions(("numpy", "no-such-package")) == {"numpy": version("numpy")}
