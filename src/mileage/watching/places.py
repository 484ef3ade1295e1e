"""Lines of the program: which of them time is spent at, and where its settings are written."""

from __future__ import annotations

import ast
import linecache
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mileage._types import Bool
from mileage.text import plain
from mileage.watching.layers import Layered
from mileage.watching.trace import Frame, Process, Setting

_LONGEST_LINE = 60
_LARGEST_SOURCE = 2_000_000


@dataclass(frozen=True)
class Place:
    """A line of a file, and the time spent at it and in what it calls."""

    frame: Frame
    seconds: float
    cpu_seconds: float
    shown: str
    """The file, as seen from where the program ran."""
    inside: str = ""
    """What of a library it spends most of that in."""

    @property
    def off_cpu(self) -> float:
        """Share of its time in which its thread computed nothing."""
        return max(0.0, 1.0 - self.cpu_seconds / self.seconds) if self.seconds > 0 else 0.0

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.shown}:{self.frame.line}"

    @property
    def text(self) -> str:
        """The line itself, if the file is there and says anything."""
        if not os.path.isabs(self.frame.path) and not os.path.isfile(self.frame.path):
            return ""
        return plain(linecache.getline(self.frame.path, self.frame.line).strip(), _LONGEST_LINE)

    def __str__(self) -> str:
        return f"{self.where} in {self.frame.function}" + (f": {self.text}" if self.text else "")


def shown_path(path: str, directory: str) -> str:
    """A file as seen from a directory; one elsewhere by its package or its full path."""
    if directory and path.startswith(directory.rstrip("/") + "/"):
        return plain(path[len(directory.rstrip("/")) + 1 :], 200)
    _, packages, rest = path.rpartition("-packages/")
    return plain(rest if packages else path, 200)


def hot_places(run: Layered, chosen: Bool | None = None, most: int = 10) -> list[Place]:
    """Lines of the program's own where the chosen samples, (n,) bool, are spent, the longest first.

    A sample counts for the innermost line of the program's own: what a library does for it is its time.
    """
    chosen = np.ones(len(run.seconds), np.bool_) if chosen is None else chosen
    process, stacks = run.process, run.process.main[:, 3]
    wall: Counter[Frame] = Counter()
    cpu: Counter[Frame] = Counter()
    within: dict[Frame, Counter[str]] = {}
    for row in np.flatnonzero(chosen).tolist():
        if own := int(run.own[row]):
            frame = process.frames[own]
            wall[frame] += run.seconds[row]
            cpu[frame] += run.cpu_seconds[row]
            if own != stacks[row]:
                within.setdefault(frame, Counter())[_callee(process, int(stacks[row]), own)] += run.seconds[row]
    return [
        Place(frame, seconds, cpu[frame], shown_path(frame.path, process.directory), _most(within.get(frame), seconds))
        for frame, seconds in wall.most_common(most)
    ]


def _callee(process: Process, stack: int, own: int) -> str:
    """The library's function that an own line called."""
    while process.above[stack] != own:
        stack = process.above[stack]
    frame = process.frames[stack]
    return f"{frame.function} ({shown_path(frame.path, process.directory)})"


def _most(within: Counter[str] | None, seconds: float) -> str:
    if not within:
        return ""
    name, most = within.most_common(1)[0]
    return plain(name, 200) if most >= seconds / 2 else ""


# Settings


@dataclass(frozen=True)
class WrittenSetting:
    """A setting with the line that it is written at, where one is."""

    name: str
    value: object
    where: str = ""
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        at = f" ({self.where})" if self.where else ""
        option = f", option {self.options[-1]}" if self.options else ""
        return f"{self.name} = {self.value!r}{at}{option}"


class Settings:
    """The program's settings: as they were when it ran, or else as its files write them."""

    def __init__(self, process: Process, files: Iterable[str]) -> None:
        self._ran: dict[str, Setting] = {}
        for setting in process.settings:
            known = self._ran.get(setting.name)
            if known is None or (setting.options and not known.options):
                self._ran[setting.name] = setting
        self._written: dict[str, tuple[object, str]] = {}
        for path in files:
            for name, value, line in _written(Path(path)):
                self._written.setdefault(name, (value, f"{shown_path(path, process.directory)}:{line}"))

    def find(self, *names: str) -> WrittenSetting | None:
        """The first of `names` that the program has."""
        for name in names:
            ran, written = self._ran.get(name), self._written.get(name)
            if ran is not None:
                return WrittenSetting(name, ran.value, written[1] if written else "", ran.options)
            if written is not None:
                return WrittenSetting(name, written[0], written[1])
        return None


def _written(path: Path) -> Iterator[tuple[str, object, int]]:
    """Names with a constant value in a source file: assignments, fields, keywords of calls, options of parsers."""
    try:
        if path.stat().st_size > _LARGEST_SOURCE:
            return
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                yield name, value, node.lineno
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                yield name, value, node.lineno
            case ast.keyword(arg=str(name), value=ast.Constant(value=value)):
                yield name, value, node.lineno
            case ast.Dict(keys=keys, values=values):
                for key, each in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(each, ast.Constant):
                        yield key.value, each.value, key.lineno
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(option)), *_]):
                default = next((each.value for each in node.keywords if each.arg == "default"), None)
                value = default.value if isinstance(default, ast.Constant) else None
                yield option.lstrip("-").replace("-", "_"), value, node.lineno
            case _:
                pass
