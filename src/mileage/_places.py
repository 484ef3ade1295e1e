"""Users' code by name: "path/to/file.py:Name" and "package.module:Name"."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from mileage._errors import UsageError


def split(name: str) -> tuple[str, str] | None:
    """The place and the name in it, if `name` has the form of one."""
    place, separator, attribute = name.rpartition(":")
    return (place, attribute) if separator and (place.endswith(".py") or "/" not in place) else None


def load(place: str, what: str) -> ModuleType:
    """The module or file called `place`, imported; `what` it defines is for messages."""
    return _load_file(Path(place), what) if place.endswith(".py") else _load_module(place)


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise UsageError(f"module {name!r} cannot be found: check its spelling and the Python path") from error


def _load_file(path: Path, what: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise UsageError(f"file {str(path)!r} does not exist: give the path of a Python file that defines the {what}")
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None:
        # Another module has that name already; both must stay importable.
        name = f"{path.stem}_{abs(hash(str(path))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
