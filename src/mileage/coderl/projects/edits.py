"""The one-line edit behind KPI 2: a real content change, different each time, taken back afterwards."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mileage.errors import BuildError

# A declaration that is valid at the end of any file of the language and changes what the compiler sees.
C_SUFFIXES = (".c", ".h", ".cc", ".cpp", ".cxx", ".hpp")
LINES = dict.fromkeys(C_SUFFIXES, "extern const unsigned long mileage_edit_{n};") | {
    ".rs": "#[doc(hidden)] pub const MILEAGE_EDIT_{n}: u64 = {n};",
    ".ts": "export const mileageEdit{n} = {n};",
    ".tsx": "export const mileageEdit{n} = {n};",
    ".js": "globalThis.mileageEdit{n} = {n};",
    ".go": "const MileageEdit{n} = {n}",
    ".java": "    static final long MILEAGE_EDIT_{n} = {n}L;",
    ".py": "MILEAGE_EDIT_{n} = {n}",
    ".rb": "MILEAGE_EDIT_{n} = {n}",
}
# Java has no declarations outside a class: the line goes right after the class opens.
_JAVA_CLASS = re.compile(r"^[^\n]*\bclass\b[^{;]*\{[^\n]*\n", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_TS_IMPORT = re.compile(r"""from\s+['"](\.[^'"]+)['"]""")
_JAVA_IMPORT = re.compile(r"^import\s+(?:static\s+)?([\w.]+)\s*;", re.MULTILINE)
_GO_IMPORT = re.compile(r'^\s*(?:import\s+)?(?:\w+\s+)?"([^"]+)"', re.MULTILINE)
_PY_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import|import\s+([\w.]+))", re.MULTILINE)
SKIPPED_DIRECTORIES = {".git", "node_modules", "target", "build", "dist", ".venv", "venv", "__pycache__", "third_party"}


@dataclass(frozen=True)
class LineEdit:
    """Adds one line to `path`; `{n}` in `line` is a number that is new each time."""

    path: str
    line: str

    def edited(self, before: bytes, number: int) -> bytes:
        """The content `before` with edit `number` in it."""
        text = before.decode("utf-8")
        # A template may hold other braces, so only the number is replaced.
        line = self.line.replace("{n}", str(number))
        if not self.path.endswith(".java"):
            return (text + ("" if text.endswith("\n") or not text else "\n") + line + "\n").encode("utf-8")
        match = _JAVA_CLASS.search(text)
        if match is None:
            raise BuildError(f"{self.path} has no class to edit: name another file with --edit-file")
        return (text[: match.end()] + line + "\n" + text[match.end() :]).encode("utf-8")


def line_edit(path: str) -> LineEdit:
    """The edit for a file of a known language."""
    suffix = PurePosixPath(path).suffix
    if suffix not in LINES:
        raise BuildError(
            f"no one-line edit is known for {path!r}: give edit_file and edit_line in the [rl-bench] table "
            f"(known suffixes: {', '.join(sorted(LINES))})"
        )
    return LineEdit(path, LINES[suffix])


def central_edit(root: Path, suffixes: tuple[str, ...]) -> LineEdit:
    """The edit of the most central file with one of `suffixes`."""
    return line_edit(most_central(root, source_files(root, suffixes)))


def source_files(tree: Path, suffixes: Iterable[str]) -> list[str]:
    """The source files below `tree` with one of `suffixes`, sorted, without vendored and built ones."""
    wanted = tuple(suffixes)
    found: list[str] = []
    for directory, names, files in os.walk(tree):
        names[:] = sorted(name for name in names if name not in SKIPPED_DIRECTORIES and not name.startswith("."))
        found += [str(Path(directory, file).relative_to(tree)) for file in files if file.endswith(wanted)]
    return sorted(found)


def most_central(tree: Path, files: list[str]) -> str:
    """The file that most other files name in an include or import; the first in order if none is named."""
    if not files:
        raise BuildError(f"no source file to edit was found in {tree}: name one with --edit-file")
    counts: Counter[str] = Counter()
    by_stem: dict[str, list[str]] = {}
    for file in files:
        pure = PurePosixPath(file)
        for key in (pure.name, pure.stem, pure.parent.name):
            by_stem.setdefault(key, []).append(file)
    for file in files:
        text = (tree / file).read_text("utf-8", "replace")
        for name in _references(PurePosixPath(file).suffix, text):
            for target in by_stem.get(name, [])[:1]:
                if target != file:
                    counts[target] += 1
    return max(files, key=lambda file: (counts[file], -files.index(file)))


def _references(suffix: str, text: str) -> set[str]:
    """The file names or module stems that a source text refers to."""
    if suffix in C_SUFFIXES:
        return {PurePosixPath(name).name for name in _INCLUDE.findall(text)}
    if suffix in (".ts", ".tsx"):
        return {PurePosixPath(name).name for name in _TS_IMPORT.findall(text)}
    if suffix == ".java":
        return {name.rsplit(".", 1)[-1] for name in _JAVA_IMPORT.findall(text)}
    if suffix == ".go":
        return {PurePosixPath(name).name for name in _GO_IMPORT.findall(text)}
    if suffix == ".py":
        return {(first or second).rsplit(".", 1)[-1] for first, second in _PY_IMPORT.findall(text)}
    return set()
