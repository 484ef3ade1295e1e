"""Verdicts by content: a candidate that leaves the same tree is not built twice, whatever its diff looked like."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from mileage._errors import LedgerError
from mileage.coderl.build.executor import Change
from mileage.coderl.corpus import PatchVerdict

# A verdict that depends on how busy the machine was is not a property of the content.
CACHED = frozenset({PatchVerdict.PASS, PatchVerdict.COMPILE_ERROR, PatchVerdict.TEST_FAILURE})


def context_key(revision: str, steps: Sequence[Sequence[str]], fingerprint: Mapping[str, str]) -> str:
    """A hash of all that decides a verdict besides the candidate."""
    data = json.dumps([revision, [list(step) for step in steps], dict(fingerprint)], sort_keys=True)
    return hashlib.sha256(data.encode("utf-8", "surrogateescape")).hexdigest()


def content_key(context: str, changes: Sequence[Change]) -> str:
    """The key of a candidate: its context and the files it leaves behind, in order of their names."""
    digest = hashlib.sha256(context.encode())
    for change in sorted(changes, key=lambda change: change.path):
        name = change.path.encode("utf-8", "surrogateescape")
        body = b"\0deleted" if change.content is None else hashlib.sha256(change.content).digest()
        digest.update(b"%d:%b%b%d" % (len(name), name, body, change.executable))
    return digest.hexdigest()


class ResultCache:
    """Verdicts in memory, and in a SQLite file where one is given; safe to use from several threads."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        try:
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None, timeout=30)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS verdict (key TEXT PRIMARY KEY, verdict TEXT, diagnostic TEXT)")
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"the result cache {path} cannot be opened: {error}") from None

    def get(self, key: str) -> tuple[PatchVerdict, str] | None:
        """The verdict and diagnostic of a key, if known."""
        with self._lock:
            row = self._db.execute("SELECT verdict, diagnostic FROM verdict WHERE key = ?", (key,)).fetchone()
        return (PatchVerdict(row[0]), row[1]) if row else None

    def put(self, key: str, verdict: PatchVerdict, diagnostic: str) -> None:
        """Keep a verdict, unless it says more about the machine than about the content."""
        if verdict in CACHED:
            with self._lock:
                self._db.execute("INSERT OR REPLACE INTO verdict VALUES (?, ?, ?)", (key, str(verdict), diagnostic))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
