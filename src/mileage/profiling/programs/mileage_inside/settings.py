"""A watched program's own settings, and the files that its processes write."""

from __future__ import annotations

import os
import sys
import time
from array import array

# --- Files of one watched process. They are opened for every write: the program may close whatever it finds open ---
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


_SIMPLE = (bool, int, float, str)
_LONGEST = 200
_MOST = 200
_SECRET = ("token", "secret", "password", "passwd", "credential", "api_key", "apikey", "private")
_LOOK_AT_SECONDS = (1.0, 5.0, 30.0, 300.0)


class Clock:
    """What is asked of a clock of phases."""

    current: str


class Notes:
    """What is noted once of each setting, and the phases of a clock of mileage's own."""

    def __init__(self) -> None:
        self._files: Files | None = None
        self._seen: set[tuple[str, str]] = set()
        self._looks = list(_LOOK_AT_SECONDS)
        self._began = time.monotonic()
        self.clock: Clock | None = None
        """The last clock of phases that the program has made with mileage."""
        self._phases: dict[str, int] = {}
        self._last = 0

    def begin(self, files: Files) -> None:
        """Note from now on into `files`."""
        self._files = files
        self._seen = set()
        self._last = 0

    def note(self, source: str, values: object, options: dict[str, list[str]] | None = None) -> None:
        """Settings by name, with the options of the command line that set them."""
        items = values.items() if isinstance(values, dict) else getattr(values, "__dict__", {}).items()
        for name, value in list(items):
            if not isinstance(name, str) or name.startswith("_") or (source, name) in self._seen:
                continue
            hidden = any(word in name.lower() for word in _SECRET)
            if self._files is None or len(self._seen) >= _MOST or hidden or not isinstance(value, _SIMPLE):
                continue
            self._seen.add((source, name))
            shown = value[:_LONGEST] if isinstance(value, str) else value
            self._files.say("setting", source, name, shown, (options or {}).get(name, []))

    def fact(self, *fact: object) -> None:
        """Anything else, once."""
        if self._files is not None and ("fact", repr(fact)) not in self._seen:
            self._seen.add(("fact", repr(fact)))
            self._files.say(*fact)

    def look_at_main_at_times(self) -> None:
        """Note the settings of the main module, seldom."""
        if self._looks and time.monotonic() - self._began > self._looks[0]:
            del self._looks[0]
            self.look_at_main()

    def look_at_main(self) -> None:
        """Note what the main module holds under the names that scripts give to their settings."""
        main = sys.modules.get("__main__")
        for name in ("args", "cfg", "config", "flags", "hparams", "FLAGS"):
            value = vars(main).get(name) if main is not None else None
            if value is not None and not isinstance(value, _SIMPLE):
                self.note(name, value)

    def phase(self) -> int:
        """The number of the phase that is open on mileage's own clock, from 1; 0 without one."""
        if self.clock is None:
            return 0
        return self._phases.setdefault(self.clock.current, len(self._phases) + 1)

    def new_phases(self) -> list[str]:
        """Names of phases since the last call, in the order of their numbers."""
        new = list(self._phases)[self._last :]
        self._last = len(self._phases)
        return new


NOTES = Notes()
