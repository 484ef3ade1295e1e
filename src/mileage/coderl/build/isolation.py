"""What an isolated job sees of this machine, and whether this machine can isolate at all."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from mileage._errors import BuildError
from mileage.coderl.build.executor import Jail, Job, Limits, LocalExecutor, TreeMount

# System directories and the few files of /etc that compilers and their loaders read; no host names, no users, no keys.
SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC_PATHS = (
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/maven",
    "/etc/ssl/certs", "/etc/java-11-openjdk", "/etc/java-17-openjdk", "/etc/java-21-openjdk",
)  # fmt: skip
# What of the user's tool directories a build needs; never the credentials that lie beside it.
CARGO_PARTS = ("bin", "registry", "git", "config", "config.toml", "env")


def _accounts() -> dict[str, str]:
    """Minimal account files, because some tools look up their own user."""
    uid, gid = os.geteuid(), os.getegid()
    return {
        "/etc/passwd": f"builder:x:{uid}:{gid}::/home/mileage:/bin/sh\n",
        "/etc/group": f"builder:x:{gid}:\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "/etc/hosts": "127.0.0.1 localhost\n",
    }


def visible_paths(env: Mapping[str, str], extra: Iterable[str | Path] = ()) -> tuple[str, ...]:
    """The paths a job may read besides its tree: the system, the toolchains, and `extra`."""
    home = Path(env.get("HOME", str(Path.home())))
    cargo = Path(env.get("CARGO_HOME", home / ".cargo"))
    candidates = [Path(path) for path in (*SYSTEM_PATHS, *ETC_PATHS)]
    candidates += [cargo / part for part in CARGO_PARTS]
    candidates.append(Path(env.get("RUSTUP_HOME", home / ".rustup")))
    candidates += [home / ".m2" / "repository", home / "go" / "pkg", home / ".cache" / "go-build"]
    candidates += [Path(path) for path in extra]
    chosen: list[str] = []
    for path in sorted({str(path) for path in candidates}):
        # A path below one that is already there would be mounted over a read-only parent.
        if os.path.lexists(path) and not any(path.startswith(parent + "/") for parent in chosen):
            chosen.append(path)
    return tuple(chosen)


def make_jail(
    root: Path,
    tree: TreeMount,
    env: Mapping[str, str],
    *,
    readable: Iterable[str | Path] = (),
    disk_bytes: int = 2 << 30,
    network: bool = False,
) -> Jail:
    """Describe an isolated job: `root` is an empty directory to mount on, `tree` the project."""
    visible = visible_paths(env, readable)
    return Jail(root, tree, visible, disk_bytes=disk_bytes, network=network, files=_accounts())


@functools.cache
def isolation_problem() -> str | None:
    """Why jobs cannot be isolated here, or None if they can: it is tried once, for real."""
    directory = Path(tempfile.mkdtemp(prefix="mileage-probe-"))
    try:
        source, root = directory / "tree", directory / "root"
        source.mkdir()
        root.mkdir()
        (source / "file").write_text("kept")
        jail = make_jail(root, TreeMount(source, "/probe", overlay=True), {"HOME": "/nonexistent"}, disk_bytes=1 << 20)
        job = Job(
            steps=(("sh", "-c", "echo changed > file && test ! -e /home/mileage/../../root"),),
            cwd="/probe",
            env={"PATH": "/usr/bin:/bin"},
            limits=Limits(timeout_seconds=10),
            jail=jail,
        )
        result = LocalExecutor().run(job)
        if not result.succeeded:
            return f"the probe failed: {result.steps[-1].output.strip()}"
        return None if (source / "file").read_text() == "kept" else "the overlay wrote through to its lower layer"
    except BuildError as error:
        return str(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
