"""Models of MuJoCo: found by name, compiled once."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from pathlib import Path

import mujoco

from mileage._errors import UsageError


def find(name: str) -> Path:
    """The model file `name`; one without a folder is Gymnasium's, as in its constructors."""
    path = Path(name).expanduser() if name.startswith((".", "/", "~")) else _assets() / name
    if not path.is_file():
        raise UsageError(f"xml_file {name!r} does not exist: give the path of a MuJoCo model")
    return path


def compiled(path: Path) -> mujoco.MjModel:
    """The model in a file."""
    try:
        return _compile(str(path))
    except ValueError as error:
        raise UsageError(f"xml_file {str(path)!r} cannot be loaded: {str(error).splitlines()[0]}") from error


def _assets() -> Path:
    """Where Gymnasium keeps its models, found without importing its environments."""
    found = importlib.util.find_spec("gymnasium")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "envs" / "mujoco" / "assets"


@functools.cache
def _compile(path: str) -> mujoco.MjModel:
    """Compile a model; what MuJoCo has to say about it comes as Python warnings, not in a file of its own."""
    messages: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(messages.append)
    try:
        model = mujoco.MjModel.from_xml_path(path)
    finally:
        mujoco.set_mju_user_warning(before)
    for message in messages:
        # About the form of Gymnasium's own files, which users can do nothing about.
        if "deprecated" not in message:
            warnings.warn(f"{path}: {message}", stacklevel=2)
    return model
