"""What a way to do a job is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Answers in float32 by different orders of summation.
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Way:
    """One way a library can do a job. Several of a library are tried, and the fastest stands for it."""

    run: Callable[[], object]
    units: int = 1
    """How many times a call does the job."""
    answer: Callable[[Any], Any] | None = None
    """Turns what `run` returns into arrays to be checked; None where there is nothing to compare."""
    label: str = ""
    """What sets this way apart from the library's others, e.g. "2 threads"."""
    prepare: Callable[[], object] | None = None
    """What to do before each sample, untimed."""


def in_python(step: Callable[[Any], Any], actions: Any) -> Way:
    """Call `step` from Python for each row of actions, as a training loop does."""
    rows = list(actions)

    def run() -> None:
        for row in rows:
            step(row)

    return Way(run, units=len(rows))


def same(got: Any, want: Any) -> bool:
    """Whether two answers, each an array or a tuple of arrays, agree to float32 accuracy."""
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True)
    return all(np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE) for one, other in pairs)
