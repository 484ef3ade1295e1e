"""The git revision of the working directory, without making training wait."""

from __future__ import annotations

import subprocess
from pathlib import Path

_TIMEOUT_SECONDS = 2.0


def git_revision(directory: Path | None = None) -> str | None:
    """The commit `directory` is at, with `+dirty` if tracked files have changed; None outside a repository."""
    directory = Path.cwd() if directory is None else directory
    if not any((parent / ".git").exists() for parent in (directory, *directory.parents)):
        return None
    command = ["git", "-C", str(directory), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
