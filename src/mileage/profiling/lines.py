"""Which loops of Python in a user's network take the time, by stacks of the training thread."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import mileage
from mileage.contracts import Learner
from mileage.measure import PhaseClock
from mileage.records import PlainData
from mileage.system import frame_of
from mileage.user_code import in_loop

_INTERVAL = 0.0005
_LEAST_SECONDS, _MOST_SECONDS = 0.2, 1.5
_MOST_LINES = 8
_LIBRARIES = tuple({str(Path(mileage.__file__).parent), *sysconfig.get_paths().values()})
_MODULE, _GRADIENT = str(Path("/torch/nn/modules/module.py")), str(Path("/torch/autograd/__init__.py"))


@dataclass(frozen=True)
class HotLine(PlainData):
    """One line of a loop in a user's network."""

    function: str
    """As Python calls it: "Net.forward"."""
    file: str
    line: int
    share: float
    """Of the iterations' time, with all that the line calls and its part of the gradient."""

    @property
    def place(self) -> str:
        """ "Net.forward (net.py:12)"."""
        return f"{self.function} ({Path(self.file).name}:{self.line})"


def hot_lines(learner: Learner, seconds: float) -> tuple[HotLine, ...]:
    """Lines in loops of modules outside of the libraries, by the share of iterations that is spent in them."""
    seen = Seen()
    _sample(learner, min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS), seen)
    return tuple(
        HotLine(code.co_qualname.rpartition("<locals>.")[2], code.co_filename, line, seen.share(count))
        for (code, line), count in seen.loops.most_common(_MOST_LINES)
    )


@dataclass
class Seen:
    """Samples of the training thread."""

    samples: int = 0
    gradient: int = 0
    forward: int = 0
    """In a user's network."""
    loops: Counter[tuple[CodeType, int]] = field(default_factory=Counter)
    """Of these by the outermost line that is in a loop."""

    def add(self, frame: FrameType | None) -> None:
        """One more look at its stack."""
        own: list[FrameType] = []
        inside = gradient = 0
        while frame is not None:
            file = frame.f_code.co_filename
            if file.endswith(_MODULE):
                inside = len(own)
            elif file.endswith(_GRADIENT):
                gradient = 1
            elif not file.startswith(_LIBRARIES) and not file.startswith("<"):
                own.append(frame)
            frame = frame.f_back
        self.samples += 1
        self.gradient += gradient
        self.forward += inside > 0
        for each in reversed(own[:inside]):
            code, line = each.f_code, each.f_lineno or 0
            if in_loop(code.co_filename, code.co_firstlineno, line):
                self.loops[code, line] += 1
                break

    def share(self, count: int) -> float:
        """Of all time: a line has the part of the gradient that it has of the forward pass."""
        return count * (1.0 + self.gradient / self.forward) / self.samples


def _sample(learner: Learner, seconds: float, seen: Seen) -> None:
    """Look at the stack of this thread while it iterates."""
    watched, done = threading.get_ident(), threading.Event()

    def sample() -> None:
        while not done.wait(_INTERVAL):
            seen.add(frame_of(watched))

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
