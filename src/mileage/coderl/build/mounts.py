"""Mounting, by system calls. Part of the launcher: the standard library alone."""

from __future__ import annotations

import ctypes
import os

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
