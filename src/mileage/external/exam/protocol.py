"""Messages between an exam and a policy: JSON, arrays as NumPy writes them, and a policy that is a program.

The lines, each a JSON object ("docs/exam.md" has them in full):

    exam      {"begin": {"protocol": 1, "episodes": n, "deterministic": true}}
    exam      {"act": {"episodes": [0, 1, …], "observations": [[…], …]}}
    program   {"actions": […]}
    exam      {"end": {}}
"""

from __future__ import annotations

import io
import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np

from mileage.errors import UsageError
from mileage.external.exam.actors import Actor
from mileage.records import Record
from mileage.types import I64, Action, Array, Observation


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


def taken_apart(values: Observation, arrays: list[Array]) -> int | Record:
    """The form of nested `values`, whose arrays are appended to `arrays`."""
    if isinstance(values, dict):
        return {"dict": {name: taken_apart(each, arrays) for name, each in values.items()}}
    if isinstance(values, tuple):
        return {"tuple": [taken_apart(each, arrays) for each in values]}
    arrays.append(np.asarray(values))
    return len(arrays) - 1


def put_together(form: int | Record, arrays: Sequence[Array]) -> Observation:
    """What `taken_apart` took apart."""
    if isinstance(form, int):
        return arrays[form]
    if "dict" in form:
        return {name: put_together(each, arrays) for name, each in form["dict"].items()}
    return tuple(put_together(each, arrays) for each in form["tuple"])


# --- A policy that is a program: a line of JSON with observations in, a line of JSON with actions out ---
PROTOCOL = 1
"""Of the lines; a later one would be another number."""
PATIENCE_SECONDS = 120.0
"""In which a program must answer; the first answer includes its imports."""
_LONGEST_ANSWER = 64 * 2**20


class ProgramActor(Actor):
    """A program that answers on its standard output; what it prints elsewhere is its own."""

    remembers = True

    def __init__(self, command: Sequence[str] | str, patience: float = PATIENCE_SECONDS) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        if not self._command or shutil.which(self._command[0]) is None:
            raise UsageError(f"the policy's program {' '.join(self._command)!r} cannot be run: there is none")
        self._patience = patience
        self._rest = b""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        assert self._process.stdout is not None
        self._wait = selectors.DefaultSelector()
        self._wait.register(self._process.stdout, selectors.EVENT_READ)

    def begin(self, episodes: int, deterministic: bool) -> None:
        """Say what is about to be played."""
        self._say({"begin": {"protocol": PROTOCOL, "episodes": episodes, "deterministic": deterministic}})

    def act(self, observations: Observation, episodes: I64) -> Action:
        """Ask for actions, and wait for them."""
        self._say({"act": {"episodes": episodes.tolist(), "observations": _plain(observations)}})
        line = self._line()
        try:
            answer = json.loads(line)
            actions = answer["actions"]
            if not isinstance(actions, list):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            shown = line[:80].decode("utf-8", "replace")
            raise UsageError(f'the policy\'s program must answer {{"actions": […]}}, not {shown!r}') from None
        return np.asarray(actions) if _even(actions) else actions

    def close(self) -> None:
        """End the program and all it started."""
        with suppress(OSError, UsageError):
            self._say({"end": {}})
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._wait.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _say(self, message: Record) -> None:
        assert self._process.stdin is not None
        data = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        try:
            while data:
                data = data[self._process.stdin.write(data) or 0 :]
        except BrokenPipeError:
            raise UsageError(self._gone()) from None

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        until = time.monotonic() + self._patience
        pieces = [self._rest]
        size = len(self._rest)
        while b"\n" not in pieces[-1]:
            left = until - time.monotonic()
            if left <= 0 or not self._wait.select(left):
                raise UsageError(f"the policy's program has not answered for {self._patience:g} s")
            more = self._process.stdout.read(1 << 16)
            if not more:
                raise UsageError(self._gone())
            pieces.append(more)
            size += len(more)
            if size > _LONGEST_ANSWER:
                raise UsageError("the policy's program answers with lines that do not end")
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        return line

    def _gone(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the policy's program has closed its output before the exam was over"
        return f"the policy's program ended with exit code {code} before the exam was over"


def _plain(values: Observation) -> object:
    if isinstance(values, dict):
        return {name: _plain(each) for name, each in values.items()}
    if isinstance(values, tuple):
        return [_plain(each) for each in values]
    array = np.asarray(values)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [_plain(each) for each in array] if array.ndim > 1 else [_number(each) for each in array.ravel()]
    return array.tolist()


def _number(value: float) -> float | None:
    """A number that JSON has; null for those that it has not."""
    return float(value) if np.isfinite(value) else None


def _even(actions: list[object]) -> bool:
    """Whether all actions are of one shape."""
    return len({len(each) if isinstance(each, list) else -1 for each in actions}) <= 1
