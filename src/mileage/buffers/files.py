"""Saved buffers: one safetensors file whose header carries the layout as JSON. Nothing in one is ever executed.

Format history
    1  arrays by name; metadata `mileage_buffer` = JSON with format, kind and layout
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from mileage._errors import CheckpointError
from mileage._types import Array
from mileage.buffers.layout import Layout, NextObs

FORMAT = 1
_KEY = "mileage_buffer"


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """A layout as JSON-ready values."""
    return dataclasses.asdict(layout)


def layout_from_json(record: dict[str, Any]) -> Layout:
    """The inverse of `layout_to_json`, checked as if a user had given it."""
    stored = NextObs(record["next_obs"])
    rows = int(record["rows"]) - (stored is NextObs.DERIVED)
    return Layout.of(
        capacity=rows * int(record["n_envs"]), obs_shape=tuple(record["obs_shape"]),
        action_shape=tuple(record["action_shape"]), obs_dtype=str(record["obs_dtype"]),
        action_dtype=str(record["action_dtype"]), n_envs=int(record["n_envs"]), next_obs=stored,
        n_step=int(record["n_step"]), gamma=float(record["gamma"]),
    )  # fmt: skip


def save(path: Path, kind: str, layout: Layout, arrays: dict[str, Array]) -> None:
    """Write a buffer so that `path` is either the old file or the whole new one."""
    from safetensors.numpy import save_file

    header = {_KEY: json.dumps({"format": FORMAT, "kind": kind, "layout": layout_to_json(layout)})}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary, metadata=header)
        temporary.replace(path)
    except Exception as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CheckpointError(f"buffer {path} cannot be written: {error}") from error


def load(path: Path, kind: str) -> tuple[Layout, dict[str, Array]]:
    """Read a buffer's layout and arrays."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"buffer file {path} does not exist")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, ""))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if header["format"] > FORMAT:
            raise CheckpointError(
                f"buffer file {path} has format {header['format']}, this version reads up to {FORMAT}: upgrade mileage"
            )
        found, layout = header["kind"], layout_from_json(header["layout"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error
    if found != kind:
        raise CheckpointError(
            f"buffer file {path} holds a {found} buffer, not a {kind} one: load it with its own class"
        )
    return layout, arrays


def damaged(path: Path | None = None) -> CheckpointError:
    """The error for a file whose content contradicts itself."""
    name = f"buffer file {path}" if path else "the buffer's file"
    return CheckpointError(f"{name} is damaged or not a mileage buffer: delete it and collect again")
