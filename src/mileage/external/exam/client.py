"""How a training program has its policy examined while it trains, on any interpreter: the standard library is enough.

    from client import Exam  # or from mileage.external.exam.client

    exam = Exam(framework="my-library", version="1.2", threads=1)
    while not exam.look(steps, act):     # act: observations, a list of rows → one action for each
        steps = train_some_more()

Who started the program says in `MILEAGE_EXAM` where the examiner listens. It has the environment and the held-out
seeds; the program has the policy. Lines of JSON go both ways: docs/race.md. Without an examiner `look` says that
training may go on, so that the same program also runs alone.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import IO

ADDRESS = "MILEAGE_EXAM"
"""Environment variable with the path of the examiner's socket."""
Act = Callable[[list[list[float]]], Sequence[object]]


class Exam:
    """The line to the examiner."""

    def __init__(self, **about: object) -> None:
        """Connect, and say what trains: framework, version, threads, packages, whatever is plain JSON."""
        self._file: IO[str] | None = None
        if path := os.environ.get(ADDRESS):
            line = socket.socket(socket.AF_UNIX)
            line.connect(path)
            self._file = line.makefile("rw", encoding="utf-8", newline="\n")
            line.close()  # the file keeps it open
            self._say({"about": about})
            self._hear()

    def look(self, step: int, act: Act, **claimed: float) -> bool:
        """Have the policy examined after `step` environment steps; True once training may stop.

        Args:
            step: environment steps taken so far.
            act: maps observations, a list of rows, to one action for each: whole numbers, or lists of numbers in the
                units of the environment; the best action and not a drawn one.
            claimed: figures of the program's own.
        """
        if self._file is None:
            return False
        self._say({"step": int(step), "claimed": claimed})
        while True:
            told = self._hear()
            if "observations" not in told:
                return bool(told["stop"])
            chosen = act(told["observations"])
            self._say({"actions": [each.tolist() if hasattr(each, "tolist") else each for each in chosen]})

    def _say(self, message: dict[str, object]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()

    def _hear(self) -> dict[str, list[list[float]]]:
        assert self._file is not None
        line = self._file.readline()
        told: dict[str, list[list[float]]] = json.loads(line) if line else {}
        if "error" in told or not told:
            raise RuntimeError(f"the exam ended: {told.get('error', 'the examiner has gone')}")
        return told
