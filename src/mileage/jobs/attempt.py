"""One attempt of a job as a process that dies with whoever watches over it, wherever that is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ATTEMPT_PATIENCE_SECONDS = 15.0
"""Between asking an attempt to save and end, and ending it."""
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


class RunningAttempt:
    """A command that runs in a session of its own, on given cores."""

    def __init__(
        self, command: Sequence[str], directory: Path, variables: Mapping[str, str], cores: Iterable[int] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        before = os.sched_getaffinity(0)
        environment = {**os.environ, **variables}
        with (directory / "stdout.txt").open("ab") as out, (directory / "stderr.txt").open("ab") as errors:
            try:
                if cores is not None:  # a child has the cores of the thread that starts it
                    os.sched_setaffinity(0, cores)
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment, start_new_session=True,
                )  # fmt: skip
            finally:
                os.sched_setaffinity(0, before)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative where a signal ended it."""
        return self._process.poll()

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        return self._process.wait()

    def ask_to_end(self) -> None:
        """Have it save and end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Have it save and end, or end it."""
        if self._process.poll() is not None:
            return
        self.ask_to_end()
        try:
            self._process.wait(ATTEMPT_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def main() -> None:
    """Become the command, and die with the process whose number comes first, even if that is killed."""
    watcher, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != watcher:  # it died before it could be watched
        sys.exit(128 + signal.SIGKILL)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
