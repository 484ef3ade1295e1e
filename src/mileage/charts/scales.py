"""From numbers to places on a page: scales, round ticks, and how ticks are spelled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Spell = Callable[[float], str]


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on places from `start` to `end`; logarithmic where `log` is set."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of `value`."""
        low, high = self._level(self.low), self._level(self.high)
        share = (self._level(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def _level(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, count: int = 5) -> list[float]:
        """Round values between `low` and `high`: powers of ten, or about `count` at even distances."""
        return decades(self.low, self.high) if self.log else ticks(self.low, self.high, count)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round values at even distances between `low` and `high`."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    rough = (high - low) / max(count, 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if unit * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between `low` and `high`, thinned where there are many."""
    first, last = math.floor(math.log10(max(low, 1e-300))), math.ceil(math.log10(max(high, 1e-300)))
    factors = (1.0, 2.0, 5.0) if last - first <= 3 else (1.0,)
    stride = max(1, (last - first) // 6)
    found = [factor * 10.0**power for power in range(first, last + 1, stride) for factor in factors]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]


def padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """The lowest and highest of `values` with room on both sides; a single value gets room of its own."""
    found = [value for value in values if math.isfinite(value)]
    if not found:
        return 0.0, 1.0
    low, high = min(found), max(found)
    room = share * (high - low) or abs(high) * 0.1 or 1.0
    return low - room, high + room


def compact(value: float) -> str:
    """A count for an axis: 500, 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def seconds(value: float) -> str:
    """A time for an axis."""
    return (
        f"{value:.4g} s"
        if abs(value) < 600
        else f"{value / 60:.4g} min"
        if abs(value) < 7200
        else f"{value / 3600:.4g} h"
    )


def usd(value: float) -> str:
    """Dollars for an axis."""
    if value == 0 or abs(value) >= 0.01:
        return f"${value:,.4g}"
    return f"${value:.{1 - math.floor(math.log10(abs(value)))}f}".rstrip("0")
