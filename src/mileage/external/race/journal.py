"""The journal of a race: one line of JSON for everything that happens, on disk before the next thing does.

The ledger has what attempts took; the journal has which run is which attempt. Together they are the state of a race:
one that was killed at any instant goes on from them, counts no attempt twice and leaves none out.

Format history (`FORMAT`, in the first line):
    1  first format
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

from mileage.errors import UsageError
from mileage.measure import Outcome, Sample
from mileage.records import ReadRecord, Record, strict_json

FORMAT = 1
FILE = "race.jsonl"
LEDGER = "ledger.db"


@dataclass(frozen=True)
class Attempt(Sample):
    """One attempt of an arm; its seconds are those to the target, or to its end without one."""

    seed: int = 0
    run_id: str = ""
    """In the race's ledger."""
    spent_seconds: float = 0.0
    """Wall-clock of the whole attempt."""
    spent_usd: float = 0.0
    counted: bool = True
    """False for one that the race cut short: it is repeated, and what it cost is remembered."""
    about: ReadRecord = field(default_factory=dict)
    """What the program said of itself: framework, version, threads."""

    def as_dict(self) -> Record:
        """Plain data."""
        return dict(vars(self))


@dataclass(frozen=True)
class AttemptBegun:
    """An attempt that has a beginning and no end: its race was killed."""

    arm: str
    round: int
    seed: int
    order: int
    mark: str
    """Names the attempt in the environment of its processes."""
    at: float


class Journal:
    """The journal in a race's directory, opened by one race at a time."""

    def __init__(self, directory: Path) -> None:
        """Open it; what a kill has left half written is cut off."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = (directory / FILE).open("a+b")
        except OSError as error:
            raise UsageError(f"{directory} cannot be used for a race: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(f"{directory} is in use: another race runs there") from None
        self.path = directory / FILE
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._file.truncate(len(whole))
        self.lines = parsed(whole, self.path)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, event: str, **facts: object) -> None:
        """Add a line; it is on disk when this returns."""
        line: Record = {"at": time.time(), **facts, "event": event}
        self._file.write(strict_json(line, sort_keys=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines.append(line)

    @property
    def head(self) -> ReadRecord | None:
        """The first line: which race this is; None in a new journal."""
        return self.lines[0] if self.lines else None

    def attempts(self) -> list[Attempt]:
        """All attempts that have ended, those included that do not count."""
        return ended(self.lines)

    def unfinished(self) -> AttemptBegun | None:
        """The attempt that was under way when the race was killed."""
        begun: AttemptBegun | None = None
        for line in self.lines:
            if line["event"] == "begin":
                begun = AttemptBegun(*(line[name] for name in ("arm", "round", "seed", "order", "mark", "at")))
            elif line["event"] == "end":
                begun = None
        return begun


def parsed(data: bytes, path: Path) -> list[Record]:
    """The lines of a journal; UsageError if it is none."""
    lines: list[Record] = []
    for number, text in enumerate(data.splitlines(), 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not isinstance(line.get("event"), str):
            raise UsageError(f"line {number} of {path} is not of a race's journal")
        lines.append(line)
    if lines and (lines[0]["event"] != "race" or lines[0].get("format") != FORMAT):
        raise UsageError(f"{path} is not the journal of a race of format {FORMAT}")
    return lines


def read_lines(directory: Path) -> list[Record]:
    """The lines of the journal in `directory`, whoever has it open."""
    path = directory / FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    lines = parsed(data[: data.rfind(b"\n") + 1], path)
    if not lines:
        raise UsageError(f"{path} is empty: no race has begun there")
    return lines


def ended(lines: Sequence[ReadRecord]) -> list[Attempt]:
    """The attempts of a journal's lines; UsageError if one was counted twice."""
    found: list[Attempt] = []
    seen: set[tuple[str, int]] = set()
    for line in lines:
        if line["event"] != "end":
            continue
        try:
            values = {name: line[name] for name in Attempt.__dataclass_fields__}
            attempt = Attempt(**(values | {"outcome": Outcome(values["outcome"])}))
        except (KeyError, ValueError, TypeError):
            raise UsageError("a line of the race's journal does not say what an attempt came to") from None
        if attempt.counted:
            if (attempt.arm, attempt.seed) in seen:
                raise UsageError(f"the journal counts seed {attempt.seed} of arm {attempt.arm!r} twice")
            seen.add((attempt.arm, attempt.seed))
        found.append(attempt)
    return found
