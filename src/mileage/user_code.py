"""Users' code by name ("path/to/file.py:Name", "package.module:Name"); lines of it that run in a loop."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from mileage.errors import MileageError, UsageError


def split(name: str) -> tuple[str, str] | None:
    """The place and the name in it, if `name` has the form of one; UsageError for a file or directory without one."""
    place, separator, attribute = name.rpartition(":")
    if place:
        return place, attribute
    if separator or name.endswith(".py") or ("/" in name and Path(name).is_dir()):
        file = name if name.endswith(".py") else f"{name.rstrip('/')}/FILE.py" if "/" in name else "FILE.py"
        raise UsageError(f"{name!r} is not the name of anything: say what in which file, as in {file}:NAME")
    return None


def load(place: str, what: str) -> ModuleType:
    """The module or file called `place`, imported; `what` it defines is for messages."""
    is_path = place.endswith(".py") or "/" in place or place.startswith(".")
    return _load_file(Path(place), what) if is_path else _load_module(place)


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise UsageError(f"module {name!r} cannot be found: check its spelling and the Python path") from error


def _load_file(path: Path, what: str) -> ModuleType:
    path = path.resolve()
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a directory: give the Python file in it that defines the {what}")
    if not path.is_file():
        raise UsageError(f"file {str(path)!r} does not exist: give the path of a Python file that defines the {what}")
    if path.suffix != ".py":
        raise UsageError(f"file {str(path)!r} must be a Python file, whose name ends in .py, that defines the {what}")
    # Another module may have the file's name already; both must stay importable.
    for name in (path.stem, f"{path.stem}_{abs(hash(str(path))):x}"):
        loaded = sys.modules.get(name)
        if loaded is None:
            break
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, MileageError) or not isinstance(error, Exception):
            raise
        raise UsageError(
            f"file {str(path)!r} cannot be imported: {type(error).__name__}: {error}{_line(error, path)}"
        ) from error
    return module


def _line(error: Exception, path: Path) -> str:
    """Where in a file an error was raised, in brackets; what does not parse says so itself."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""


# --- Loops of Python in source files: whether a line runs once, or again and again ---
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def in_loop(path: str, first_line: int, line: int) -> bool:
    """Whether a line of the function that begins at `first_line` runs in a loop over data.

    One layer of a network after the other, `for layer in layers: x = layer(x)`, is no such loop.
    """
    return any(first_line < begin <= line <= end for begin, end in _loops(path))


@functools.lru_cache(maxsize=256)
def _loops(path: str) -> tuple[tuple[int, int], ...]:
    """First and last line of what every loop of a file repeats."""
    try:
        return tuple(_repeated(ast.parse(Path(path).read_bytes())))
    except (OSError, ValueError, SyntaxError):  # it has no file, or another one by now
        return ()


def _repeated(tree: ast.AST) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and not _one_after_the_other(node):
            yield node.body[0].lineno, node.body[-1].end_lineno or 0
        elif isinstance(node, ast.While):
            yield node.lineno, node.body[-1].end_lineno or 0
        elif isinstance(node, _COMPREHENSIONS):
            yield node.lineno, node.end_lineno or 0


def _one_after_the_other(loop: ast.For) -> bool:
    """Whether what it goes through is called, as layers are, and picks nothing out of the data."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    called = {node.func.id for node in inside if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    picked = {
        name.id
        for node in inside
        if isinstance(node, ast.Subscript)
        for name in ast.walk(node.slice)
        if isinstance(name, ast.Name)
    }
    return bool(names & called) and not names & picked
