"""A thread that looks at the stacks of the others from time to time, within a budget of CPU time.

A thread that wants the interpreter while another computes gets it at a call that lets go of it by itself, or after the
interpreter's switch interval. With the usual 5 ms, samples gather at such calls and miss the Python between them; so
the interval is short while no other thread of the program uses Python, and as it was while one does, or while the
program imports: a library that is loaded keeps the interpreter for long, and whoever asks for it again and again spins.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from array import array
from time import perf_counter_ns as _now
from types import FrameType

from . import settings
from .lanes import FILE, LANES, only_this_thread
from .settings import Files

INTERVAL_NS = 10_000_000
_LONGEST_NS = 300_000_000
BUDGET = 0.005
"""Of the program's time for the sampler's own, at most, where the interval is not the longest."""
_WAITING_BUDGET = 0.03
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SWITCH_SECONDS = 5e-6
_FLUSH_NS = 500_000_000
_MOST_FRAMES = 500
# The rate halves after so many samples: a run of days is a few times this many.
_SAMPLES_PER_RATE = 60_000
FIELDS = 7
"""Numbers of a sample: when, wall-clock and CPU time since the one before (ns), stack, kind of call, thread, and time
since the one before in which the thread waited for a core (ns; of the main thread alone).
"""
PHASE_SHIFT = 8
"""Above the kind of call stands the phase of mileage's own clock."""


class Sampler:
    """Samples of one process."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._main = only_this_thread()
        self._stacks: dict[tuple[int, int, int], int] = {}
        self._imports: set[int] = set()
        self._codes: dict[int, int] = {}
        self._kept: list[object] = []
        self._threads: dict[int, _Thread] = {self._main.ident: _Thread(self._main.ident)}
        self._samples = array("q")
        self._running = True
        self._ended = allocate_lock()
        self._switch = (sys.getswitchinterval(), 0.0)
        self._others = False
        self._taken = 0
        self._delays = _Delays("/proc/self/schedstat")

    def start(self) -> None:
        """Begin; the thread is unknown to `threading`, as the program should find its own there."""
        self._ended.acquire()
        start_new_thread(self._run, ())

    def stop(self) -> None:
        """End and write what is left."""
        if self._running:
            self._running = False
            self._ended.acquire(True, 1.0)
            self._restore_switch()
            self._flush()

    def forget(self) -> None:
        """The process was forked, and the thread is not there: nothing is to be written twice."""
        self._running = False
        self._restore_switch()

    # The thread

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            self._files.say("lost", repr(error))
        self._files.say("watching", time.thread_time_ns())
        self._ended.release()

    def _loop(self) -> None:
        me = get_ident()
        _sharp_timers()
        last = due = flushed = _now()
        interval, cost, rated = INTERVAL_NS, _Cost(), 0
        while self._running:
            due = max(due + interval, _now())
            time.sleep(max(0.0, (due - _now()) / 1e9))
            now = _now()
            self._take(me, now, now - last)
            last = now
            if now - flushed > _FLUSH_NS:
                flushed = now
                self._flush()
                self._look_round()
                least = INTERVAL_NS << min(4, self._taken // _SAMPLES_PER_RATE)
                interval = cost.interval(self._taken - rated, least)
                rated = self._taken

    def _take(self, me: int, now: int, wall: int) -> None:
        self._taken += 1
        main = self._main
        for ident, frame in sys._current_frames().items():
            if ident == me:
                continue
            thread = self._threads.get(ident)
            if thread is None:
                thread = self._threads[ident] = _Thread(ident)
            cpu = thread.used()
            if ident == main.ident:
                kind = main.kind | settings.NOTES.phase() << PHASE_SHIFT
                stack = self._stack(frame)
                self._samples.extend((now, wall, cpu, stack, kind, 0, self._delays.since()))
                if self._others or stack in self._imports:
                    self._restore_switch()
                else:
                    self._set_switch()
            elif cpu > 0:
                kind = next((lane.kind for lane in LANES if lane.ident == ident), 0)
                self._samples.extend((now, wall, cpu, self._stack(frame), kind, ident & 0x7FFFFFFFFFFFFFFF, 0))

    def _stack(self, frame: FrameType | None) -> int:
        """The number of a stack: that of its last frame in a tree of frames."""
        frames: list[FrameType] = []
        while frame is not None and len(frames) < _MOST_FRAMES:
            frames.append(frame)
            frame = frame.f_back
        stacks, node = self._stacks, 0
        for each in reversed(frames):
            key = (node, id(each.f_code), each.f_lasti)
            found = stacks.get(key)
            node = self._new(key, each) if found is None else found
        return node

    def _new(self, key: tuple[int, int, int], frame: FrameType) -> int:
        code = frame.f_code
        if code.co_filename == FILE or code.co_filename.startswith(_HERE):
            self._stacks[key] = key[0]  # a timed call is as if it were not there
            self._kept.append(code)
            return key[0]
        number = self._codes.get(key[1])
        if number is None:
            number = self._codes[key[1]] = len(self._codes)
            self._kept.append(code)  # or another might get its address
            name = getattr(code, "co_qualname", code.co_name)
            self._files.say("code", number, code.co_filename, name, code.co_firstlineno)
        node = self._stacks[key] = len(self._stacks) + 1
        if key[0] in self._imports or code.co_filename.startswith("<frozen importlib"):
            self._imports.add(node)
        self._files.say("stack", node, key[0], number, frame.f_lineno or code.co_firstlineno)
        return node

    def _flush(self) -> None:
        samples, self._samples = self._samples, array("q")
        calls = array("q")
        for lane in list(LANES):
            whole = len(lane.calls) // 3 * 3
            if lane.ident == self._main.ident:
                calls.extend(lane.calls[:whole])
            del lane.calls[:whole]
        if phases := settings.NOTES.new_phases():
            self._files.say("phases", phases)
        self._files.write(samples, calls)

    # Now and then

    def _look_round(self) -> None:
        settings.NOTES.look_at_main_at_times()
        busy = sum(thread.busy(_FLUSH_NS) for ident, thread in self._threads.items() if ident != self._main.ident)
        self._others = busy > 0

    def _set_switch(self) -> None:
        if sys.getswitchinterval() == self._switch[0]:
            sys.setswitchinterval(min(_SWITCH_SECONDS, self._switch[0]))
            self._switch = (self._switch[0], sys.getswitchinterval())

    def _restore_switch(self) -> None:
        if self._switch[1] and sys.getswitchinterval() == self._switch[1]:
            sys.setswitchinterval(self._switch[0])


def _sharp_timers() -> None:
    """Let this thread wake when it asked to; the kernel would let it wait some tens of microseconds for company."""
    with contextlib.suppress(OSError), open(f"/proc/{get_native_id()}/timerslack_ns", "w") as file:
        file.write("1")


class _Thread:
    """The CPU time of one thread."""

    def __init__(self, ident: int) -> None:
        self._last = self._total = 0
        try:
            self._clock = time.pthread_getcpuclockid(ident)
            self._last = time.clock_gettime_ns(self._clock)
        except (AttributeError, OSError):
            self._clock = -1

    def used(self) -> int:
        """Nanoseconds since the last call; 0 where the system does not say."""
        if self._clock == -1:
            return 0
        try:
            now = time.clock_gettime_ns(self._clock)
        except OSError:  # it has ended
            self._clock = -1
            return 0
        used, self._last = now - self._last, now
        self._total += used
        return used

    def busy(self, within: int) -> bool:
        """Whether it has used a tenth of the time since the last call."""
        used, self._total = self._total, 0
        return used * 10 > within


class _Cost:
    """What the thread that asks costs the program: its CPU time, and half of what it waits for a core.

    It waits twice for every sample, the second time with the program's thread waiting for it to take the interpreter:
    on a machine with too much to do, samples are fewer.
    """

    def __init__(self) -> None:
        self._used = time.thread_time_ns()
        self._delays = _Delays("/proc/thread-self/schedstat")

    def interval(self, samples: int, least: int) -> int:
        """Nanoseconds between samples, going by those since the last call."""
        before, self._used = self._used, time.thread_time_ns()
        used, waited = (self._used - before) / max(1, samples), self._delays.since() / 2 / max(1, samples)
        return int(min(max(used / BUDGET, waited / _WAITING_BUDGET, least), max(_LONGEST_NS, least)))


class _Delays:
    """The time for which a thread could have run and had no core, as the kernel counts it."""

    def __init__(self, path: str) -> None:
        self._last = 0
        try:
            # Read at a place, never from where the last reading ended: whoever gets this number next loses nothing.
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1
        self.since()

    def since(self) -> int:
        """Nanoseconds since the last call; 0 where the kernel does not say."""
        if self._file < 0:
            return 0
        try:
            total = int(os.pread(self._file, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):  # the program has closed it
            self._file = -1
            return 0
        since, self._last = total - self._last, total
        return max(0, since)
