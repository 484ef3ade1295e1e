"""Checkpoints: one safetensors file whose header carries JSON. Written atomically; nothing in one is ever executed.

Format history
    1  arrays by name; metadata `mileage` = JSON with format, algorithm, env, seed, steps, config, counters, shapes
    of the policy
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mileage._errors import CheckpointError

FORMAT = 1
_KEY = "mileage"


def write(path: Path, arrays: dict[str, np.ndarray[Any, Any]], metadata: dict[str, Any]) -> None:
    """Write a checkpoint so that `path` is either the old file or the whole new one."""
    from safetensors.numpy import save

    header = {_KEY: json.dumps({"format": FORMAT, **metadata}, sort_keys=True)}
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata=header)
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        reason = f"{error.filename} is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise CheckpointError(f"checkpoint {path} cannot be written: {reason}") from error
    finally:
        # Gone already if it took the place of `path`; left by an error or an interrupt otherwise.
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Read a checkpoint's arrays and metadata."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = (file.metadata() or {}).get(_KEY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        metadata = json.loads(header or "")
    except (SafetensorError, OSError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged or not a mileage checkpoint") from error
    if not isinstance(metadata, dict) or not isinstance(metadata.get("format"), int):
        raise CheckpointError(f"checkpoint {path} is damaged or not a mileage checkpoint")
    if metadata["format"] > FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {metadata['format']}, this version reads up to {FORMAT}: upgrade mileage"
        )
    return arrays, metadata


def named_env(metadata: dict[str, Any], path: Path) -> str:
    """The environment a checkpoint names, if that is an id: "module:name" would run whatever the checkpoint says."""
    name = metadata["env"]
    if not isinstance(name, str):
        raise TypeError(f"env is {name!r}")
    if ":" in name:
        raise CheckpointError(
            f"checkpoint {path} names code as its environment, which is not run on its word: give env {name!r} yourself"
        )
    return name


def restore(target: dict[str, np.ndarray[Any, Any]], arrays: dict[str, np.ndarray[Any, Any]], path: Path) -> None:
    """Copy `arrays` into the live arrays of `target`, all or none."""
    for name, live in target.items():
        saved = arrays.get(name)
        if saved is None or saved.shape != live.shape or saved.dtype != live.dtype:
            what = (
                "is missing"
                if saved is None
                else f"is {saved.dtype} of shape {saved.shape}, not {live.dtype} of shape {live.shape}"
            )
            raise CheckpointError(f"checkpoint {path} does not fit: array {name!r} {what}")
    for name, live in target.items():
        live[...] = arrays[name]
