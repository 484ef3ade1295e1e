"""Is the process that launched a run still there?

A process id alone is reused, and means something only within its namespace: a container counts its own. So a process is
known by its host, its id and a token: boot id, start time and namespace. A process on another host, of another boot or
in another namespace cannot be asked, whatever its host is called; its heartbeat has to speak for it.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

STALE_AFTER_SECONDS = 600.0
"""A run on another host is taken for dead when its heartbeat is older than this."""
STALE_NEARBY_SECONDS = 120.0
"""The same for a run under this host's name that cannot be asked: in another container, or before a reboot."""


@functools.cache
def host_name() -> str:
    """This machine's name."""
    return os.uname().nodename


@functools.cache
def user_name() -> str:
    """Who runs this process."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@functools.cache
def _namespace() -> str:
    """What tells the process ids that this process sees from those that another container sees."""
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]")
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
    return f"{_boot_id()}:{fields[19].decode('ascii')}:{_namespace()}"


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
    """Whether the process runs; None if it belongs elsewhere and cannot be asked."""
    if host != host_name():
        return None
    boot, *others = token.split(":")
    if len(others) == 2 and (boot, others[1]) != (_boot_id(), _namespace()):
        return None
    mine = process_token(pid)
    # Tokens of earlier versions have no namespace.
    return mine is not None and mine.split(":")[: 1 + len(others)] == [boot, *others]


def stale_after(host: str) -> float:
    """Seconds without a heartbeat after which a process that cannot be asked is taken for dead."""
    return STALE_NEARBY_SECONDS if host == host_name() else STALE_AFTER_SECONDS
