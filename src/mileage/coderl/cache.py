"""Verdicts by content: a candidate that leaves the same tree is not built twice, whatever its diff looked like.

A verdict of the compiler is a property of the content and kept at once. A verdict of tests may be luck: it is kept when
it has been seen a few times without another one in between, and never when the content has had two different ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mileage.coderl.patching import PatchVerdict
from mileage.coderl.sandbox.executor import Change
from mileage.errors import LedgerError

# A verdict that depends on how busy the machine was is not a property of the content.
CACHED = frozenset({PatchVerdict.PASS, PatchVerdict.COMPILE_ERROR, PatchVerdict.TEST_FAILURE})
# Where packages of the system are listed: another list may mean other headers and libraries.
PACKAGE_LISTS = (
    "/var/lib/dpkg/status",
    "/lib/apk/db/installed",
    "/var/lib/rpm/rpmdb.sqlite",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/var/lib/pacman/local",
)


def context_key(
    revision: str,
    steps: Sequence[Sequence[str]],
    fingerprint: Mapping[str, str],
    rules: Mapping[str, object] | None = None,
) -> str:
    """A hash of all that decides a verdict besides the candidate; `rules` are limits, isolation and the like."""
    data = json.dumps(
        [revision, [list(step) for step in steps], dict(fingerprint), dict(rules or {})], sort_keys=True, default=str
    )
    return hashlib.sha256(data.encode("utf-8", "surrogateescape")).hexdigest()


def machine_rows(commands: Iterable[Sequence[str]], env: Mapping[str, str]) -> dict[str, str]:
    """What of this machine can change a verdict: its tools, told apart by more than their version, and its packages."""
    rows = {"machine": platform.machine(), "libc": " ".join(platform.libc_ver())}
    for command in commands:
        path = shutil.which(command[0], path=env.get("PATH")) if command else None
        if path:
            rows[f"tool.{command[0]}"] = _identity(os.path.realpath(path))
    rows |= {f"packages.{path}": _identity(path) for path in PACKAGE_LISTS if os.path.exists(path)}
    return rows


def _identity(path: str) -> str:
    info = os.stat(path)
    return f"{path} {info.st_size} {info.st_mtime_ns}"


def content_key(context: str, changes: Sequence[Change]) -> str:
    """The key of a candidate: its context and the files it leaves behind, in order of their names."""
    digest = hashlib.sha256(context.encode())
    for change in sorted(changes, key=lambda change: change.path):
        name = change.path.encode("utf-8", "surrogateescape")
        body = b"\0deleted" if change.content is None else hashlib.sha256(change.content).digest()
        digest.update(b"%d:%b%b%d" % (len(name), name, body, change.executable))
    return digest.hexdigest()


@dataclass(frozen=True)
class _Row:
    verdict: str
    details: str
    seen: int
    flaky: bool


class ResultCache:
    """Verdicts in memory, and in a SQLite file where one is given; safe to use from several threads."""

    def __init__(self, path: Path | None = None, confirmations: int = 1) -> None:
        """Keep verdicts of tests when they were seen `confirmations` times."""
        self._lock = threading.Lock()
        self._confirmations = confirmations
        try:
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None, timeout=30)
            self._db.execute("PRAGMA journal_mode=WAL")
            # An earlier table, `verdict`, had neither counts nor all of the context in its keys: it is left alone.
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS judgement "
                "(key TEXT PRIMARY KEY, verdict TEXT, details TEXT, seen INTEGER, flaky INTEGER)"
            )
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"the result cache {path} cannot be opened: {error}") from None

    def get(self, key: str) -> tuple[PatchVerdict, str] | None:
        """The verdict and its details, if they are known for good."""
        with self._lock:
            row = self._row(key)
        if row is None or row.flaky or row.seen < self._needed(PatchVerdict(row.verdict)):
            return None
        return PatchVerdict(row.verdict), row.details

    def put(self, key: str, verdict: PatchVerdict, details: str) -> None:
        """Take note of a verdict, unless it says more about the machine than about the content."""
        if verdict not in CACHED:
            return
        text = details.encode("utf-8", "backslashreplace").decode()
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                known = self._row(key)
                flaky = known is not None and (known.flaky or known.verdict != str(verdict))
                seen = known.seen + 1 if known else 1
                self._db.execute(
                    "INSERT OR REPLACE INTO judgement VALUES (?, ?, ?, ?, ?)", (key, str(verdict), text, seen, flaky)
                )
            finally:
                self._db.execute("COMMIT")

    def _needed(self, verdict: PatchVerdict) -> int:
        return 1 if verdict is PatchVerdict.COMPILE_ERROR else self._confirmations

    def _row(self, key: str) -> _Row | None:
        found = self._db.execute("SELECT verdict, details, seen, flaky FROM judgement WHERE key = ?", (key,)).fetchone()
        return _Row(found[0], found[1], found[2], bool(found[3])) if found else None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
