"""Files of one watched process. They are opened for every write: the program may close whatever it finds open."""

from __future__ import annotations

import os
from array import array

SEGMENT_BYTES = 1 << 22
"""Calls go to a new file after this many bytes, so that whoever reads can let go of those before."""


class Files:
    """Where one process writes: facts as lines, samples and calls as bare numbers."""

    def __init__(self, place: str, pid: int) -> None:
        self._base = os.path.join(place, str(pid))
        self._lines: list[str] = []
        self._segment = 0
        self._in_segment = 0

    def say(self, *fact: object) -> None:
        """A fact; it is written with the next samples."""
        self._lines.append(ascii(fact) + "\n")

    def write(self, samples: array[int], calls: array[int]) -> None:
        """Everything since the last time; a disk that is full loses it."""
        lines, self._lines = self._lines, []
        try:
            if lines:
                _append(self._base + ".facts", "".join(lines).encode("ascii", "replace"))
            if samples:
                _append(self._base + ".samples", samples.tobytes())
            if calls:
                _append(f"{self._base}.calls.{self._segment}", calls.tobytes())
                self._in_segment += 8 * len(calls)
                if self._in_segment > SEGMENT_BYTES:
                    self._segment += 1
                    self._in_segment = 0
        except OSError:
            pass


def _append(path: str, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)
