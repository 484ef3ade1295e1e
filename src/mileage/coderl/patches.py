"""Unified diffs, read: any text becomes file sections with hunks, in bounded time and memory, or a PatchError.

Text counts as hostile: no number is turned into an int before its digits are counted, no line is looked at twice.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_CHARACTERS = 2 << 20
MAX_FILES = 1000
# Nine digits are more lines than any file has, and cost nothing to read.
_HUNK = re.compile(r"@@ -([0-9]{1,9})(?:,([0-9]{1,9}))? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@")
_SYMLINK_MODE = "120000"
_NO_FILE = "/dev/null"
_NO_NEWLINE = "\\"
_SHOWN = 80


class PatchError(Exception):
    """A patch that does not apply, or that must not be applied; the text says why."""


@dataclass
class Hunk:
    """Lines to be replaced and what they become; `start` is None where the header does not say."""

    start: int | None
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    blank_tail: int = 0
    """How many of the last lines are empty on both sides: the end of a message as likely as a part of the file."""


@dataclass
class FilePatch:
    """What a diff says about one file; a path is None where the file is created or deleted."""

    old_path: str | None = None
    new_path: str | None = None
    hunks: list[Hunk] = field(default_factory=list)
    executable: bool = False


def shown(text: str) -> str:
    """`text` as a message may quote it: printable and short."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def split_lines(text: str) -> list[str]:
    """The lines of `text` with their ends: only a line feed ends a line, as for diff and git."""
    return io.StringIO(text, newline="\n").readlines()


def parse_diff(text: str, fuzzy: bool = False) -> list[FilePatch]:
    """The file sections of a diff; with `fuzzy`, line counts of hunks are not believed."""
    if len(text) > MAX_CHARACTERS:
        raise PatchError(f"the patch has {len(text)} characters, more than {MAX_CHARACTERS}")
    files: list[FilePatch] = []
    for file in _sections(split_lines(text), fuzzy):
        files.append(file)
        if len(files) > MAX_FILES:
            raise PatchError(f"the patch changes more than {MAX_FILES} files")
    return files


def _sections(lines: list[str], fuzzy: bool) -> Iterator[FilePatch]:
    file: FilePatch | None = None
    index = 0
    while index < len(lines):
        line = lines[index].rstrip("\r\n")
        if line.startswith("diff --git "):
            if file:
                yield file
            file = FilePatch()
        elif _starts_file(lines, index):
            if file is None or file.hunks:
                if file:
                    yield file
                file = FilePatch()
            file.old_path, file.new_path = _names(line, lines[index + 1].rstrip("\r\n"))
            index += 1
        elif file is None:
            pass  # prose before the first file
        elif line.startswith(("Binary files ", "GIT binary patch")):
            raise PatchError("binary patches are not supported")
        elif line.startswith(("new file mode", "new mode", "old mode", "deleted file mode")):
            _read_mode(line, file)
        elif line.startswith("rename from "):
            file.old_path = line.removeprefix("rename from ")
        elif line.startswith("rename to "):
            file.new_path = line.removeprefix("rename to ")
        elif line.startswith("@@"):
            hunk, index = _read_hunk(lines, index, fuzzy)
            file.hunks.append(hunk)
            continue
        index += 1
    if file:
        yield file


def _starts_file(lines: list[str], index: int) -> bool:
    return lines[index].startswith("--- ") and index + 1 < len(lines) and lines[index + 1].startswith("+++ ")


def _read_mode(line: str, file: FilePatch) -> None:
    mode = line.rsplit(" ", 1)[1]
    if mode == _SYMLINK_MODE:
        raise PatchError("unsafe patch: it makes or changes a symbolic link")
    if line.startswith("new"):
        file.executable = mode == "100755"


def _names(old: str, new: str) -> tuple[str | None, str | None]:
    """The two file names of a `---`/`+++` pair, without timestamps and without git's a/ and b/."""
    first, second = (line[4:].split("\t")[0].strip() for line in (old, new))
    if (first.startswith("a/") or first == _NO_FILE) and (second.startswith("b/") or second == _NO_FILE):
        first, second = first.removeprefix("a/"), second.removeprefix("b/")
    return (None if first == _NO_FILE else first), (None if second == _NO_FILE else second)


def _read_hunk(lines: list[str], index: int, fuzzy: bool) -> tuple[Hunk, int]:
    """The hunk whose header is at `index`, and the index after it."""
    header = _HUNK.match(lines[index])
    if header is None and not fuzzy:
        raise PatchError(f"malformed hunk header {shown(lines[index].strip())}")
    hunk = Hunk(int(header[1]) if header else None)
    if fuzzy or header is None:
        return hunk, _read_uncounted(lines, index + 1, hunk)
    return hunk, _read_counted(lines, index + 1, hunk, int(header[2] or 1), int(header[4] or 1))


def _read_counted(lines: list[str], index: int, hunk: Hunk, old_left: int, new_left: int) -> int:
    """Read as many lines as the header says; the index after them."""
    while old_left > 0 or new_left > 0 or (index < len(lines) and lines[index].startswith(_NO_NEWLINE)):
        if index >= len(lines):
            raise PatchError("the patch ends in the middle of a hunk")
        if not _read_line(lines, index, hunk):
            raise PatchError(f"malformed hunk line {shown(lines[index].strip())}")
        kind = _kind(lines[index])
        old_left -= kind in " -"
        new_left -= kind in " +"
        index += 1
    if index < len(lines) and _goes_on(lines, index):
        raise PatchError(f"a hunk has more lines than its header says: {shown(lines[index].strip())}")
    return index


def _goes_on(lines: list[str], index: int) -> bool:
    """Whether the line after a hunk looks like one more of it; a mail's signature does not."""
    line = lines[index]
    return bool(line.strip()) and line[0] in " +-" and line.strip() != "--" and not _starts_file(lines, index)


def _read_uncounted(lines: list[str], index: int, hunk: Hunk) -> int:
    """Read lines up to the first that can be no part of a hunk; the index after them."""
    while index < len(lines) and not _starts_file(lines, index) and _read_line(lines, index, hunk):
        is_blank = not lines[index].strip()
        hunk.blank_tail = hunk.blank_tail + 1 if is_blank and _kind(lines[index]) == " " else 0
        index += 1
    return index


def _kind(line: str) -> str:
    """What a line of a hunk does; an empty one is a context line whose space was lost on the way."""
    return line[0] if line.strip("\r\n") else " "


def _read_line(lines: list[str], index: int, hunk: Hunk) -> bool:
    """Add a line to both sides of the hunk; False if it is none."""
    line = lines[index]
    kind = _kind(line)
    if kind == _NO_NEWLINE:
        for side in _sides(_kind(lines[index - 1]), hunk):
            side[-1:] = [last.rstrip("\r\n") for last in side[-1:]]
        return True
    if kind not in " +-":
        return False
    body = line[1:] if line.strip("\r\n") else line
    if kind in " -":
        hunk.old.append(body)
    if kind in " +":
        hunk.new.append(body)
    return True


def _sides(previous: str, hunk: Hunk) -> list[list[str]]:
    """The sides that the line before a no-newline mark belongs to."""
    return {"-": [hunk.old], "+": [hunk.new]}.get(previous, [hunk.old, hunk.new])
