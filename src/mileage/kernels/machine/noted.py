"""Errors of users' functions in compiled code, which cannot raise them: noted there, asked for once Python is back."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

# Nobody asks after calls that are made for a measurement.
_MOST_NOTED = 1000


@dataclass(frozen=True)
class Failure:
    """What a user's function raised."""

    function: int
    """The number by which it was called."""
    address: int
    """Of its environment's age."""
    error: BaseException


_noted: list[Failure] = []


def note(
    function: int, address: int, kind: type[BaseException], value: object, trace: TracebackType | None = None
) -> None:
    """Take down an error; called by compiled code, on whichever thread that is."""
    arguments = value if isinstance(value, tuple) else () if value is None else (value,)
    error = value if isinstance(value, BaseException) else kind(*arguments)
    if len(_noted) < _MOST_NOTED:
        _noted.append(Failure(function, address, error.with_traceback(trace)))


def take_noted(start: int, end: int) -> list[Failure]:
    """What was noted of environments whose ages are from address `start` to `end`, which is forgotten."""
    if not _noted:
        return []
    own = [failure for failure in _noted if start <= failure.address < end]
    for failure in own:
        _noted.remove(failure)
    return own
