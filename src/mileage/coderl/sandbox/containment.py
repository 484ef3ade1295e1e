"""What keeps candidates within their limits on this machine: the kernel, or only a look every now and then."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from mileage.coderl.sandbox import limits
from mileage.coderl.sandbox.executor import usable_hierarchies
from mileage.coderl.sandbox.isolation import isolation_problem
from mileage.coderl.sandbox.process import nproc_counts
from mileage.coderl.sandbox.seccomp import AUDIT_ARCH
from mileage.coderl.sandbox.snapshots import SnapshotMethod, best_method
from mileage.errors import BuildError

SAMPLED = "sampled"
NOT_LIMITED = "not limited"


class Isolation(StrEnum):
    """Whether candidates run in namespaces of their own."""

    AUTO = "auto"
    REQUIRE = "require"
    OFF = "off"


@dataclass(frozen=True)
class Containment:
    """How each limit is kept, and what of it is less than was asked for."""

    rows: Mapping[str, str]
    """Limit to what keeps it."""
    fallbacks: tuple[str, ...] = ()
    """One sentence for everything that this machine does not have."""

    def but(self, *problems: str) -> Containment:
        """The same with more things that are less than was asked for."""
        return replace(self, fallbacks=(*self.fallbacks, *problems))

    @property
    def sampled(self) -> tuple[str, ...]:
        """The limits that are only looked at now and then, and can be exceeded in between."""
        return tuple(name for name, keeper in self.rows.items() if keeper.startswith(SAMPLED))


def choose_method(
    isolation: Isolation, method: SnapshotMethod | None, directory: Path
) -> tuple[SnapshotMethod, tuple[str, ...]]:
    """How snapshots are given to candidates, and the sentences that say what that falls back from."""
    problem = isolation_problem() if isolation is not Isolation.OFF else None
    if problem and isolation is Isolation.REQUIRE:
        raise BuildError(f"candidates cannot be isolated here: {problem}")
    if isolation is Isolation.OFF:
        best = best_method(directory)
        return method or (SnapshotMethod.HARD_LINK if best is SnapshotMethod.OVERLAY else best), ()
    if problem and method is SnapshotMethod.OVERLAY:
        raise BuildError(f"method 'overlay' needs isolation, which cannot be had here: {problem}")
    if problem:
        return method or best_method(directory), (f"candidates are not isolated: {problem}",)
    if method is not None and method is not SnapshotMethod.OVERLAY:
        return method, (f"candidates are not isolated: method {str(method)!r} has no isolation, 'overlay' has",)
    return SnapshotMethod.OVERLAY, ()


def containment(isolated: bool, network: bool = False, fallbacks: tuple[str, ...] = ()) -> Containment:
    """What keeps which limit for candidates of this machine."""
    groups = usable_hierarchies()
    rows = {
        "processes": _processes(groups.get(limits.PIDS), isolated),
        "memory": str(groups[limits.MEMORY]) + " with swap"
        if limits.MEMORY in groups
        else f"{SAMPLED}: what processes have mapped",
        "cpu": str(groups[limits.CPU]) if limits.CPU in groups else NOT_LIMITED,
        "disk": "a file system in memory that counts as memory" if isolated else NOT_LIMITED,
        "files": "a root of its own with read-only tools" if isolated else "all that the user may touch",
        "network": "loopback alone" if isolated and not network else "the machine's",
        "system calls": "seccomp filter" if isolated and os.uname().machine in AUDIT_ARCH else "all",
    }
    found = Containment(rows, fallbacks)
    if found.sampled:
        missing = f"no control group for {' and '.join(found.sampled)} can be made here: the limit is only sampled"
        return Containment(rows, (*fallbacks, missing))
    return found


def _processes(group: limits.Hierarchy | None, isolated: bool) -> str:
    if group:
        return str(group)
    if isolated and nproc_counts():
        return "RLIMIT_NPROC of its user namespace"
    return f"{SAMPLED}: descendants and their threads"


def containment_here() -> dict[str, str]:
    """What a candidate of this machine would be contained by, for people to read."""
    problem = isolation_problem()
    found = containment(isolated=problem is None)
    return {"isolation": "namespaces" if problem is None else f"none ({problem})", **found.rows}
