"""Candidate patches: read, applied without ever leaving the tree, and the verdicts on them.

A patch is turned into the final content of each file it touches before anything runs: the tree is only read. Hunks
must match exactly, at their line or at the nearest other place (as `git apply` does). There is no fuzz in what they
say; with `fuzzy` there is in how many lines they claim to have.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from mileage.coderl.patches import MAX_CHARACTERS, FilePatch, Hunk, PatchError, parse_diff, shown, split_lines
from mileage.coderl.sandbox.executor import BuildResult, Change, StepOutcome, first_diagnostic
from mileage.errors import UsageError

__all__ = ["PatchError", "apply_diff", "check_path", "replace_file"]

# What Linux file systems take; a name is measured in bytes.
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 1024
MAX_DEPTH = 64
MAX_FILE_BYTES = 16 << 20
# Content read and written over all file sections, so that a patch of many sections for one large file ends.
MAX_TOTAL_BYTES = 32 << 20
# Lines compared in search of a place for hunks that are not where they say; about a second.
MAX_COMPARISONS = 2_000_000


def check_path(path: str, tree: Path, protected: Sequence[str] = ()) -> str:
    """`path` normalised, if a patch may touch it in `tree`; PatchError otherwise."""
    if not isinstance(path, str):
        raise PatchError(f"unsafe path {shown(str(path))}: not a text")
    _check_length(path)
    pure = PurePosixPath(path)
    if pure.is_absolute() or path.startswith("\\") or (len(path) > 1 and path[1] == ":"):
        raise PatchError(f"unsafe path {shown(path)}: absolute")
    if ".." in pure.parts:
        raise PatchError(f"unsafe path {shown(path)}: leaves the tree")
    if not pure.parts or "\0" in path:
        raise PatchError(f"unsafe path {shown(path)}: not a file name")
    if ".git" in pure.parts:
        raise PatchError(f"unsafe path {shown(path)}: inside a git directory")
    normal = str(pure)
    for name, mode in _existing(normal, tree):
        if stat.S_ISLNK(mode):
            raise PatchError(f"unsafe path {shown(path)}: {shown(name)} is a symbolic link")
    for pattern in protected:
        if fnmatch(normal, pattern) or normal.startswith(pattern.rstrip("/") + "/"):
            raise PatchError(f"protected path {shown(normal)}: patches may not change {pattern!r}")
    return normal


def _existing(path: str, tree: Path) -> Iterator[tuple[str, int]]:
    """The path itself and the directories above it, from the top down to the first that is not there: name and mode."""
    end = 0
    while end >= 0:
        end = path.find("/", end + 1)
        name = path[:end] if end >= 0 else path
        try:
            mode = os.lstat(tree / name).st_mode
        except OSError:
            return
        yield name, mode
        if not stat.S_ISDIR(mode):
            return


def _check_length(path: str) -> None:
    # Characters first: a name of megabytes is not even encoded.
    if len(path) > MAX_PATH_BYTES or len(name := _encode(path, "the path")) > MAX_PATH_BYTES:
        raise PatchError(f"unsafe path {shown(path)}: longer than {MAX_PATH_BYTES} bytes")
    if name.count(b"/") > MAX_DEPTH:
        raise PatchError(f"unsafe path {shown(path)}: deeper than {MAX_DEPTH} directories")
    if max(map(len, name.split(b"/"))) > MAX_NAME_BYTES:
        raise PatchError(f"unsafe path {shown(path)}: a name in it is longer than {MAX_NAME_BYTES} bytes")


def _encode(text: str, what: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise PatchError(
            f"{what} holds a lone surrogate ({text[error.start]!a}), which no file can hold as UTF-8"
        ) from None


def apply_diff(text: str, tree: Path, protected: Sequence[str] = (), fuzzy: bool = False) -> tuple[Change, ...]:
    """The changes that the unified diff `text` makes to `tree`, which is not modified."""
    if not isinstance(text, str):
        raise PatchError("the patch is not a text")
    work = _Work(tree)
    for file in parse_diff(text, fuzzy):
        _apply_file(file, work, protected)
    if not work.changes:
        raise PatchError("the patch changes no file")
    return _ordered(work.changes, tree)


def replace_file(path: str, content: str, tree: Path, protected: Sequence[str] = ()) -> tuple[Change, ...]:
    """The change that makes the file at `path` be `content`."""
    name = check_path(path, tree, protected)
    if not isinstance(content, str):
        raise PatchError(f"the content of {shown(name)} is not a text")
    if len(content) > MAX_CHARACTERS:
        raise PatchError(f"the content of {shown(name)} has {len(content)} characters, more than {MAX_CHARACTERS}")
    return _ordered({name: Change(name, _encode(content, f"the content of {shown(name)}"))}, tree)


class _Work:
    """The changes so far, and what making them has cost."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.changes: dict[str, Change] = {}
        self._bytes_left = MAX_TOTAL_BYTES
        self._comparisons_left = MAX_COMPARISONS

    def content(self, path: str | None) -> str:
        """The file at `path` as the sections before this one left it."""
        if path is None:
            return ""
        data = self.changes[path].content if path in self.changes else _read(self.tree / path, path)
        if data is None:
            raise PatchError(f"{shown(path)} was deleted by an earlier part of the patch")
        self.spend_bytes(len(data))
        return data.decode("utf-8", "surrogateescape")

    def spend_bytes(self, count: int) -> None:
        """Count bytes read or written."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise PatchError(f"the patch reads and writes more than {MAX_TOTAL_BYTES} bytes")

    def spend_comparisons(self, count: int) -> None:
        """Count lines compared."""
        self._comparisons_left -= count
        if self._comparisons_left < 0:
            raise PatchError("the patch has too many places where its hunks nearly match")


def _read(path: Path, name: str) -> bytes:
    try:
        info = path.stat(follow_symlinks=False)
        if not stat.S_ISREG(info.st_mode):
            raise PatchError(f"{shown(name)} is not a file")
        if info.st_size > MAX_FILE_BYTES:
            raise PatchError(f"{shown(name)} is larger than {MAX_FILE_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise PatchError(f"{shown(name)} cannot be read: {os.strerror(error.errno or 0)}") from None


def _apply_file(file: FilePatch, work: _Work, protected: Sequence[str]) -> None:
    old = check_path(file.old_path, work.tree, protected) if file.old_path else None
    new = check_path(file.new_path, work.tree, protected) if file.new_path else None
    before = work.content(old)
    if old is None and new is not None and _is_there(new, work):
        raise PatchError(f"{shown(new)} is to be created but exists")
    after = _apply_hunks(before, file.hunks, new or old or "?", work)
    if old is not None and old != new:
        work.changes[old] = Change(old, None)
    if new is not None:
        data = _encode(after, f"the content of {shown(new)}")
        work.spend_bytes(len(data))
        work.changes[new] = Change(new, data, file.executable)


def _is_there(path: str, work: _Work) -> bool:
    return work.changes[path].content is not None if path in work.changes else (work.tree / path).exists()


def _apply_hunks(before: str, hunks: Iterable[Hunk], path: str, work: _Work) -> str:
    lines = split_lines(before)
    result: list[str] = []
    position = 0
    for number, hunk in enumerate(hunks, 1):
        at = _find(lines, hunk, position, work)
        if at is None and hunk.blank_tail:
            del hunk.old[-hunk.blank_tail :], hunk.new[-hunk.blank_tail :]
            at = _find(lines, hunk, position, work)
        if at is None:
            raise PatchError(f"hunk {number} does not match {shown(path)}")
        result += lines[position:at]
        result += hunk.new
        position = at + len(hunk.old)
    return "".join(result + lines[position:])


def _find(lines: list[str], hunk: Hunk, earliest: int, work: _Work) -> int | None:
    """Where the hunk's old lines are: as near as possible to where it says."""
    last = len(lines) - len(hunk.old)
    if last < earliest:
        return None
    start = earliest if hunk.start is None else max(hunk.start - 1, 0) if hunk.old else hunk.start
    wanted = min(max(start, earliest), last)
    for distance in range(max(wanted - earliest, last - wanted) + 1):
        for at in (wanted - distance, wanted + distance) if distance else (wanted,):
            if earliest <= at <= last and _matches(lines, hunk.old, at, work):
                return at
    return None


def _matches(lines: list[str], old: list[str], at: int, work: _Work) -> bool:
    for offset, line in enumerate(old):
        if lines[at + offset] != line:
            work.spend_comparisons(offset + 1)
            return False
    work.spend_comparisons(len(old) + 1)
    return True


def _ordered(changes: dict[str, Change], tree: Path) -> tuple[Change, ...]:
    """Deletions first, then files; PatchError where a file would be in the place of a directory or below a file."""
    gone = [change for change in changes.values() if change.content is None]
    kept = [change for change in changes.values() if change.content is not None]
    deleted = {change.path for change in gone}
    written = {change.path for change in kept}
    for path in written:
        parents = {str(parent) for parent in PurePosixPath(path).parents}
        files = {name for name, mode in _existing(path, tree) if not stat.S_ISDIR(mode)} - deleted
        for parent in parents & (files | written):
            raise PatchError(f"unsafe path {shown(path)}: {shown(parent)} is a file")
        if (tree / path).is_dir():
            raise PatchError(f"unsafe path {shown(path)}: it is a directory")
    return (*gone, *kept)


# --- Candidate patches, and the verdicts on them ---
PATCH_SUFFIXES = (".diff", ".patch")


class PatchVerdict(StrEnum):
    """What became of a candidate."""

    PASS = "pass"
    COMPILE_ERROR = "compile-error"
    TEST_FAILURE = "test-failure"
    DOES_NOT_APPLY = "does-not-apply"
    # Nothing was proposed: no text, or a tree that is what it was.
    NO_CHANGE = "no-change"
    # Changed what judges it while the tests ran.
    TAMPERED = "tampered"
    TIMEOUT = "timeout"
    # Broke the memory or process limit, or the job could not be run to its end.
    KILLED = "killed"
    # The machine failed, not the candidate: it has no reward, is tried again, and is never cached.
    INFRA_ERROR = "infra-error"


@dataclass(frozen=True)
class PatchSample:
    """A candidate: a unified diff, or the new content of one file."""

    id: str
    patch: str | None = None
    path: str | None = None
    content: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was proposed: no diff, no content, or only white space."""
        return not str(self.patch if self.patch is not None else self.content or "").strip()

    def changes(self, tree: Path, protected: Sequence[str] = (), fuzzy: bool = False) -> tuple[Change, ...]:
        """What the candidate does to `tree`; PatchError if it does not apply or may not be applied."""
        if self.patch is not None:
            return apply_diff(self.patch, tree, protected, fuzzy)
        if self.path is None or self.content is None:
            raise PatchError("the sample has neither a patch nor a path with content")
        return replace_file(self.path, self.content, tree, protected)


def load_corpus(path: Path) -> tuple[PatchSample, ...]:
    """Read a directory of .diff and .patch files, or a JSONL file of {id, patch} or {id, path, content}."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in PATCH_SUFFIXES)
        samples = [PatchSample(file.stem, patch=_read_corpus(file)) for file in files]
    elif path.is_file():
        samples = [_sample(path, number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if line]
    else:
        raise UsageError(f"samples {str(path)!r} does not exist: give a directory of diffs or a JSONL file")
    if not samples:
        raise UsageError(f"samples {str(path)!r} holds no patch: expected {' or '.join(PATCH_SUFFIXES)} files or JSONL")
    repeated = [name for name, count in Counter(sample.id for sample in samples).items() if count > 1]
    if repeated:
        raise UsageError(f"samples {str(path)!r} has the id {repeated[0]!r} more than once: make ids unique")
    return tuple(samples)


def _read_corpus(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "surrogateescape")


def _sample(path: Path, number: int, line: str) -> PatchSample:
    try:
        data = json.loads(line)
        sample = PatchSample(str(data["id"]), data.get("patch"), data.get("path"), data.get("content"))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f'{path} line {number} is not an object with "id": use {{id, patch}} or {{id, path, content}}'
        ) from None
    if sample.patch is None and (sample.path is None or sample.content is None):
        raise UsageError(f"{path} line {number} has neither a patch nor a path with content")
    return sample


def judge(result: BuildResult, compile_steps: int) -> tuple[PatchVerdict, str]:
    """The verdict on a job and its first diagnostic; the first `compile_steps` commands compile."""
    last = result.steps[-1]
    if result.succeeded:
        return PatchVerdict.PASS, ""
    if last.outcome is StepOutcome.TIMEOUT:
        return PatchVerdict.TIMEOUT, f"killed after {result.wall_seconds:.1f} s: {' '.join(last.argv)}"
    if last.outcome is StepOutcome.CANCELLED:
        return PatchVerdict.INFRA_ERROR, "cancelled: the pool was closed"
    if last.outcome is not StepOutcome.EXITED:
        return PatchVerdict.KILLED, f"killed: {last.outcome} limit: {' '.join(last.argv)}"
    diagnostic = first_diagnostic(last.output) or f"exit code {last.exit_code}"
    return (PatchVerdict.COMPILE_ERROR if len(result.steps) <= compile_steps else PatchVerdict.TEST_FAILURE), diagnostic


def count_verdicts(verdicts: Iterable[PatchVerdict]) -> dict[str, int]:
    """How often each verdict was given, in the order of the enum."""
    counts = Counter(verdicts)
    return {str(verdict): counts[verdict] for verdict in PatchVerdict if counts[verdict]}
