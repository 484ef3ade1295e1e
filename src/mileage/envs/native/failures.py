"""Errors in compiled environments: noted by native code where they happen, raised by Python once it is back.

A C function cannot raise: the call ends with `FAILED`, and whoever made it asks for what was noted of its environments.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from mileage._errors import EnvError
from mileage._types import I64
from mileage.kernels.machine.noted import Failure, take_noted

FAILED = -(1 << 62)
"""What compiled functions of an environment return where one of the user's raised; sums of it stay below zero."""
RESET, STEP, OBSERVE, MASK = range(4)
_NAMES = ("reset", "step", "observe", "mask")
_PACKAGE = str(Path(__file__).parents[2])


def raise_noted(name: str, elapsed: I64, locate: Callable[[int, int], str]) -> None:
    """Raise the first error of the environments called `name` whose ages are `elapsed` (N,) int64, if there is one.

    `locate(function, index)` finds the line, in brackets, of an index error, which compiled code does not tell.
    """
    start = elapsed.ctypes.data
    if own := take_noted(start, start + elapsed.nbytes):
        first = min(own, key=lambda failure: failure.address)
        index = (first.address - start) // elapsed.itemsize
        line = place(first.error) or (locate(first.function, index) if isinstance(first.error, IndexError) else "")
        raise _env_error(name, first, line, index, int(elapsed[index])) from first.error


def _env_error(name: str, failure: Failure, line: str, index: int, elapsed: int) -> EnvError:
    """The sentence for a failure of environment number `index` after `elapsed` steps of its episode."""
    when = "at the start of an episode" if failure.function == RESET else f"in step {elapsed + 1} of its episode"
    said = in_words(failure.error)
    return EnvError(f"{_NAMES[failure.function]}() of {name!r} raised {said}{line} in environment {index}, {when}")


def in_words(error: BaseException) -> str:
    """The kind of an error, and what it says if it says anything."""
    text = str(error.args[0]) if len(error.args) == 1 else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place(error: BaseException) -> str:
    """Where in a user's file an error was raised, in brackets."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    # A line of the user's says more than one of the library that it calls.
    frames = [frame for frame in frames if "site-packages" not in Path(frame.filename).parts] or frames
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
