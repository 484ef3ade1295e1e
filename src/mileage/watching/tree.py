"""Stacks as one tree of the program's own functions, in which each run of a library's frames is one box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mileage.text import plain
from mileage.watching.layers import Layered
from mileage.watching.places import shown_path
from mileage.watching.trace import Frame

_IMPORTLIB = "<frozen importlib"
_NARROWEST = 0.002
_DEEPEST = 40


@dataclass
class Box:
    """A function, or a library's part of a stack, with all that it calls."""

    name: str
    where: str = ""
    own: bool = False
    seconds: float = 0.0
    inner: dict[tuple[str, str], Box] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """A box of an icicle; left and width are shares of the whole."""

    box: Box
    depth: int
    left: float
    width: float


def tree(run: Layered) -> Box:
    """The main thread's stacks, the program at the root."""
    root = Box("the program")
    sums = np.bincount(run.process.main[:, 3], run.seconds, len(run.process.frames))
    for stack in np.flatnonzero(sums).tolist():
        seconds = float(sums[stack])
        root.seconds += seconds
        at = root
        for key, name, where, own in _boxes(run, stack):
            at = at.inner.setdefault(key, Box(name, where, own))
            at.seconds += seconds
    return root


def _boxes(run: Layered, stack: int) -> Iterator[tuple[tuple[str, str], str, str, bool]]:
    """What a stack is drawn as, outermost first."""
    numbers = []
    while stack:
        numbers.append(stack)
        stack = run.process.above[stack]
    in_library = False
    for number in reversed(numbers):
        frame = run.process.frames[number]
        if frame.path.startswith(_IMPORTLIB):
            yield ("", "importing"), "importing", "", False
            return
        if run.is_own[number]:
            in_library = False
            where = f"{shown_path(frame.path, run.process.directory)}:{frame.first_line}"
            yield (frame.path, frame.function), plain(frame.function, 120), where, True
        elif not in_library:
            in_library = True
            name = plain(f"{package(frame, run.process.library)} {frame.function}", 120)
            yield (frame.path, frame.function), name, shown_path(frame.path, run.process.directory), False


def package(frame: Frame, library: str) -> str:
    """The package that a library's frame belongs to."""
    path = frame.path.rpartition("-packages/")[2] if "-packages/" in frame.path else frame.path.removeprefix(library)
    return path.strip("/").partition("/")[0].removesuffix(".py") or "python"


def icicle(root: Box) -> list[Placed]:
    """Boxes from the root down, callers above what they call; those too narrow to be seen are left out."""
    found: list[Placed] = []
    waiting = [(root, 0, 0.0)]
    whole = root.seconds or 1.0
    while waiting:
        box, depth, left = waiting.pop()
        found.append(Placed(box, depth, left, box.seconds / whole))
        for each in sorted(box.inner.values(), key=lambda one: -one.seconds):
            if each.seconds >= _NARROWEST * whole and depth < _DEEPEST:
                waiting.append((each, depth + 1, left))
            left += each.seconds / whole
    return found
