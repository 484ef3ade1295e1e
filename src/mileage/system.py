"""This process: its cores, its start and helpers, a pool of threads, and signals that end it inside native calls.

Python runs its handlers between two instructions of the main thread: while that is in a native call, Ctrl-C does
nothing. A thread of this module hears of signals at once, and asks the main thread for a sign of life. Where a second
signal comes and there was none, the process ends; whoever asked to be told is told first, for a few seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


def usable_cores() -> int:
    """Cores that this process may run on, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- When this process started, on the clock that everything else is measured with, and which helpers it has ---
# Field 22 of /proc/PID/stat; the command name before it may contain spaces, so fields are counted after its bracket.
_STARTTIME_AFTER_NAME = 19
_LONGEST_CREDIBLE_AGE = 10 * 365 * 86_400.0

helpers: set[int] = set()
"""Processes that this one started for itself, and that are no part of a program it watches."""


def parse_start_seconds(stat: str, ticks_per_second: int) -> float:
    """Seconds between boot and the start of the process that `stat` (a line of /proc/PID/stat) describes."""
    return int(stat.rpartition(")")[2].split()[_STARTTIME_AFTER_NAME]) / ticks_per_second


def process_age_seconds() -> float:
    """Seconds since the operating system started this process (resolution 10 ms on Linux)."""
    try:
        stat = Path("/proc/self/stat").read_text()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - parse_start_seconds(stat, os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        import psutil

        age = time.time() - psutil.Process().create_time()
    # A sandbox that does not fill in the start time reports the age of the machine or worse.
    if not 0.0 <= age < _LONGEST_CREDIBLE_AGE:
        return time.process_time()
    return age


def process_start_ns() -> int:
    """The start of this process on the scale of `time.perf_counter_ns`."""
    age = process_age_seconds()  # first: whatever holds the process up in between must not make it older
    return time.perf_counter_ns() - round(age * 1e9)


# --- A pool of threads that survives a fork ---
Result = TypeVar("Result")


class ThreadPool:
    """`n` threads, started when there is work: a forked child, which has none of its parent's, starts its own."""

    def __init__(self, n: int, begin: Callable[[], object] | None = None) -> None:
        """`begin` is called first on every thread."""
        self._n, self._begin = n, begin
        self._pool: ThreadPoolExecutor | None = None
        self._owner = os.getpid()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Have a thread call `function`."""
        if self._pool is None or self._owner != os.getpid():
            from concurrent.futures import ThreadPoolExecutor

            self._pool, self._owner = ThreadPoolExecutor(self._n, initializer=self._begin), os.getpid()
        return self._pool.submit(function, *arguments)

    def shutdown(self) -> None:
        """End the threads."""
        if self._pool is not None and self._owner == os.getpid():
            self._pool.shutdown()
        self._pool = None


# --- Signals that end a process even from inside a native call that never returns ---
# Seconds that the main thread has to react: to the second signal, and to a first request to end.
_AT_ONCE, _IN_ORDER = 0.5, 20.0
# Seconds for those who are told, in all.
_LAST_WORDS = 3.0
_PACKAGE = str(Path(__file__).parent)
# Where the terminal's cursor was hidden by a progress bar, show it again.
_SHOW_CURSOR = "\x1b[?25h"

_told: list[Callable[[str], None]] = []


@contextlib.contextmanager
def told_of_the_end(tell: Callable[[str], None]) -> Iterator[None]:
    """While the body runs, call `tell` with the reason before the process is ended from here, on another thread."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


@contextlib.contextmanager
def none_swallowed() -> Iterator[None]:
    """Whatever a signal raised in the body is raised again at its end if that was reached all the same.

    Compilers call back into Python, where C code prints an exception and goes on: Ctrl-C would be lost there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[Callable[[], object]] = []

    def keeping(before: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], object]:
        def handle(number: int, frame: FrameType | None) -> object:
            heard.append(functools.partial(before, number, frame))
            return before(number, frame)

        return handle

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: keeping(before) for number, before in handlers.items() if callable(before)}
    for number, handle in ours.items():
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handle in ours.items():
            # A handler may have put another one in its own place.
            if signal.getsignal(number) is handle:
                signal.signal(number, handlers[number])
    if heard:
        heard[0]()


class _Watcher:
    """Hears of signals through a pipe that the C handler of every signal writes to, and probes the main thread."""

    def __init__(self, ears: int) -> None:
        self._ears = ears
        self._signals = 0
        """How many came since the main thread was asked for a sign of life that it has not given."""
        self._last = 0
        self._deadline: float | None = None
        # Python runs pending calls where it runs its handlers: between two instructions of the main thread.
        self._answer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._alive)

    def serve(self) -> None:
        """What the watcher's thread does."""
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if select.select([self._ears], [], [], left)[0]:
                for number in os.read(self._ears, 64):
                    self._hear(number)
            elif self._signals and _in_this_package():
                _end(self._last)
            else:
                self._deadline = None

    def _hear(self, number: int) -> None:
        if number not in (signal.SIGINT, signal.SIGTERM):
            return
        self._signals, self._last = self._signals + 1, number
        if self._signals > 1:
            self._deadline = time.monotonic() + _AT_ONCE
            return
        ctypes.pythonapi.Py_AddPendingCall(self._answer, None)
        self._deadline = time.monotonic() + _IN_ORDER if number == signal.SIGTERM else None

    def _alive(self, _: object) -> int:
        self._signals = 0
        return 0


def _in_this_package() -> bool:
    """Whether a function of this package is under way on the main thread."""
    frame = frame_of(threading.main_thread().ident or 0)
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame is not None


def _end(number: int) -> None:
    """Tell those who asked, say why, and end the process."""
    reason = f"killed by {signal.Signals(number).name} inside a native call that did not return"

    def tell_all() -> None:
        for tell in _told:
            with contextlib.suppress(Exception):
                tell(reason)

    thread = threading.Thread(target=tell_all, daemon=True)
    thread.start()
    thread.join(_LAST_WORDS)
    text = f"mileage: {reason}: what was learned since the last checkpoint is lost\n"
    with contextlib.suppress(OSError):
        os.write(2, ((_SHOW_CURSOR if os.isatty(2) else "") + text).encode())
    os._exit(128 + number)


_watching_in = -1


def watch() -> None:
    """Have signals watched from now on, once per process; only the main thread can ask for it.

    Nothing happens where something else listens to signals in the same way already.
    """
    global _watching_in
    here = threading.current_thread() is threading.main_thread()
    if _watching_in == os.getpid() or not here or sys.platform == "win32":
        return
    ears, mouth = os.pipe()
    os.set_blocking(mouth, False)
    before = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(ears)
        os.close(mouth)
        return
    _watching_in = os.getpid()
    threading.Thread(target=_Watcher(ears).serve, name="mileage-signals", daemon=True).start()


def _forget_after_fork() -> None:
    """A child has its parent's pipe, and no watcher."""
    if _watching_in not in (-1, os.getpid()) and threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_after_fork)


def frame_of(thread: int) -> FrameType | None:
    """What a thread is at, by its identifier."""
    return sys._current_frames().get(thread)
