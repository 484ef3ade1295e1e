"""Which lines of a user's network take the time: stacks of the training thread, and loops that Python goes through."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import mileage
from mileage._interrupts import frame_of
from mileage._records import PlainData
from mileage.contracts import Learner
from mileage.meter import PhaseClock

_INTERVAL = 0.0005
_LEAST_SECONDS, _MOST_SECONDS = 0.2, 1.5
_MOST_LINES = 8
# Calls of a function whose lines are counted.
_COUNTED_CALLS = 2
_LIBRARIES = tuple({str(Path(mileage.__file__).parent), *sysconfig.get_paths().values()})


@dataclass(frozen=True)
class HotLine(PlainData):
    """One line of a user's network."""

    function: str
    """As Python calls it: "Net.forward"."""
    file: str
    line: int
    share: float
    """Of the iterations' time, with all that the line calls."""
    rounds: float
    """How often it runs in one call of its function; above 1 it is in a loop."""

    @property
    def place(self) -> str:
        """ "Net.forward (net.py:12)"."""
        return f"{self.function} ({Path(self.file).name}:{self.line})"


def hot_lines(learner: Learner, seconds: float) -> tuple[HotLine, ...]:
    """Lines of modules outside of the libraries, by the share of iterations that is spent in them."""
    counts, samples = _sampled(learner, min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS))
    if not samples:
        return ()
    ranked = counts.most_common(_MOST_LINES)
    rounds = _rounds(learner, {code for (code, _), _ in ranked})
    return tuple(
        HotLine(
            code.co_qualname.rpartition("<locals>.")[2],
            code.co_filename,
            line,
            count / samples,
            rounds.get((code, line), 0.0),
        )
        for (code, line), count in ranked
    )


def _sampled(learner: Learner, seconds: float) -> tuple[Counter[tuple[CodeType, int]], int]:
    """How many samples of the stack have a line of a user's module in them, and how many samples there are."""
    watched, found, samples = threading.get_ident(), Counter[tuple[CodeType, int]](), [0]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(_INTERVAL):
            frame = frame_of(watched)
            samples[0] += 1
            place = _of_module(frame)
            if place is not None:
                found[place] += 1

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=sample, daemon=True)
    # The sampler needs the interpreter as often as it looks.
    sys.setswitchinterval(_INTERVAL / 5)
    clock, end = PhaseClock(), time.perf_counter() + seconds
    thread.start()
    try:
        learner.iterate(clock, 0.5)
        while time.perf_counter() < end:
            learner.iterate(clock, 0.5)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    return found, samples[0]


def _of_module(frame: FrameType | None) -> tuple[CodeType, int] | None:
    """The innermost line that is a user's and belongs to a method of a network."""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_LIBRARIES) and not code.co_filename.startswith("<"):
            return (code, frame.f_lineno) if _is_module(frame.f_locals.get("self")) else None
        frame = frame.f_back
    return None


def _is_module(value: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _rounds(learner: Learner, codes: set[CodeType]) -> dict[tuple[CodeType, int], float]:
    """How often lines of these functions run per call, by watching the first calls of one iteration."""
    lines, calls = Counter[tuple[CodeType, int]](), Counter[CodeType]()

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            lines[frame.f_code, frame.f_lineno] += 1
        return local

    def entered(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in codes or calls[frame.f_code] >= _COUNTED_CALLS:
            return None
        calls[frame.f_code] += 1
        return local

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        learner.iterate(PhaseClock(), 0.5)
    finally:
        sys.settrace(before)
    return {(code, line): count / calls[code] for (code, line), count in lines.items()}
