"""Waiting for what must come: no test asserts how long something takes, as a busy machine may take any time."""

from __future__ import annotations

import time
from collections.abc import Callable

MINUTES = 180.0
"""Seconds after which what is waited for will not come on any machine."""


def until(condition: Callable[[], object]) -> None:
    """Return once `condition` holds; where it never does, fail."""
    end = time.monotonic() + MINUTES
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("what was waited for did not come")
        time.sleep(0.01)
