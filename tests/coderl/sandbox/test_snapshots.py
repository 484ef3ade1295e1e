from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mileage.coderl.sandbox.executor import Change, Limits, LocalExecutor
from mileage.coderl.sandbox.snapshots import Snapshot, SnapshotMethod, Surroundings, best_method, reflinks_work

ENV = {"PATH": "/usr/bin:/bin", "HOME": "/home/mileage", "TREE": "{tree}"}
BUILD = (("sh", "-c", "mkdir -p out && cat src > out/big && head -c 40000 /dev/zero >> out/big && echo built >> log"),)
LIMITS = Limits(timeout_seconds=300)


@pytest.fixture(scope="module")
def reflink_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory whose files can share blocks: the usual one where it can, else a file system made for this."""
    base = tmp_path_factory.mktemp("reflinks")
    if reflinks_work(base):
        yield base
        return
    image, mounted = base / "image", base / "mounted"
    with image.open("wb") as file:
        file.truncate(200 << 20)
    mounted.mkdir()
    try:
        subprocess.run(("mkfs.btrfs", "--quiet", image), check=True, capture_output=True)
        subprocess.run(("mount", "-o", "loop", image, mounted), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no reflinks in the temporary directory, and no Btrfs can be made and mounted there: {error}")
    yield mounted
    subprocess.run(("umount", mounted), check=True)


@pytest.fixture(params=list(SnapshotMethod))
def snapshot(request: pytest.FixtureRequest, tmp_path: Path) -> Snapshot:
    method: SnapshotMethod = request.param
    base = tmp_path
    if method is SnapshotMethod.OVERLAY:
        request.getfixturevalue("isolation")
    if method is SnapshotMethod.REFLINK:
        base = request.getfixturevalue("reflink_path") / tmp_path.name
        base.mkdir()
        assert reflinks_work(base)
    source, directory = base / "source", base / "snapshot"
    source.mkdir()
    directory.mkdir()
    (source / "src").write_text("v1\n")
    made = Snapshot(source, directory, method, LocalExecutor(), Surroundings(ENV))
    assert made.warm(BUILD, LIMITS).succeeded
    return made


def shell(snapshot: Snapshot, script: str, *changes: Change) -> str:
    return snapshot.run((("sh", "-c", script),), changes, LIMITS).steps[0].output


def test_each_job_starts_from_the_built_tree(snapshot: Snapshot) -> None:
    assert shell(snapshot, "head -n 1 out/big; cat log") == "v1\nbuilt\n"


def test_nothing_a_job_does_reaches_the_next(snapshot: Snapshot) -> None:
    shell(snapshot, "echo more >> log; rm -r out; echo x > src; mkdir dir; ln -s / link", Change("added", b"1"))
    assert shell(snapshot, "cat log src; ls; test -d out && echo there").split() == [
        "built", "v1", "log", "out", "src", "there",
    ]  # fmt: skip


def test_writing_into_a_large_built_file_in_place_does_not_reach_the_next(snapshot: Snapshot) -> None:
    # Appending keeps the inode: this is what hard links cannot isolate, so it must be noticed and repaired.
    shell(snapshot, "echo poisoned >> out/big; printf X | dd of=out/big conv=notrunc 2>/dev/null")
    assert shell(snapshot, "head -n 1 out/big; tail -c 9 out/big | tr -d '\\0'") == "v1\n"
    assert snapshot.method is not SnapshotMethod.HARD_LINK


def test_the_tree_is_always_at_the_same_path(snapshot: Snapshot) -> None:
    assert shell(snapshot, "pwd; echo $TREE").split() == [snapshot.tree_path] * 2


def test_file_times_of_the_built_tree_are_kept(snapshot: Snapshot) -> None:
    script = "stat -c %Y.%y out/big src"
    assert shell(snapshot, script) == shell(snapshot, script)


def test_the_best_method_works_here(tmp_path: Path) -> None:
    assert best_method(tmp_path) in set(SnapshotMethod) - {SnapshotMethod.COPY}
