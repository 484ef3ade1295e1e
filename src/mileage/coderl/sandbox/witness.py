"""Which programs of a test command left before their end: heard from `witness.c`, which is loaded into each of them.

Test runners that can be made to (`witness.go`, pytest) also tell what each test did, past what is printed.

Part of the launcher: the standard library alone.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # as a script it has the standard library alone
    from mileage.records import Record

_CREDENTIALS = struct.Struct("iii")
_TOKEN = 16
# Beyond this many programs nobody is testing any more.
MOST_PROGRAMS = 200_000
# What is kept of all that is said, which is memory of the launcher and not of the job.
MOST_BYTES = 64 << 20
# Taken at a time: who talks without end must not keep the launcher from looking at the clock.
MOST_AT_ONCE = 1000
LARGEST_PROGRAM = 256 << 20
# Told of each program of tests that came to its end; Cargo ends their names with a hash.
RAN = "ran "
_HASH = re.compile(r"-[0-9a-f]{16}$")
FLOODED = "more programs than can be watched"


class Witness:
    """Listens to programs; a program has come to its end when it said that its main function returned, and good-bye."""

    def __init__(self, rules: Record | None, tree: str) -> None:
        self.library: str = (rules or {}).get("witness") or ""
        self.variables: dict[str, str] = (rules or {}).get("variables") or {}
        self.told: dict[str, None] = {}
        self.tree = tree
        self.paths: list[str] = (rules or {}).get("paths", []) + [
            test["path"] for test in (rules or {}).get("tests", [])
        ]
        self.socket: socket.socket | None = None
        self.commands: dict[tuple[int, bytes], bytes] = {}
        self.said: dict[tuple[int, bytes], set[bytes]] = {}
        self.flooded = False
        self.bytes = 0
        self.sources: dict[bytes, bool] = {}

    def begin(self) -> dict[str, str]:
        """Listen from now on; the variables that make programs speak."""
        if not self.library and not self.variables:
            return {}
        if self.socket is None:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.socket.setblocking(False)
            # A name without a file: nobody can remove it or take its place.
            self.name = f"mileage-{secrets.token_hex(16)}"
            self.socket.bind("\0" + self.name)
        loaded = {"LD_PRELOAD": self.library} if self.library else {}
        return {**self.variables, **loaded, "MILEAGE_WITNESS": self.name}

    @property
    def descriptors(self) -> list[int]:
        """What to wait for."""
        return [self.socket.fileno()] if self.socket else []

    def listen(self) -> bool:
        """Take what was said; whether there may be more."""
        for _ in range(MOST_AT_ONCE if self.socket else 0):
            assert self.socket is not None
            try:
                message, extra, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                return False
            kept = message[:1] in (b"T", b"B")
            self.bytes += len(message) if kept else 0
            if kept and self.bytes > MOST_BYTES:
                self.flooded = True
                continue
            # Who speaks is said by the kernel.
            pid = _CREDENTIALS.unpack(extra[0][2])[0] if extra else 0
            kind, speaker = message[:1], (pid, message[1 : 1 + _TOKEN])
            if kind == b"T":
                self.told[message[1:].decode("utf-8", "replace")] = None
            elif kind == b"B" and len(self.commands) < MOST_PROGRAMS:
                self.commands[speaker] = message[1 + _TOKEN :]
                self.said[speaker] = set()
            elif kind == b"B":
                self.flooded = True
            elif speaker in self.said:
                self.said[speaker].add(kind)
        return self.socket is not None

    def left_early(self, own: list[int]) -> list[str]:
        """The commands, among those that judge a candidate, that did not come to their end; `own` are the steps'."""
        while self.listen():
            pass
        found = {FLOODED: None} if self.flooded else {}
        judges: dict[bytes, bool] = {}
        for speaker, command in self.commands.items():
            if self.said[speaker] >= {b"R", b"E"}:
                self._take_down(command.partition(b"\0")[0])
                continue
            if command not in judges:
                judges[command] = self._judges(command)
            if judges[command] or speaker[0] in own:
                how = " (by exit)" if b"E" in self.said[speaker] else ""
                found[_shown(command) + how] = None
        return list(found)

    def _take_down(self, program: bytes) -> None:
        """Note that a program of tests came to its end: one that does not even begin says nothing at all."""
        if program.startswith(self.tree.encode() + b"/") and os.path.exists(program) and self._has_source(program):
            name = program[len(self.tree) + 1 :].decode("utf-8", "replace")
            self.told[RAN + _HASH.sub("", name)] = None

    def _judges(self, command: bytes) -> bool:
        """Whether a command names a protected path, or is a program of the tree with a protected source in it."""
        program, *arguments = command.split(b"\0")
        tree = self.tree.encode()
        for argument in arguments:
            name = argument.removeprefix(tree + b"/").removeprefix(b"./")
            if any(name == path.encode() or name.startswith(path.encode() + b"/") for path in self.paths):
                return True
        return program.startswith(tree + b"/") and self._has_source(program)

    def _has_source(self, program: bytes) -> bool:
        """Whether a protected source is in a program of the tree."""
        if program not in self.sources:
            try:
                self.sources[program] = os.stat(program).st_size > LARGEST_PROGRAM or self._has_trace(program)
            except OSError:
                # Nobody but a candidate removes a test's program while it runs.
                return True
        return self.sources[program]

    def _has_trace(self, program: bytes) -> bool:
        with open(program, "rb") as file:
            content = file.read()
        return any(name in content for path in self.paths for name in self._traces(path))

    def _traces(self, path: str) -> list[bytes]:
        """What a compiler leaves of the names of the sources at `path` in a program."""
        files = [path]
        if os.path.isdir(f"{self.tree}/{path}"):
            files = [
                os.path.relpath(f"{directory}/{name}", self.tree)
                for directory, _, names in os.walk(f"{self.tree}/{path}")
                for name in names
            ]
        names = [os.fsencode(file) for file in files]
        return names + [b"\0" + os.path.basename(name) + b"\0" for name in names]


def _shown(command: bytes) -> str:
    """A command as people write it; of a program that was given as text, its beginning."""
    words = command.decode("utf-8", "replace").split("\0")
    return " ".join(word if "\n" not in word else f"{word.splitlines()[0][:40]}..." for word in words)
