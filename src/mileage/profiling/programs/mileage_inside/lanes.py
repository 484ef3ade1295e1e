"""Calls that are timed where they are made: who is open on which thread, and since when."""

from __future__ import annotations

import contextlib
import copy
from _thread import get_ident
from array import array
from threading import local
from time import perf_counter_ns as _now
from types import FunctionType, MethodType
from typing import Callable  # noqa: UP035  # 3.8 has no other

KINDS = ("", "env.step", "env.reset", "backward", "optimizer.step", "evaluation", "logging", "checkpoint", "callback",
         "generate", "replay buffer")  # fmt: skip
"""What a call is, by its number; 0 is none of these."""
KIND_BITS = 5
_EVALUATION = 1 << KINDS.index("evaluation")
# Warnings name the line that called, and skip frames of files with both of these words in their name: ours must not
# be the line that a warning of the program names.
FILE = "<frozen importlib._bootstrap, mileage>"

Function = Callable[..., object]


class Lane:
    """Calls of one thread: which kinds are open, the innermost of them, and those that have ended."""

    __slots__ = ("calls", "ident", "inner", "kind", "open")

    def __init__(self) -> None:
        self.ident = get_ident()
        self.open = 0
        self.kind = 0
        self.inner = 0
        """Nanoseconds of calls that have ended within the one that is open."""
        self.calls = array("q")
        """Of every call: start and kind in one number, end, and what was its own."""
        LANES.append(self)


class _Here(local):
    """The lane of whichever thread asks."""

    def __init__(self) -> None:
        self.lane = Lane()


LANES: list[Lane] = []
_here = _Here()


def only_this_thread() -> Lane:
    """Forget all lanes but that of the calling thread, which a fork has left alone."""
    lane = _here.lane
    del lane.calls[:]
    lane.open = lane.kind = lane.inner = 0
    LANES[:] = [lane]
    return lane


def opened(kind: int) -> tuple[int, int, int] | None:
    """Open a call by hand; what `closed` takes, or None where it is not counted."""
    lane = _here.lane
    if lane.open & (1 << kind | _EVALUATION):
        return None
    lane.open |= 1 << kind
    token = (_now(), lane.kind, lane.inner)
    lane.kind, lane.inner = kind, 0
    return token


def closed(kind: int, token: tuple[int, int, int] | None) -> None:
    """Close what `opened` has opened."""
    if token is None:
        return
    end, lane = _now(), _here.lane
    start, lane.kind, inner = token
    lane.open &= ~(1 << kind)
    add = lane.calls.append
    add(start << KIND_BITS | kind)
    add(end)
    add(end - start - lane.inner)
    lane.inner = inner + end - start


def timed(function: Function, kind: int) -> Function:
    """`function`, timed: the outermost call of its kind on a thread, and none within an evaluation."""
    bit = 1 << kind
    inside, others = bit | _EVALUATION, ~bit
    here = _here

    def call(*args: object, **kwargs: object) -> object:
        lane = here.lane
        if lane.open & inside:
            return function(*args, **kwargs)
        lane.open |= bit
        before, lane.kind = lane.kind, kind
        outer, lane.inner = lane.inner, 0
        start = _now()
        try:
            return function(*args, **kwargs)
        finally:
            end = _now()
            lane.kind = before
            lane.open &= others
            add = lane.calls.append
            add(start << KIND_BITS | kind)
            add(end)
            add(end - start - lane.inner)
            lane.inner = outer + end - start

    call.__code__ = call.__code__.replace(co_filename=FILE)
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        with contextlib.suppress(AttributeError):
            setattr(call, name, getattr(function, name))
    call.__dict__.update(getattr(function, "__dict__", {}))
    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


class TimedMethod:
    """A method that is timed when an object's is called; the class itself shows the function it was given.

    A copy of the class, such as cloudpickle makes for another process, has that function and nothing of this.
    """

    def __init__(self, function: FunctionType, kind: int) -> None:
        self._function = function
        self._call = timed(function, kind)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __get__(self, obj: object, owner: type | None = None) -> object:
        return self._function if obj is None else MethodType(self._call, obj)

    def __reduce__(self) -> tuple[Function, tuple[FunctionType]]:
        return copy.copy, (self._function,)


def time_methods(owner: type, kinds: dict[str, int]) -> None:
    """Time the methods of a class that it defines itself."""
    for name, kind in kinds.items():
        function = vars(owner).get(name)
        if isinstance(function, FunctionType) and not vars(function).get("__isabstractmethod__", False):
            setattr(owner, name, TimedMethod(function, kind))


def time_family(owner: type, kinds: dict[str, int]) -> None:
    """Time the methods of a class and of all classes below it, those to come included."""
    waiting = [owner]
    while waiting:
        each = waiting.pop()
        time_methods(each, kinds)
        waiting.extend(type.__subclasses__(each))
    earlier = vars(owner).get("__init_subclass__")

    def begun(cls: type, **kwargs: object) -> None:
        if earlier is None:
            super(owner, cls).__init_subclass__(**kwargs)  # type: ignore[arg-type]
        else:
            earlier.__get__(None, cls)(**kwargs)
        time_methods(cls, kinds)

    begun.__code__ = begun.__code__.replace(co_filename=FILE)
    owner.__init_subclass__ = classmethod(begun)  # type: ignore[arg-type,assignment]


def time_function(module: object, name: str, kind: int) -> None:
    """Time a function of a module for whoever imports it from now on."""
    function = vars(module).get(name)
    if callable(function):
        setattr(module, name, timed(function, kind))
