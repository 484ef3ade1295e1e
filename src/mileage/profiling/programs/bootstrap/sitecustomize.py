"""Loaded by a watched program's interpreter before the program: begins to watch, and makes way for a module of the same
name that the program's own installation may have.
"""

from __future__ import annotations

import contextlib
import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    above = os.path.dirname(here)
    sys.path.insert(0, above)
    try:
        import mileage_inside  # type: ignore[import-not-found]
    finally:
        sys.path.remove(above)
    mileage_inside.begin()


def _make_way() -> None:
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    if "sitecustomize" not in sys.modules and ours is not None:
        sys.modules["sitecustomize"] = ours


# The program runs, watched or not: that nothing was written says it was not.
with contextlib.suppress(Exception):
    _begin()
_make_way()
