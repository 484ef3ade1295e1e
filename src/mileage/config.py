"""Ranges of hyperparameters, as types of the fields that hold them: `gamma: Share = 0.99`."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, get_args

from mileage.errors import require


class Range(NamedTuple):
    """What a value must be."""

    need: str
    """In words, after "must be"."""
    holds: Callable[[Any], bool]


Count = Annotated[int, Range("at least 1", lambda value: value >= 1)]
OrNone = Annotated[int, Range("0 or more", lambda value: value >= 0)]
Limit = Annotated[float, Range("0 or more", lambda value: value >= 0)]
"""0 is no limit."""
Share = Annotated[float, Range("between 0 and 1", lambda value: 0.0 <= value <= 1.0)]
Part = Annotated[float, Range("above 0 and at most 1", lambda value: 0.0 < value <= 1.0)]
Bound = Annotated[float, Range("above 0", lambda value: value > 0.0)]
Positive = Annotated[float, Range("above 0 and finite", lambda value: 0.0 < value < math.inf)]
Weight = Annotated[float, Range("0 or more and finite", lambda value: 0.0 <= value < math.inf)]
Finite = Annotated[float, Range("finite", math.isfinite)]


def one_of(*choices: str) -> Range:
    """The range of a field that is one of these words."""
    return Range(f"one of {', '.join(choices)}", choices.__contains__)


def check_ranges(config: object) -> None:
    """Raise for the first field whose value is out of its range."""
    kind: type = type(config)
    for name, (need, holds) in _ranges(kind).items():
        value = getattr(config, name)
        require(holds(value), name, value, need)


@functools.cache
def _ranges(kind: type) -> Mapping[str, Range]:
    """The ranges of all fields; that of a base class holds for a field with another default, too."""
    found: dict[str, Range] = {}
    for each in reversed(kind.__mro__):
        for name, hint in inspect.get_annotations(each, eval_str=True).items():
            for part in get_args(hint):
                if isinstance(part, Range):
                    found[name] = part
    return found
