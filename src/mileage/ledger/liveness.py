"""Is the process that launched a run still there?

A process id alone is reused, so a process is known by its host, its id and a token: boot id and start time. A process
on another host cannot be asked; its heartbeat has to speak for it.
"""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

STALE_AFTER_SECONDS = 600.0
"""A run on another host is taken for dead when its heartbeat is older than this."""


@functools.cache
def host_name() -> str:
    """This machine's name."""
    return socket.gethostname()


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def process_token(pid: int) -> str | None:
    """What tells process `pid` from all others that ever had its id, or None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return _psutil_token(pid) if not Path("/proc/self").exists() else None
    except OSError:
        return None
    # The command name is in parentheses and may itself contain some: the fields count from the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{_boot_id()}:{fields[19].decode('ascii')}"


def _psutil_token(pid: int) -> str | None:
    import psutil  # only where there is no /proc

    try:
        return f"psutil:{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return None


def own_token() -> str:
    """The token of this process."""
    return process_token(os.getpid()) or ""


def is_alive(host: str, pid: int, token: str) -> bool | None:
    """Whether the process runs; None if it belongs to another host and cannot be asked."""
    if host != host_name():
        return None
    return process_token(pid) == token
