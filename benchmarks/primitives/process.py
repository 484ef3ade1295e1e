"""Other libraries in a process of their own: its start, its answers, and arms that it times when told."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import mileage
from mileage.errors import UsageError
from mileage.measure import Arm
from mileage.measure.timing import Work

from .arms import PEERS


class Channel(Protocol):
    """One question, one answer."""

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send `request` and return what comes back."""
        ...

    def close(self) -> None:
        """End the other side."""
        ...


class ProcessChannel:
    """A worker in another interpreter, which sees this very mileage and the libraries of its own."""

    def __init__(self, python: Path | str) -> None:
        self.python = str(python)
        # The packages alone, without what is installed or lies beside them for this interpreter.
        self._path = tempfile.TemporaryDirectory(prefix="mileage-peers-")
        for package in (Path(mileage.__file__), Path(__file__)):
            folder = package.resolve().parent
            (Path(self._path.name) / folder.name).symlink_to(folder, target_is_directory=True)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        environment = os.environ | {"PYTHONPATH": self._path.name, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [self.python, "-m", "primitives.worker"]
        try:
            self._process = subprocess.Popen(
                command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
            )
        except OSError as error:
            self._log.close()
            self._path.cleanup()
            raise UsageError(
                f"cannot start {self.python!r}: {error.strerror}; give a Python with --peer-python"
            ) from error

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send `request` and return what comes back."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerGoneError(f"the peers' process ({self.python}) has ended{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            # What could not be sent to a process that has ended would be sent again now.
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._path.cleanup()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return f": {lines[-1]}" if lines else ""


class PeerGoneError(UsageError):
    """The process that has the libraries is not there any more."""


class PeerLibraries:
    """The libraries of one interpreter."""

    def __init__(self, channel: Channel, threads: int) -> None:
        self._channel, self._threads = channel, threads
        hello = channel.ask(do="hello")
        self.versions: Mapping[str, str] = hello["versions"]
        self.libraries: tuple[str, ...] = tuple(hello["libraries"])
        self.absent: dict[tuple[str, str], str] = {}
        """Why a library has no arm for a job, by title and library."""

    def arms(
        self, title: str, primitive: str, params: Mapping[str, Any], without: Collection[str] = ()
    ) -> list[Arm[Work]]:
        """Arms of the libraries that are here and can do the job, but for those in `without`."""
        found = []
        for library in (peer.library for peer in PEERS.get(primitive, ())):
            if library not in self.libraries or library in without:
                continue
            key = f"{title}/{library}"
            request = {"primitive": primitive, "params": dict(params) | {"threads": self._threads}, "library": library}
            answer = self._channel.ask(do="build", key=key, **request)
            if "absent" in answer:
                self.absent[title, library] = answer["absent"]
                continue
            name = f"{library}, {answer['label']}" if answer["label"] else library
            found.append(Arm(name, Work(units=answer["units"], timer=self._timer(key))))
        return found

    def drop(self) -> None:
        """Let go of what the arms of a job hold."""
        self._channel.ask(do="drop")

    def close(self) -> None:
        """End the process."""
        self._channel.close()

    def _timer(self, key: str) -> Callable[[int], tuple[float, float]]:
        def sample(repeats: int) -> tuple[float, float]:
            answer = self._channel.ask(do="sample", key=key, repeats=repeats)
            if "absent" in answer:
                raise UsageError(f"{key} failed while it was timed: {answer['absent']}; leave it out")
            return answer["wall"], answer["cpu"]

        return sample

    def __enter__(self) -> PeerLibraries:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
