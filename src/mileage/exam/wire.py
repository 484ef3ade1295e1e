"""Messages between an exam and whoever asked for it: JSON, and arrays as NumPy writes them; nothing that runs."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from mileage._records import Record
from mileage._types import Array, Shown


def send(to: Connection, message: Record, arrays: Sequence[Array] = ()) -> None:
    """Send a message and the arrays that go with it."""
    to.send_bytes(json.dumps(message | {"arrays": len(arrays)}).encode())
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        to.send_bytes(file.getbuffer())


def receive(source: Connection) -> tuple[Record, list[Array]]:
    """The next message with its arrays; EOFError if the other side is gone."""
    message: Record = json.loads(source.recv_bytes())
    arrays = [np.load(io.BytesIO(source.recv_bytes()), allow_pickle=False) for _ in range(message.pop("arrays"))]
    return message, arrays


def taken_apart(values: Shown, arrays: list[Array]) -> int | Record:
    """The form of nested `values`, whose arrays are appended to `arrays`."""
    if isinstance(values, dict):
        return {"dict": {name: taken_apart(each, arrays) for name, each in values.items()}}
    if isinstance(values, tuple):
        return {"tuple": [taken_apart(each, arrays) for each in values]}
    arrays.append(np.asarray(values))
    return len(arrays) - 1


def put_together(form: int | Record, arrays: Sequence[Array]) -> Shown:
    """What `taken_apart` took apart."""
    if isinstance(form, int):
        return arrays[form]
    if "dict" in form:
        return {name: put_together(each, arrays) for name, each in form["dict"].items()}
    return tuple(put_together(each, arrays) for each in form["tuple"])
