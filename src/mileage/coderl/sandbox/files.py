"""A job's tree, and mounts. Part of the launcher: the standard library alone.

Part of the launcher: the standard library alone.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import fnmatch
import glob
import os
import shutil
import stat
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from mileage.records import Record


# --- Mounting, by system calls. Part of the launcher: the standard library alone ---
_LIBC = ctypes.CDLL(None, use_errno=True)
# From sys/mount.h and linux/mount.h.
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
SYS_MOUNT_SETATTR = 442
AT_RECURSIVE = 0x8000


class _MountAttr(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


def check(result: int, what: str) -> None:
    """Raise what the last system call said, unless it succeeded."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount a file system, or with a flag change or bind one."""
    form = kind.encode() if kind else None
    check(_LIBC.mount(source.encode(), target.encode(), form, flags, data.encode() or None), f"mount {target}")


def bind_read_only(source: str, target: str) -> None:
    """Show `source` at `target`, unchangeable, with everything mounted below it."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a"):
            pass
    mount(source, target, None, MS_BIND | MS_REC)
    attr = _MountAttr(MS_RDONLY | MS_NOSUID, 0, 0, 0)
    where = (-100, target.encode(), AT_RECURSIVE)
    result = _LIBC.syscall(SYS_MOUNT_SETATTR, *where, ctypes.byref(attr), ctypes.sizeof(attr))
    check(result, f"make {target} read-only")


# Where an isolated job's process 1 finds protected paths as they were.
JUDGE = "/mileage/judge"
MOST_REPORTS, REPORT_BYTES = 1000, 8 << 20


def write_changes(tree: str, changes: list[Record]) -> None:
    """Write and delete files below `tree`; no path component may be a symbolic link."""
    for change in changes:
        *parents, name = change["path"].split("/")
        directory = os.open(tree, os.O_DIRECTORY | os.O_RDONLY)
        try:
            for part in parents:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=directory)
                inner = os.open(part, os.O_DIRECTORY | os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
                os.close(directory)
                directory = inner
            mode = 0o644
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode & 0o777
                # A new file, never a write into the old one: the old one may be shared by hard links.
                os.unlink(name, dir_fd=directory)
            if change["content"] is not None:
                file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, change.get("mode") or mode, dir_fd=directory)
                with os.fdopen(file, "wb") as stream:
                    stream.write(base64.b64decode(change["content"]))
        finally:
            os.close(directory)


def renew_sources(tree: str, renewed: list[str], removed: list[str]) -> None:
    """Make everything that was built of `renewed` stale; a file shared by hard links gets a time of its own."""
    for name in renewed:
        path = f"{tree}/{name}"
        with contextlib.suppress(OSError):
            info = os.lstat(path)
            if not stat.S_ISREG(info.st_mode):
                continue
            if info.st_nlink > 1:
                shutil.copy(path, path + ".renewed")
                os.rename(path + ".renewed", path)
            os.utime(path)
    for name in removed:
        with contextlib.suppress(OSError):
            os.unlink(f"{tree}/{name}")


class Judging:
    """Keeps what judges a candidate out of its reach: protected paths, the grader's own tests, reports.

    `source` holds protected paths as they were. Before the first test they are restored, new files that match a
    protected pattern go, and the grader's tests are added; from then on all of these are read-only in an isolated job.
    """

    def __init__(self, job: Record, isolated: bool) -> None:
        rules = job["judging"] or {}
        self.tree: str = job["cwd"]
        self.source: str = JUDGE if isolated else rules.get("source", "")
        self.paths: list[str] = rules.get("paths", [])
        self.patterns: list[str] = rules.get("patterns", [])
        self.outputs: list[str] = rules.get("outputs", [])
        self.tests: list[Record] = rules.get("tests", [])
        self.reports: list[str] = rules.get("reports", [])
        self.step: int = rules.get("step", -1)
        self.isolated = isolated

    def before_tests(self) -> None:
        """Bring the tests back to what they are to be; no process of the job is alive."""
        for path in self.paths:
            _restore(f"{self.source}/{path}", f"{self.tree}/{path}")
        for path in self._strays():
            os.unlink(path)
        write_changes(self.tree, self.tests)
        for path in self._report_files():
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self.isolated:
            inside = tuple(path + "/" for path in self.paths)
            alone = [test["path"] for test in self.tests if not test["path"].startswith(inside)]
            for path in (*self.paths, *alone):
                _lock_path(f"{self.tree}/{path}")

    def _strays(self) -> list[str]:
        """Files that match a protected pattern and were not there."""
        found: list[str] = []
        wild = [pattern for pattern in self.patterns if any(mark in pattern for mark in "*?[")]
        wild += [pattern for pattern in self.patterns if not os.path.lexists(f"{self.source}/{pattern}")]
        for directory, names, files in os.walk(self.tree) if wild else ():
            here = os.path.relpath(directory, self.tree)
            prefix = "" if here == "." else here + "/"
            names[:] = [name for name in names if not _matches(prefix + name, self.outputs)]
            links = [name for name in names if os.path.islink(f"{directory}/{name}")]
            for name in (*files, *links):
                path = prefix + name
                if _matches(path, wild) and not os.path.lexists(f"{self.source}/{path}"):
                    found.append(f"{directory}/{name}")
        return found

    def _report_files(self) -> list[str]:
        found = [name for pattern in self.reports for name in glob.iglob(f"{self.tree}/{pattern}", recursive=True)]
        return sorted(set(found))

    def read_reports(self) -> dict[str, str]:
        """What the tests wrote about themselves, up to a total size."""
        read: dict[str, str] = {}
        left = REPORT_BYTES
        for name in self._report_files()[:MOST_REPORTS]:
            with contextlib.suppress(OSError), _open_regular(name) as file:
                data = file.read(left + 1)
                left -= len(data)
                if left < 0:
                    break
                read[os.path.relpath(name, self.tree)] = data.decode("utf-8", "replace")
        return read

    def tampered(self) -> list[str]:
        """The protected paths, and tests of the grader, that are not what they were when the tests began."""
        wrong = [path for path in self.paths if not _same(f"{self.source}/{path}", f"{self.tree}/{path}", self.tests)]
        for test in self.tests:
            try:
                with _open_regular(f"{self.tree}/{test['path']}") as file:
                    same = file.read() == base64.b64decode(test["content"] or "")
            except OSError:
                same = False
            if not same:
                wrong.append(test["path"])
        return wrong


def _matches(path: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) or path.startswith(pattern + "/") for pattern in patterns)


def _open_regular(path: str) -> IO[bytes]:
    """Open a file to read it; not a link, a pipe or a device."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def _lock_path(path: str) -> None:
    """Make a path unchangeable, with all below it."""
    if os.path.lexists(path) and not os.path.islink(path):
        bind_read_only(path, path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _restore(source: str, target: str) -> None:
    """Make `target` what `source` is; a file that was changed is new, so that what was built of it is stale."""
    if os.path.islink(source):
        if not os.path.islink(target) or os.readlink(target) != os.readlink(source):
            _remove(target)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        if os.path.islink(target) or not os.path.isdir(target):
            _remove(target)
            os.makedirs(target)
        names = os.listdir(source)
        for name in set(os.listdir(target)) - set(names):
            _remove(f"{target}/{name}")
        for name in names:
            _restore(f"{source}/{name}", f"{target}/{name}")
    elif not _same(source, target, []):
        _remove(target)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(source, target)


def _same(source: str, target: str, added: list[Record]) -> bool:
    """Whether `target` holds what `source` does, apart from the files that were `added`."""
    if os.path.islink(source) or os.path.islink(target):
        return os.path.islink(source) and os.path.islink(target) and os.readlink(source) == os.readlink(target)
    try:
        if os.path.isdir(source):
            names = os.listdir(source)
            return all(_same(f"{source}/{name}", f"{target}/{name}", added) for name in names)
        if any(target.endswith("/" + test["path"]) for test in added):
            return True
        with _open_regular(source) as one, _open_regular(target) as two:
            return one.read() == two.read()
    except OSError:
        return False
