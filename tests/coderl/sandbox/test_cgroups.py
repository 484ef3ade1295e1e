"""Groups on a hierarchy made of plain files: what is looked for where, and what is written into it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mileage.coderl.sandbox.executor import BuildJob, Limits, LocalExecutor, StepOutcome, usable_hierarchies
from mileage.coderl.sandbox.limits import (
    GroupLimits,
    Hierarchy,
    JobGroup,
    NoGroupError,
    find_hierarchies,
    remove_leftovers,
)


def make_proc(base: Path, mounts: list[str], memberships: list[str]) -> Path:
    (base / "proc" / "self").mkdir(parents=True)
    (base / "proc" / "self" / "mountinfo").write_text("\n".join(mounts) + "\n")
    (base / "proc" / "self" / "cgroup").write_text("\n".join(memberships) + "\n")
    return base / "proc"


def make_unified(group: Path, controllers: str, enabled: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("cgroup.controllers", controllers),
        ("cgroup.subtree_control", enabled),
        ("cgroup.procs", f"{os.getpid()}\n1\n"),
        ("memory.max", "max\n"),
        ("pids.max", "max\n"),
        ("cpu.max", "max 100000\n"),
    ):
        (group / name).write_text(text)


def test_version_1_is_found_below_the_own_group_controller_by_controller(tmp_path: Path) -> None:
    for name in ("pids", "memory/jobs/own", "cpu,cpuacct"):
        (tmp_path / name).mkdir(parents=True)
    proc = make_proc(
        tmp_path,
        [
            f"30 29 0:1 / {tmp_path}/pids rw shared:1 - cgroup cgroup rw,pids",
            f"31 29 0:2 / {tmp_path}/memory rw - cgroup cgroup rw,memory",
            f"32 29 0:3 / {tmp_path}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            f"33 29 0:4 / {tmp_path}/freezer rw - cgroup cgroup rw,freezer",
        ],
        ["4:pids:/", "3:memory:/jobs/own", "2:cpu,cpuacct:/", "1:freezer:/", "0::/"],
    )
    found = find_hierarchies(proc)
    assert {name: (row.version, str(row.base.relative_to(tmp_path))) for name, row in found.items()} == {
        "pids": (1, "pids"),
        "memory": (1, "memory/jobs/own"),
        "cpu": (1, "cpu,cpuacct"),
        "cpuacct": (1, "cpu,cpuacct"),
    }


def test_version_2_is_used_where_its_controllers_are_enabled_below_the_own_group(tmp_path: Path) -> None:
    make_unified(tmp_path / "fs" / "user" / "own", "cpu memory pids", "cpu memory pids")
    proc = make_proc(tmp_path, [f"30 29 0:1 / {tmp_path}/fs rw - cgroup2 cgroup2 rw"], ["0::/user/own"])
    found = find_hierarchies(proc)
    assert {name: (row.version, row.base.name) for name, row in found.items()} == {
        "pids": (2, "own"),
        "memory": (2, "own"),
        "cpu": (2, "own"),
    }


def test_version_2_goes_beside_the_own_group_only_if_that_escapes_no_limit(tmp_path: Path) -> None:
    make_unified(tmp_path / "fs" / "user", "memory pids", "memory pids")
    own = tmp_path / "fs" / "user" / "own"
    make_unified(own, "", "")
    proc = make_proc(tmp_path, [f"30 29 0:1 / {tmp_path}/fs rw - cgroup2 cgroup2 rw"], ["0::/user/own"])
    assert {row.base.name for row in find_hierarchies(proc).values()} == {"user"}
    (own / "memory.max").write_text("1000000\n")
    assert find_hierarchies(proc) == {}


def test_a_mount_that_shows_a_part_of_the_hierarchy_is_read_from_there(tmp_path: Path) -> None:
    (tmp_path / "pids" / "inner").mkdir(parents=True)
    proc = make_proc(
        tmp_path, [f"30 29 0:1 /docker/x {tmp_path}/pids rw - cgroup cgroup rw,pids"], ["4:pids:/docker/x/inner"]
    )
    assert find_hierarchies(proc)["pids"].base == tmp_path / "pids" / "inner"


def test_limits_are_written_and_files_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_group(path: Path) -> None:
        os.mkdir(path)
        names = ("cgroup.procs", "cgroup.kill", "pids.max", "pids.events", "memory.max", "memory.swap.max",
                 "memory.events", "memory.peak", "memory.oom.group", "cpu.max", "cpu.stat")  # fmt: skip
        for name in names:
            (path / name).touch()

    monkeypatch.setattr(Path, "mkdir", make_group)
    hierarchies = {name: Hierarchy(name, 2, tmp_path) for name in ("pids", "memory", "cpu")}
    limits = GroupLimits(memory_bytes=1 << 20, max_processes=7, cpu_cores=1.5)
    group = JobGroup(hierarchies, limits)
    (path,) = tmp_path.glob("mileage-*")
    written = {name: (path / name).read_text() for name in ("pids.max", "memory.max", "memory.swap.max", "cpu.max")}
    assert written == {
        "pids.max": "7",
        "memory.max": str(1 << 20),
        "memory.swap.max": "0",
        "cpu.max": "150000 100000",
    }
    wire = group.wire(limits)
    assert {"joins", "pids_events", "pids_max", "memory_events", "memory_peak", "cpu_usage", "kill"} <= set(wire)
    assert len(set(group.descriptors)) == 7
    for file in path.iterdir():
        file.unlink()
    group.close()
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_cannot_be_made_is_no_fault_of_the_job(tmp_path: Path) -> None:
    with pytest.raises(NoGroupError, match="cannot be made"):
        JobGroup({"pids": Hierarchy("pids", 1, tmp_path / "absent")}, GroupLimits(max_processes=3))


def test_groups_of_dead_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "mileage-999999999-0").mkdir()
    (tmp_path / f"mileage-{os.getpid()}-0").mkdir()
    (tmp_path / "mileage-main").mkdir()
    remove_leftovers({"pids": Hierarchy("pids", 1, tmp_path)})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["mileage-main", f"mileage-{os.getpid()}-0"])


@pytest.mark.skipif("pids" not in usable_hierarchies(), reason="no pids control group can be made here")
def test_processes_that_a_group_refuses_are_an_outcome_and_the_group_is_gone(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 40 ]; do sleep 9 & i=$((i+1)); done; wait"
    limits = Limits(timeout_seconds=300, max_processes=20)
    job = BuildJob((("sh", "-c", script),), str(tmp_path), {"PATH": "/usr/bin:/bin"}, limits=limits)
    # Sampling is left out: what is found is what the kernel counted.
    result = LocalExecutor().run(BuildJob(**{**vars(job), "sample_seconds": 30.0}))
    assert result.steps[0].outcome is StepOutcome.PROCESSES
    bases = {hierarchy.base for hierarchy in usable_hierarchies().values()}
    assert [path for base in bases for path in base.glob(f"mileage-{os.getpid()}-*")] == []
