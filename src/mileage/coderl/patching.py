"""Unified diffs, read and applied without ever leaving the tree.

A patch is turned into the final content of each file it touches before anything runs: the tree is only read. Hunks
must match exactly, at their line or at the nearest other place (as `git apply` does); there is no fuzz.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from mileage.coderl.build.executor import Change

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SYMLINK_MODE = "120000"
_NO_FILE = "/dev/null"
_NO_NEWLINE = "\\"


class PatchError(Exception):
    """A patch that does not apply, or that must not be applied; the text says why."""


@dataclass
class _Hunk:
    start: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


@dataclass
class _FilePatch:
    old_path: str | None = None
    new_path: str | None = None
    hunks: list[_Hunk] = field(default_factory=list)
    executable: bool = False


def check_path(path: str, tree: Path, protected: Sequence[str] = ()) -> str:
    """`path` normalised, if a patch may touch it in `tree`; PatchError otherwise."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or path.startswith("\\") or (len(path) > 1 and path[1] == ":"):
        raise PatchError(f"unsafe path {path!r}: absolute")
    if ".." in pure.parts:
        raise PatchError(f"unsafe path {path!r}: leaves the tree")
    if not pure.parts or "\0" in path:
        raise PatchError(f"unsafe path {path!r}: not a file name")
    if ".git" in pure.parts:
        raise PatchError(f"unsafe path {path!r}: inside a git directory")
    current = tree
    for part in pure.parts:
        current = current / part
        if current.is_symlink():
            raise PatchError(f"unsafe path {path!r}: {part!r} is a symbolic link")
    normal = str(pure)
    for pattern in protected:
        if fnmatch(normal, pattern) or normal.startswith(pattern.rstrip("/") + "/"):
            raise PatchError(f"protected path {normal!r}: patches may not change {pattern!r}")
    return normal


def apply_diff(text: str, tree: Path, protected: Sequence[str] = ()) -> tuple[Change, ...]:
    """The changes that the unified diff `text` makes to `tree`, which is not modified."""
    changes: dict[str, Change] = {}
    for file in _parse(text):
        old = check_path(file.old_path, tree, protected) if file.old_path else None
        new = check_path(file.new_path, tree, protected) if file.new_path else None
        before = _content(old, tree, changes)
        if old is None and new is not None and (tree / new).exists() and new not in changes:
            raise PatchError(f"{new} is to be created but exists")
        after = _apply_hunks(before, file.hunks, new or old or "?")
        if old is not None and old != new:
            changes[old] = Change(old, None)
        if new is not None:
            changes[new] = Change(new, after.encode("utf-8", "surrogateescape"), file.executable)
    if not changes:
        raise PatchError("the patch changes no file")
    return tuple(changes.values())


def replace_file(path: str, content: str, tree: Path, protected: Sequence[str] = ()) -> tuple[Change, ...]:
    """The change that makes the file at `path` be `content`."""
    return (Change(check_path(path, tree, protected), content.encode("utf-8", "surrogateescape")),)


def _content(path: str | None, tree: Path, changes: dict[str, Change]) -> str:
    if path is None:
        return ""
    if path in changes:
        data = changes[path].content
    else:
        try:
            data = (tree / path).read_bytes()
        except OSError as error:
            raise PatchError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from None
    if data is None:
        raise PatchError(f"{path} was deleted by an earlier part of the patch")
    return data.decode("utf-8", "surrogateescape")


def _apply_hunks(before: str, hunks: Iterable[_Hunk], path: str) -> str:
    lines = before.splitlines(keepends=True)
    result: list[str] = []
    position = 0
    for number, hunk in enumerate(hunks, 1):
        at = _find(lines, hunk, position)
        if at is None:
            raise PatchError(f"hunk {number} does not match {path}")
        result += lines[position:at]
        result += hunk.new
        position = at + len(hunk.old)
    return "".join(result + lines[position:])


def _find(lines: list[str], hunk: _Hunk, earliest: int) -> int | None:
    """Where the hunk's old lines are: as near as possible to where it says."""
    wanted = max(hunk.start - 1, 0) if hunk.old else hunk.start
    last = len(lines) - len(hunk.old)
    for distance in range(max(len(lines), wanted) + 1):
        for at in {wanted - distance, wanted + distance}:
            if earliest <= at <= last and lines[at : at + len(hunk.old)] == hunk.old:
                return at
    return None


def _parse(text: str) -> Iterator[_FilePatch]:
    """Read the file sections of a diff."""
    lines = text.splitlines(keepends=True)
    file: _FilePatch | None = None
    index = 0
    while index < len(lines):
        line = lines[index].rstrip("\r\n")
        if line.startswith("diff --git "):
            if file:
                yield file
            file = _FilePatch()
        elif file is None and not line.startswith("--- "):
            pass  # prose before the first file
        elif line.startswith(("Binary files ", "GIT binary patch")):
            raise PatchError("binary patches are not supported")
        elif line.startswith(("new file mode", "new mode", "old mode", "deleted file mode")):
            _read_mode(line, file)
        elif line.startswith(("rename from ", "rename to ")) and file:
            setattr(file, "old_path" if " from " in line else "new_path", line.split(" ", 2)[2])
        elif line.startswith("--- ") and index + 1 < len(lines) and lines[index + 1].startswith("+++ "):
            if file is None or file.hunks:
                if file:
                    yield file
                file = _FilePatch()
            file.old_path, file.new_path = _names(line, lines[index + 1].rstrip("\r\n"))
            index += 1
        elif line.startswith("@@ ") and file:
            hunk, index = _read_hunk(lines, index)
            file.hunks.append(hunk)
            continue
        index += 1
    if file:
        yield file


def _read_mode(line: str, file: _FilePatch | None) -> None:
    mode = line.rsplit(" ", 1)[1]
    if mode == _SYMLINK_MODE:
        raise PatchError("unsafe patch: it makes or changes a symbolic link")
    if file and not line.startswith("old"):
        file.executable = mode == "100755"


def _names(old: str, new: str) -> tuple[str | None, str | None]:
    """The two file names of a `---`/`+++` pair, without timestamps and without git's a/ and b/."""
    first, second = (line[4:].split("\t")[0].strip() for line in (old, new))
    if (first.startswith("a/") or first == _NO_FILE) and (second.startswith("b/") or second == _NO_FILE):
        first, second = first.removeprefix("a/"), second.removeprefix("b/")
    return (None if first == _NO_FILE else first), (None if second == _NO_FILE else second)


def _read_hunk(lines: list[str], index: int) -> tuple[_Hunk, int]:
    """Read the hunk whose header is at `index`; return it and the index after it."""
    header = _HUNK.match(lines[index])
    if header is None:
        raise PatchError(f"malformed hunk header {lines[index].strip()!r}")
    hunk = _Hunk(start=int(header[1]))
    old_left, new_left = int(header[2] or 1), int(header[4] or 1)
    index += 1
    while old_left > 0 or new_left > 0 or (index < len(lines) and lines[index].startswith(_NO_NEWLINE)):
        if index >= len(lines):
            raise PatchError("the patch ends in the middle of a hunk")
        line = lines[index]
        kind, body = (line[0], line[1:]) if line.strip("\r\n") else (" ", line)
        if kind == _NO_NEWLINE:
            for side in _sides(lines[index - 1], hunk):
                side[-1] = side[-1].rstrip("\r\n")
        elif kind not in " +-":
            raise PatchError(f"malformed hunk line {line.strip()!r}")
        if kind in " -":
            hunk.old.append(body)
            old_left -= 1
        if kind in " +":
            hunk.new.append(body)
            new_left -= 1
        index += 1
    return hunk, index


def _sides(previous: str, hunk: _Hunk) -> list[list[str]]:
    """The sides that the line before a no-newline mark belongs to."""
    return {"-": [hunk.old], "+": [hunk.new]}.get(previous[0], [hunk.old, hunk.new])
