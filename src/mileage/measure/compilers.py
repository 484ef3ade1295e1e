"""Catches compilation as a phase of its own, whoever compiles.

Numba announces the start and the end on the thread that compiles, and the clock enters and leaves `compile`. JAX
reports a duration when it is done, and torch.compile may end on another thread than it began on: there the time is
moved out of whatever phase it fell into. A library that is imported later is watched from its import on; nothing is
imported for the sake of watching it.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from mileage.measure.clock import PhaseClock
from mileage.metrics import Phase

# Durations that JAX measures around tracing, lowering and compiling; all lie on the thread that compiles.
_JAX_PREFIX = "/jax/core/compile/"

_clocks: list[PhaseClock] = []
_lock = threading.Lock()


class _Thread(threading.local):
    """What the compilers of one thread have open or have reported."""

    def __init__(self) -> None:
        self.depth = 0
        self.opened: list[PhaseClock] = []
        self.reported: list[tuple[int, int]] = []


_here = _Thread()


def compile_started() -> None:
    """Enter `compile` on every watching clock; nested starts (a kernel that calls a kernel) count once."""
    _here.depth += 1
    if _here.depth == 1:
        _here.opened = list(_clocks)
        for clock in _here.opened:
            clock.phase(Phase.COMPILE).__enter__()


def compile_ended() -> None:
    """Leave `compile` when the outermost compilation ends."""
    if _here.depth == 0:
        # Watching began while a compilation was under way.
        return
    _here.depth -= 1
    if _here.depth == 0:
        for clock in _here.opened:
            clock.phase(Phase.COMPILE).__exit__(None, None, None)
        _here.opened = []


def compile_reported(seconds: float) -> None:
    """Move a compilation that ended just now, after `seconds`, to `compile`; a report inside another counts once."""
    end = perf_counter_ns()
    start = end - round(seconds * 1e9)
    inner = 0
    while _here.reported and _here.reported[-1][0] >= start:
        inner_start, inner_end = _here.reported.pop()
        inner += inner_end - inner_start
    if _here.reported:
        start = max(start, _here.reported[-1][1])
    _here.reported.append((start, end))
    for clock in _clocks:
        clock.attribute(Phase.COMPILE, max(0, end - start - inner) / 1e9)


def _watch_numba(event: ModuleType) -> None:
    # The lock is held for compiling and for loading from a cache; `numba:compile` alone would miss the loading.
    class Listener(event.Listener):  # type: ignore[misc, name-defined]
        def on_start(self, event: Any) -> None:
            compile_started()

        def on_end(self, event: Any) -> None:
            compile_ended()

    event.register("numba:compiler_lock", Listener())


def _watch_torch(callback: ModuleType) -> None:
    began = [0]

    def on_start(*_: Any) -> None:
        began[0] = perf_counter_ns()

    def on_end(*_: Any) -> None:
        compile_reported((perf_counter_ns() - began[0]) / 1e9)

    callback.callback_handler.register_start_callback(on_start)
    callback.callback_handler.register_end_callback(on_end)


def _watch_jax(monitoring: ModuleType) -> None:
    def listen(event: str, duration: float, **_: Any) -> None:
        if event.startswith(_JAX_PREFIX):
            compile_reported(duration)

    monitoring.register_event_duration_secs_listener(listen)


# The module whose import makes a compiler watchable, and how to watch it.
_WATCHERS: dict[str, Callable[[ModuleType], None]] = {
    "numba.core.event": _watch_numba,
    "torch._dynamo.callback": _watch_torch,
    "jax._src.monitoring": _watch_jax,
}
_watched: set[str] = set()


def _watch(name: str, module: ModuleType) -> None:
    """Register with one compiler, once; a version without the hook is measured without its compile phase."""
    with _lock:
        if name in _watched:
            return
        _watched.add(name)
    with contextlib.suppress(AttributeError, TypeError):
        _WATCHERS[name](module)


class _ImportHook(importlib.abc.MetaPathFinder):
    """Lets the usual finders find a compiler's module, and watches it as soon as it has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _WATCHERS or fullname in _watched:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):  # foreign: old finders have none
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._watch_after_execution(fullname, spec.loader)
                return spec
        return None

    @staticmethod
    def _watch_after_execution(name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _watch(name, module)

        loader.exec_module = exec_module


_hook = _ImportHook()


@contextlib.contextmanager
def compile_phase(clock: PhaseClock) -> Iterator[None]:
    """While open, compilation by Numba, torch.compile or JAX is phase `compile` of `clock`.

    >>> with compile_phase(PhaseClock()):
    ...     pass
    """
    for name in _WATCHERS:
        module = sys.modules.get(name)
        if module is not None:
            _watch(name, module)
    with _lock:
        if _hook not in sys.meta_path:
            sys.meta_path.insert(0, _hook)
        _clocks.append(clock)
    try:
        yield
    finally:
        with _lock:
            _clocks.remove(clock)
            if not _clocks:
                sys.meta_path.remove(_hook)
