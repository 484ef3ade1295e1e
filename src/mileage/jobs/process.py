"""A program with all the processes it starts: begun, watched to its end, and ended for good where it must be.

Processes that leave their parent (daemons) are adopted by this process: all its descendants are the program's, but for
those it has for itself. Once it is gone they are known by a variable in their environment, and a guard ends them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from mileage.errors import UsageError
from mileage.system import helpers

MARK = "MILEAGE_RECORDED_RUN"
"""Names the run in the environment of the program and of everything it starts."""
PATIENCE_SECONDS = 5.0
"""Between asking a process to end and ending it."""
_SUBREAPER = 36
_ENDED = (b"Z", b"X")
_END_MARKED = "import sys; from mileage.jobs import process; process.end_marked(process.MARK, sys.argv[1])"
_GUARD = ("sh", "-c", 'read -r _ || exec "$@"', "sh", sys.executable, "-c", _END_MARKED)
"""Waits for a word of this process, and ends the program if there is none: this process has been killed."""
_POLL_SECONDS = 0.1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OUT_OF_TIME = 124  # exit code, as that of timeout(1)
_FROM_THE_TERMINAL = 0x80  # si_code of a signal that the kernel sent, and sent to the whole foreground group


class How(StrEnum):
    """How a program ended."""

    FINISHED = "finished"
    """With exit code 0."""
    FAILED = "failed"
    """With another exit code."""
    KILLED = "killed"
    """By a signal that did not come from here."""
    INTERRUPTED = "interrupted"
    """By Ctrl-C, or because this process was asked to end."""
    TIMED_OUT = "timed out"
    """By its time limit."""


@dataclass(frozen=True)
class Ended:
    """The end of a program."""

    how: How
    code: int
    """Exit code, or 128 and the number of the signal, as a shell has it; 124 if time was up."""
    left: int
    """Processes that outlived the program and were ended."""

    @property
    def reason(self) -> str:
        """In a few words."""
        told = {How.FINISHED: "the program finished", How.FAILED: f"exit code {self.code}",
                How.KILLED: f"killed by {_signal_name(self.code - 128)}", How.INTERRUPTED: "interrupted",
                How.TIMED_OUT: "out of time"}[self.how]  # fmt: skip
        return told + (f"; {self.left} processes it left were ended" if self.left else "")


@dataclass(frozen=True)
class EndingWay:
    """Where and how a program runs."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beyond those of this process."""
    directory: Path | None = None
    """Where it is started; here by default."""
    log: Path | None = None
    """File that takes its output and its errors, added to what is there; ours by default."""

    def find(self, program: str) -> None:
        """UsageError unless there is `program`: a path is one from the directory that it is started in."""
        path = str(self.directory / program) if self.directory is not None and "/" in program else program
        if shutil.which(path) is None:
            raise UsageError(f"{program} cannot be run: there is no such program")


class Program:
    """A command and what it starts; `run` returns when the last of its processes has ended."""

    def __init__(
        self, command: Sequence[str], run_id: str, see_output: Callable[[bytes], None], way: EndingWay | None = None
    ) -> None:
        """Name the parts; `see_output` is shown its standard output, which goes on to ours untouched."""
        self._way = way = way or EndingWay()
        way.find(command[0])
        self._command = list(command)
        self._variables = {MARK: run_id, **way.environment}
        self._enough = False
        self._see_output = see_output

    def _start(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # elsewhere than Linux a daemon is out of sight
            ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
        log = self._way.log
        self._log = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        output, theirs = os.pipe() if self._log is not None else _channel()
        self._guard = subprocess.Popen(
            [*_GUARD, self._variables[MARK]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._others = {pid for pid, (_, parent) in _processes().items() if parent == os.getpid()}
        try:
            self._process = subprocess.Popen(
                self._command, stdout=theirs, stderr=self._log, cwd=self._way.directory,
                env=os.environ | self._variables,
            )  # fmt: skip
        except OSError as error:
            os.close(output)
            self._guard.communicate(b"over\n")
            raise UsageError(f"{self._command[0]} cannot be run: {error.strerror}") from None
        finally:
            os.close(theirs)
        self.pid = self._process.pid
        self._copier = threading.Thread(target=self._copy, args=(output,), name="mileage-output", daemon=True)
        self._copier.start()

    def run(
        self,
        limit_seconds: float | None = None,
        tick: Callable[[], None] = lambda: None,
        started: Callable[[Program], None] = lambda _: None,
    ) -> Ended:
        """Start it and watch it to its end, `tick`ing meanwhile; `started` is told once it runs.

        Ctrl-C reaches the program, twice and thrice ever more firmly: from its start on, none is for us.
        """
        watched = {*_ENDING, signal.SIGCHLD}
        with _held():
            self._start()
            earlier = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        start, asked, status, timed_out = time.monotonic(), 0, None, False
        try:
            started(self)
            while True:
                found = signal.sigtimedwait(watched, _POLL_SECONDS)
                if found is not None and found.si_signo != signal.SIGCHLD:
                    asked += 1
                    self._pass_on(found, asked)
                status = self._reaped(status)
                if self._enough and status is None:
                    self._end_all()
                    status = self._reaped(status)
                if status is not None and (asked or timed_out or self._all_gone()):
                    break
                if limit_seconds is not None and not timed_out and time.monotonic() - start >= limit_seconds:
                    timed_out = True
                    self._end_all()
                tick()
        finally:
            left = self._end_all()
            self._guard.communicate(b"over\n")
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        self._copier.join(PATIENCE_SECONDS)
        code = status if status >= 0 else 128 - status
        how = How.TIMED_OUT if timed_out else How.INTERRUPTED if asked or code == 130 else None
        if how is None and self._enough:
            return Ended(How.FINISHED, 0, left)
        if how is None:
            how = How.FINISHED if status == 0 else How.FAILED if status > 0 else How.KILLED
        return Ended(how, _OUT_OF_TIME if timed_out else code, left)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all its processes for a while."""
        self._send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._send(signal.SIGCONT)

    def has_open(self, path: str) -> bool:
        """Whether one of its processes has a file open."""
        for pid in self._alive():
            with contextlib.suppress(OSError):  # it may end meanwhile
                for each in os.scandir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.path.samefile(each.path, path):
                            return True
        return False

    def enough(self) -> None:
        """Let `run` end the program, which has done what was wanted of it."""
        self._enough = True

    # Signals

    def _pass_on(self, found: signal.struct_siginfo, asked: int) -> None:
        """What was sent to us goes to the program, unless the terminal sent it there too."""
        if asked > 2:
            self._send(signal.SIGKILL)
        elif asked == 2 or found.si_signo != signal.SIGINT:
            self._send(signal.SIGTERM)
        elif found.si_code != _FROM_THE_TERMINAL:
            self._send(signal.SIGINT)

    def _send(self, number: signal.Signals) -> int:
        sent = 0
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                sent += 1
        return sent

    def _end_all(self) -> int:
        """Ask every process to end, and end those that do not; return how many there were."""
        count = self._send(signal.SIGTERM)
        patience = time.monotonic() + PATIENCE_SECONDS
        while not self._all_gone() and time.monotonic() < patience:
            self._reap_adopted()
            time.sleep(0.02)
        while not self._all_gone():
            self._send(signal.SIGKILL)
            self._reap_adopted()
            time.sleep(0.02)
        return count

    # Processes

    def _reaped(self, status: int | None) -> int | None:
        self._reap_adopted()
        return self._process.poll() if status is None else status

    def _reap_adopted(self) -> None:
        """Let go of processes that were left to us and have ended; this process has no other children meanwhile."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid == self.pid:
                    self._process.poll()
                else:
                    os.waitpid(ended.si_pid, os.WNOHANG)

    def _alive(self) -> list[int]:
        """Every process of the program that has not ended."""
        return _below({os.getpid()}, self._others | helpers)

    def _all_gone(self) -> bool:
        """Whether none is left; looked at twice, as one that is forked during a look has left its parent after it."""
        return not self._alive() and not self._alive()

    # Output

    def _copy(self, output: int) -> None:
        out = 1 if self._log is None else self._log
        with contextlib.suppress(OSError):  # the end of a terminal
            while text := os.read(output, 65536):
                self._see_output(text)
                with contextlib.suppress(BrokenPipeError):
                    while text:
                        text = text[os.write(out, text) :]
        os.close(output)
        if self._log is not None:
            os.close(self._log)


def end_marked(variable: str, value: str) -> int:
    """End all processes whose environment has `variable` at `value`, and what they started; return how many."""
    mark, ended = f"{variable}={value}".encode(), set()
    while found := {
        pid
        for pid, (state, _) in _processes().items()
        if pid != os.getpid() and state not in _ENDED and mark in _environment(pid)
    }:
        found.update(_below(found))
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended.update(found)
        time.sleep(0.02)
    return len(ended)


def _processes() -> dict[int, tuple[bytes, int]]:
    """State and parent of every process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                found[int(name)] = (state, int(parent))
    return found


def _below(roots: set[int], spared: Set[int] = frozenset()) -> list[int]:
    """Descendants of `roots` that have not ended, without those `spared` and what is below them."""
    processes, found, level = _processes(), list[int](), roots
    while level := {pid for pid, (_, parent) in processes.items() if parent in level} - spared:
        found += [pid for pid in level if processes[pid][0] not in _ENDED]
    return found


def _environment(pid: int) -> list[bytes]:
    """The variables of a process as it was started with them; none where it has ended or is somebody else's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Keep back what would end this process until the body is over; masked by then, it waits for who asks for it.

    Masked from the beginning it would be masked in what the body starts too.
    """
    heard: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    held = [each for each in _ENDING if is_main and signal.getsignal(each) not in (None, signal.SIG_IGN)]
    handlers = [signal.signal(each, lambda number, _: heard.append(number)) for each in held]
    try:
        yield
    finally:
        for number, handler in zip(held, handlers, strict=True):
            signal.signal(number, handler)
        for each in heard:
            signal.raise_signal(each)


def _channel() -> tuple[int, int]:
    """Where the program's output can be read, and what it writes to: a terminal if ours is one."""
    sys.stdout.flush()
    if not os.isatty(1):
        return os.pipe()
    output, theirs = pty.openpty()
    with contextlib.suppress(termios.error, OSError):
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST  # nothing is changed on the way; our own terminal does what it does
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        termios.tcsetwinsize(theirs, termios.tcgetwinsize(1))
    return output, theirs


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
