"""Where builds happen: copies of the files that are the project, gone when the run ends.

Each run holds a lock on its directory. The kernel drops the lock when the process dies, however it dies, so the next
run can tell what was left behind and remove it.

In a git work tree these are the tracked files, as they are on disk, and the few others that the build system reads
(lock files, configuration, installed packages). An object file that the user once built is none of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import platformdirs

from mileage.coderl.projects.systems import CONFIG_NAME, Project
from mileage.errors import BuildError, UsageError
from mileage.ledger.address import is_opened

LOCK_NAME = "owner.lock"
PREFIX = "run-"
# linux/fs.h: _IOW(0x94, 9, int)
FICLONE = 0x40049409
SMALLEST_LINKED_BYTES = 16 * 1024
SKIPPED = frozenset({".git", ".hg", ".svn"})


class CopyMethod(StrEnum):
    """How files were copied; a reflink shares blocks on disk until one side is written."""

    REFLINK = "reflink"
    COPY = "copy"


class WorkArea:
    """A locked directory for one run; a context manager that removes it at the end."""

    def __init__(self, base: Path | None = None) -> None:
        self.base = base or Path(os.environ.get("MILEAGE_WORK") or platformdirs.user_cache_path("mileage") / "rl-bench")
        self.base.mkdir(parents=True, exist_ok=True)
        self.removed_leftovers = remove_leftovers(self.base)
        # It gets a name that counts as a run's only when it is locked, or another run could take it for a leftover.
        made = Path(tempfile.mkdtemp(prefix="new-", dir=self.base))
        self._lock = _try_lock(made / LOCK_NAME)
        if self._lock is None:
            raise BuildError(f"the work directory {made} cannot be locked: set MILEAGE_WORK to a local disk")
        self.path = made.with_name(made.name.replace("new-", PREFIX, 1))
        made.rename(self.path)

    def __enter__(self) -> WorkArea:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def directory(self, name: str) -> Path:
        """A new empty directory of the run."""
        path = self.path / name
        path.mkdir(parents=True)
        return path

    def close(self) -> None:
        """Remove everything of the run."""
        remove_tree(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock on `path`, or None if another process does."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def remove_leftovers(base: Path) -> int:
    """Remove the directories of runs that died; return how many there were."""
    count = 0
    for path in base.glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            lock = _try_lock(path / LOCK_NAME)
            if lock is not None:
                remove_tree(path)
                os.close(lock)
                count += 1
    return count


def remove_tree(path: Path) -> None:
    """Remove a directory even if a build made parts of it unwritable."""

    def make_writable(function: object, name: str, error: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(name), 0o700)
            if os.path.isdir(name) and not os.path.islink(name):
                os.chmod(name, 0o700)
                shutil.rmtree(name, ignore_errors=True)
            else:
                os.unlink(name)

    shutil.rmtree(path, onerror=make_writable)


def clean_outputs(tree: Path, patterns: Iterable[str]) -> None:
    """Remove what builds made below `tree`."""
    for pattern in patterns:
        check_output_pattern(pattern)
        for path in list(tree.glob(pattern)):
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.is_dir():
                remove_tree(path)


def check_output_pattern(pattern: str) -> None:
    """Refuse an output pattern that could reach outside the copy or be all of it."""
    if pattern.startswith("/") or ".." in Path(pattern).parts or pattern.strip("/.") in ("", "*", "**"):
        raise UsageError(f"output {pattern!r} is not a path inside the project: name what the build makes")


def _skips(tree: Path, outputs: Iterable[str]) -> set[Path]:
    skipped: set[Path] = set()
    for pattern in outputs:
        check_output_pattern(pattern)
        skipped.update(tree.glob(pattern))
    return skipped


def walk_files(
    tree: Path, outputs: Iterable[str] = (), *, history: bool = False
) -> Iterator[tuple[str, os.stat_result]]:
    """Each file, link and directory of a tree in order, without outputs and (unless asked) version control.

    A ledger that is being written inside the tree is no part of it.
    """
    skipped = _skips(tree, outputs)
    unwanted = frozenset[str]() if history else SKIPPED
    for directory, names, files in os.walk(tree):
        here = Path(directory)
        links = [name for name in names if (here / name).is_symlink()]
        names[:] = sorted(
            name for name in names if name not in unwanted and name not in links and here / name not in skipped
        )
        for name in sorted([*names, *files, *links]):
            path = here / name
            if path not in skipped and name not in unwanted and not is_opened(path):
                yield str(path.relative_to(tree)), path.lstat()


def copy_tree(
    source: Path,
    target: Path,
    outputs: Iterable[str] = (),
    wanted: Callable[[str], bool] | None = None,
    *,
    history: bool = False,
) -> CopyMethod:
    """Copy a tree, file times included; share blocks where the file system can, never inodes.

    Outputs of earlier builds and (without `history`) version-control directories stay behind, and so does each file
    that is not `wanted`. A link that points out of the tree stays a link; sockets, pipes and devices stay behind.
    """
    method = CopyMethod.REFLINK
    target.mkdir(parents=True, exist_ok=True)
    directories: list[tuple[Path, os.stat_result]] = [(target, source.stat())]
    for name, info in walk_files(source, outputs, history=history):
        goal = target / name
        if stat.S_ISDIR(info.st_mode):
            goal.mkdir(exist_ok=True)
            directories.append((goal, info))
        elif wanted is not None and not wanted(name):
            continue
        elif stat.S_ISLNK(info.st_mode):
            goal.symlink_to(os.readlink(source / name))
        elif stat.S_ISREG(info.st_mode) and not _copy_file(source / name, goal, info, method):
            method = CopyMethod.COPY
    for path, info in reversed(directories):
        if wanted is not None and path != target and not any(path.iterdir()):
            path.rmdir()
            continue
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        path.chmod(info.st_mode & 0o777 | 0o700)
    return method


def _copy_file(source: Path, target: Path, info: os.stat_result, method: CopyMethod) -> bool:
    """Copy one file; return whether it shares its blocks with the original."""
    cloned = False
    with source.open("rb") as reader, target.open("xb") as writer:
        if method is CopyMethod.REFLINK:
            with contextlib.suppress(OSError):
                fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
                cloned = True
        if not cloned:
            shutil.copyfileobj(reader, writer, 1 << 20)
    target.chmod(info.st_mode & 0o777 | 0o200)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    return cloned


def link_tree(source: Path, target: Path) -> None:
    """Copy a tree by hard links, file times included; small files are copied.

    Build tools rewrite their small bookkeeping files in place and replace the large ones; a linked file that is
    rewritten in place would change on both sides.
    """
    target.mkdir(parents=True)
    directories: list[tuple[Path, os.stat_result]] = [(target, source.stat())]
    for directory, names, files in os.walk(source):
        here = Path(directory)
        there = target / here.relative_to(source)
        for name in names:
            if (here / name).is_symlink():
                os.link(here / name, there / name, follow_symlinks=False)
            else:
                (there / name).mkdir()
                directories.append((there / name, (here / name).stat()))
        for name in files:
            info = (here / name).lstat()
            if stat.S_ISREG(info.st_mode) and info.st_size < SMALLEST_LINKED_BYTES:
                _copy_file(here / name, there / name, info, CopyMethod.COPY)
            else:
                os.link(here / name, there / name, follow_symlinks=False)
    for path, info in reversed(directories):
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def tree_digest(tree: Path, outputs: Iterable[str] = ()) -> str:
    """A hash of the names, kinds and contents of a tree, without its outputs."""
    digest = hashlib.sha256()
    for name, info in walk_files(tree, outputs):
        digest.update(
            f"{name}\0{stat.S_IFMT(info.st_mode)}\0{info.st_mode & 0o111}\0".encode("utf-8", "surrogateescape")
        )
        if stat.S_ISREG(info.st_mode):
            with (tree / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        elif stat.S_ISLNK(info.st_mode):
            digest.update(os.readlink(tree / name).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


# --- What of a project's directory is the project: the files a cold build starts from, and their history ---
# ELF, static archives, Java classes and Mach-O: what a compiler wrote, in a tree whose build system does not say so.
_COMPILED = (b"\x7fELF", b"!<arch>\n", b"\xca\xfe\xba\xbe", b"\xcf\xfa\xed\xfe")
_SHOWN = 3


@dataclass(frozen=True)
class Copy:
    """A project's files in a place of their own."""

    method: CopyMethod
    notes: tuple[str, ...]
    readable: tuple[str, ...] = ()
    """Paths outside the copy that its git directory refers to."""


def copy_project(project: Project, target: Path, *, history: bool) -> Copy:
    """Copy what a cold build of `project` may start from; with `history`, git commands work in the copy."""
    tracked = tracked_files(project.root)
    skipped: list[str] = []
    known = (*project.inputs, *project.lock_files, *project.config_files, CONFIG_NAME)
    blind = not project.outputs and not project.clean

    def wanted(name: str) -> bool:
        if tracked is not None:
            inside = name in tracked or any(name == path or name.startswith(path + "/") for path in known)
        else:
            inside = not (blind and _is_compiled(project.root / name))
        if not inside:
            skipped.append(name)
        return inside

    method = copy_tree(project.root, target, project.outputs, wanted)
    notes = (_note(project, tracked is not None, skipped),)
    readable = make_git_directory(project.root, target) if history and tracked is not None else ()
    return Copy(method, notes, readable)


def _note(project: Project, has_git: bool, skipped: list[str]) -> str:
    shown = ", ".join(sorted(skipped)[:_SHOWN]) + (" and others" if len(skipped) > _SHOWN else "")
    if has_git:
        left = (
            f"; {len(skipped)} others were left behind ({shown}): `git add` or `inputs` keeps them" if skipped else ""
        )
        return f"cold builds start from the files that git tracks{left}"
    without = "the declared outputs" if project.outputs else "what its clean step removes" if project.clean else ""
    if without:
        return f"the project is not in git: cold builds start from all its files without {without}"
    left = f", {len(skipped)} of them ({shown})" if skipped else ""
    return f"the project is not in git and declares no outputs: cold builds start without compiled files{left}"


def _is_compiled(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(8).startswith(_COMPILED)
    except OSError:
        return False


def _git(root: Path, *words: str) -> str | None:
    """What a git command prints; None if it fails or git is not there."""
    command = ("git", "--no-optional-locks", "-C", str(root), *words)
    try:
        done = subprocess.run(command, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None


def tracked_files(root: Path) -> frozenset[str] | None:
    """The files below `root` that git tracks, submodules included; None where it tracks none."""
    listed = _git(root, "ls-files", "-z", "--cached", "--recurse-submodules")
    names = frozenset(name for name in (listed or "").split("\0") if name)
    return names or None


def make_git_directory(root: Path, target: Path) -> tuple[str, ...]:
    """Give a copy a git directory of its own, which borrows the original's objects; the paths that it reads there.

    Nothing is written into the original. A project below the root of its repository gets none.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top.rstrip("\n")).resolve() != root.resolve():
        return ()
    clone = target.with_name(target.name + ".git-clone")
    cloned = _git(root, "clone", "--quiet", "--shared", "--no-checkout", "--template=", str(root), str(clone))
    if cloned is None or _git(clone, "reset", "--quiet") is None:
        if clone.exists():
            remove_tree(clone)
        return ()
    (clone / ".git").rename(target / ".git")
    remove_tree(clone)
    return tuple(filter(None, (target / ".git" / "objects" / "info" / "alternates").read_text().splitlines()))
