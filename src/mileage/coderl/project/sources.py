"""What of a project's directory is the project: the files a cold build starts from, and their history.

In a git work tree these are the tracked files, as they are on disk, and the few others that the build system reads
(lock files, configuration, installed packages). An object file that the user once built is none of them.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from mileage.coderl.project.model import CONFIG_NAME, Project
from mileage.coderl.project.workarea import CopyMethod, copy_tree, remove_tree

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
