"""How long calls of each kind took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mileage._records import PlainData
from mileage.watching.mileage_inside.lanes import KINDS
from mileage.watching.trace import Calls


@dataclass(frozen=True)
class CallTimes(PlainData):
    """Calls of one kind, without other timed calls within them."""

    kind: str
    count: int
    seconds: float
    p50_ms: float
    p99_ms: float
    longest_ms: float


def call_times(calls: Calls) -> tuple[CallTimes, ...]:
    """Of every kind that was called, the longest in sum first."""
    found = []
    for number, kind in enumerate(KINDS):
        if kind and len(own := calls.own(kind)):
            p50, p99 = np.quantile(own, [0.5, 0.99]) / 1e6
            longest, total = calls.longest_ns[number] / 1e6, calls.own_ns[number] / 1e9
            count = int(calls.count[number])
            found.append(CallTimes(kind, count, float(total), float(p50), float(p99), float(longest)))
    return tuple(sorted(found, key=lambda each: -each.seconds))
