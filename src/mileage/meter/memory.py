"""Resident memory of a process and all its descendants, read from /proc cheaply enough to be read often."""

from __future__ import annotations

import os
import re
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PPID_AFTER_NAME = 1


class ProcessTree:
    """Reads the resident memory of `pid` and its descendants; `proc` is the mounted process file system.

    Pages that a child shares with its parent count for both, as in every sum of resident set sizes.
    """

    def __init__(self, pid: int | None = None, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._root = os.getpid() if pid is None else pid
        self._files: dict[int, int] = {}
        self._parents: dict[int, int] = {}
        self._newest_pid = b""
        self._load: int | None = None
        self._open(self._root)

    def rss_bytes(self) -> int:
        """Sum over the known processes; one that has ended is forgotten."""
        total = 0
        for pid, file in list(self._files.items()):
            try:
                total += int(os.pread(file, 256, 0).split()[1]) * _PAGE
            except (OSError, IndexError, ValueError):
                self._close(pid)
        return total

    def changed(self) -> bool:
        """Whether any process or thread was started on this machine since the last call (a reason to look again)."""
        # The file stays open: every call into the system lets a training thread take the interpreter away from here.
        try:
            if self._load is None:
                self._load = os.open(self._proc / "loadavg", os.O_RDONLY | os.O_CLOEXEC)
            newest = os.pread(self._load, 256, 0).split()[-1]
        except (OSError, IndexError):
            return True
        changed = newest != self._newest_pid
        self._newest_pid = newest
        return changed

    def discover(self) -> None:
        """Look for descendants that were started since the last time; processes seen before are not read again."""
        present = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        self._parents = {pid: parent for pid, parent in self._parents.items() if pid in present}
        for pid in present - self._parents.keys():
            try:
                with open(self._proc / str(pid) / "stat", "rb") as file:
                    self._parents[pid] = int(file.read().rpartition(b")")[2].split()[_PPID_AFTER_NAME])
            except (OSError, IndexError, ValueError):
                continue  # It ended while we looked.
        for pid in self._descendants() - self._files.keys():
            self._open(pid)

    def _descendants(self) -> set[int]:
        children: dict[int, list[int]] = {}
        for pid, parent in self._parents.items():
            children.setdefault(parent, []).append(pid)
        found: set[int] = set()
        waiting = [self._root]
        while waiting:
            pid = waiting.pop()
            if pid not in found:
                found.add(pid)
                waiting.extend(children.get(pid, ()))
        return found

    def close(self) -> None:
        """Release all files."""
        for pid in list(self._files):
            self._close(pid)
        if self._load is not None:
            os.close(self._load)
            self._load = None

    def _open(self, pid: int) -> None:
        try:
            self._files[pid] = os.open(self._proc / str(pid) / "statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return

    def _close(self, pid: int) -> None:
        file = self._files.pop(pid, None)
        if file is not None:
            os.close(file)


def peak_rss_bytes(status: str | None = None) -> int:
    """The kernel's own record of this process's highest resident memory, from the text of /proc/self/status."""
    text = Path("/proc/self/status").read_text() if status is None else status
    found = re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise ValueError("no VmHWM in /proc/self/status")
    return int(found[1]) * 1024
