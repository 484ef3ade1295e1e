"""Warm snapshots: a built tree that each sample gets back, as it was, in milliseconds.

Four ways, the best that the machine has: an overlay (a throw-away layer in memory over the built tree, inside the
sample's own mount namespace), reflinks, hard links, plain copies. A build tool finds the tree at one fixed path
every time, because compilers put paths into what they cache.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from mileage.coderl.projects.workarea import CopyMethod, copy_tree, link_tree, remove_tree
from mileage.coderl.sandbox.executor import (
    DEFAULT_OUTPUT_BYTES,
    BuildJob,
    BuildResult,
    Change,
    Jail,
    JobRunner,
    Judging,
    Limits,
    TreeMount,
)
from mileage.coderl.sandbox.isolation import isolation_problem, make_jail
from mileage.errors import BuildError


class SnapshotMethod(StrEnum):
    """How a snapshot is given to a sample."""

    OVERLAY = "overlay"
    REFLINK = "reflink"
    HARD_LINK = "hard-link"
    COPY = "copy"


# Where an isolated job sees its project.
MOUNT_POINT = "/mileage/tree"
# What is kept of the beginning and of the end of a test command's output: results are read from it.
TEST_OUTPUT_BYTES = 2 << 20


def best_method(directory: Path) -> SnapshotMethod:
    """The fastest method that works on the file system of `directory`."""
    if isolation_problem() is None:
        return SnapshotMethod.OVERLAY
    return SnapshotMethod.REFLINK if reflinks_work(directory) else SnapshotMethod.HARD_LINK


def reflinks_work(directory: Path) -> bool:
    """Try whether files below `directory` can share blocks."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        source = Path(name, "source")
        source.mkdir()
        (source / "file").write_bytes(b"x" * 4096)
        return copy_tree(source, Path(name, "target")) is CopyMethod.REFLINK


@dataclass(frozen=True)
class Surroundings:
    """What jobs may use besides the tree: environment, readable paths, disk, network."""

    env: Mapping[str, str]
    readable: tuple[str, ...] = ()
    disk_bytes: int = 2 << 30
    network: bool = False
    layer_on_disk: bool = False
    """Put the throw-away layer of an overlay on disk instead of in memory."""


class Snapshot:
    """One built tree and a place to use it; one user at a time (an overlay snapshot may be shared, see `share`)."""

    def __init__(
        self, source: Path, directory: Path, method: SnapshotMethod, executor: JobRunner, surroundings: Surroundings
    ) -> None:
        self.method = method
        self._executor = executor
        self._around = surroundings
        self._directory = directory
        self._live = directory / "live"
        self._kept = directory / "kept"
        self._source = source
        self._stamps: dict[str, tuple[int, int]] = {}
        self._warming: tuple[tuple[tuple[str, ...], ...], Limits] = ((), Limits())
        if method is SnapshotMethod.OVERLAY:
            copy_tree(source, self._kept, history=True)
        else:
            copy_tree(source, self._live, history=True)

    @property
    def tree_path(self) -> str:
        """The path at which jobs see the tree."""
        return MOUNT_POINT if self.method is SnapshotMethod.OVERLAY else str(self._live)

    def warm(self, steps: tuple[tuple[str, ...], ...], limits: Limits) -> BuildResult:
        """Build the tree once; every later job starts from the result."""
        self._warming = steps, limits
        job = BuildJob(steps, self.tree_path, self._env(), limits=limits, label="warm")
        if self.method is SnapshotMethod.OVERLAY:
            mount = TreeMount(self._kept, MOUNT_POINT, overlay=False)
            return self._executor.run(replace(job, jail=self._jail(mount)))
        result = self._executor.run(job)
        self._live.rename(self._kept)
        if self.method is SnapshotMethod.HARD_LINK:
            self._stamps = _stamps(self._kept)
        self._restore()
        return result

    def run(
        self,
        steps: tuple[tuple[str, ...], ...],
        changes: tuple[Change, ...],
        limits: Limits,
        label: str = "",
        judging: Judging | None = None,
        renewed: tuple[str, ...] = (),
        removed: tuple[str, ...] = (),
    ) -> BuildResult:
        """Apply `changes` to the built tree, run `steps`, and give the tree back as it was.

        What was built of `renewed` files is stale then, and `removed` ones are gone.
        """
        job = BuildJob(
            steps,
            self.tree_path,
            self._env(),
            changes,
            limits,
            judging=judging,
            renewed=renewed,
            removed=removed,
            output_bytes=TEST_OUTPUT_BYTES if judging else DEFAULT_OUTPUT_BYTES,
            sample_seconds=0.02,
            label=label,
        )
        if self.method is not SnapshotMethod.OVERLAY:
            try:
                return self._executor.run(job)
            finally:
                self._restore()
        upper = Path(tempfile.mkdtemp(prefix="layer-", dir=self._directory)) if self._around.layer_on_disk else None
        try:
            mount = TreeMount(self._kept, MOUNT_POINT, overlay=True, upper=upper)
            return self._executor.run(replace(job, jail=self._jail(mount)))
        finally:
            if upper:
                remove_tree(upper)

    def share(self, directory: Path) -> Snapshot:
        """A second user of an overlay snapshot: the built tree is the same, the layers are apart."""
        if self.method is not SnapshotMethod.OVERLAY:
            raise BuildError(f"a {self.method} snapshot has one user at a time: build one for each worker")
        twin = object.__new__(Snapshot)
        twin.__dict__.update(self.__dict__, _directory=directory)
        return twin

    def _env(self) -> dict[str, str]:
        return {name: value.replace("{tree}", self.tree_path) for name, value in self._around.env.items()}

    def _jail(self, mount: TreeMount) -> Jail:
        root = self._directory / "root"
        root.mkdir(exist_ok=True)
        around = self._around
        return make_jail(
            root, mount, around.env, readable=around.readable, disk_bytes=around.disk_bytes, network=around.network
        )

    def _restore(self) -> None:
        """Make the live tree a copy of the kept one again."""
        if self._live.exists():
            remove_tree(self._live)
        if self.method is not SnapshotMethod.HARD_LINK:
            copy_tree(self._kept, self._live, history=True)
        elif _stamps(self._kept) == self._stamps:
            link_tree(self._kept, self._live)
        else:
            # A build wrote into a shared file instead of replacing it, so the kept tree cannot be trusted any more:
            # build it again, and copy from now on.
            self.method = SnapshotMethod.COPY
            remove_tree(self._kept)
            copy_tree(self._source, self._live, history=True)
            self.warm(*self._warming)


def _stamps(tree: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of each file, which an in-place write changes."""
    stamps: dict[str, tuple[int, int]] = {}
    for directory, _, files in os.walk(tree):
        for name in files:
            path = os.path.join(directory, name)
            info = os.lstat(path)
            if stat.S_ISREG(info.st_mode):
                stamps[path] = (info.st_size, info.st_mtime_ns)
    return stamps
