"""The plotting area that charts share: axes, grid, legend, scales and round ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mileage.report.markup import Html, join, number, tag

# --- From numbers to places on a page: scales, round ticks, and how ticks are spelled ---
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


Point = tuple[float, float]
COLOURS = 8
"""How many colours the style sheet has for arms; more arms repeat them with other dashes."""
DASHES: tuple[str | None, ...] = (None, "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Area:
    """Where a chart draws, in the units of its view box: all are equally wide, and have the same room for an axis."""

    height: int = 320
    left: int = 62
    """Room for what stands beside the vertical axis."""
    top: int = 14
    width, right, bottom = 720, 18, 44

    def x(self, low: float, high: float, *, log: bool = False) -> Scale:
        """A scale from left to right."""
        return Scale(low, high, self.left, self.width - self.right, log)

    def y(self, low: float, high: float) -> Scale:
        """A scale from bottom to top."""
        return Scale(low, high, self.height - self.bottom, self.top)

    def svg(self, label: str, *parts: str) -> Html:
        """The whole picture; `label` says in words what it shows."""
        box = f"0 0 {self.width} {self.height}"
        return tag(
            "svg",
            join(parts),
            viewBox=box,
            role="img",
            aria_label=label,
            class_="chart",
            xmlns=Html("http://www.w3.org/2000/svg"),
        )

    def axes(self, x: Scale, y: Scale, x_title: str, y_title: str, spell_x: Spell, spell_y: Spell) -> Html:
        """Grid lines, numbers beside them, and what they count."""
        low, high = self.height - self.bottom, self.width - self.right
        parts = []
        for value in y.ticks(5):
            place = y(value)
            parts.append(line((self.left, place), (high, place), "grid"))
            parts.append(words(self.left - 8, place + 4, spell_y(value), "tick", "end"))
        for value in x.ticks(6):
            place = x(value)
            parts.append(line((place, low), (place, low + 4), "axis"))
            parts.append(words(place, low + 17, spell_x(value), "tick", "middle"))
        parts.append(line((self.left, low), (high, low), "axis"))
        parts.append(words((self.left + high) / 2, self.height - 6, x_title, "title", "middle"))
        middle = (self.top + low) / 2
        turn = f"rotate(-90 14 {number(middle)})"
        parts.append(tag("text", y_title, x=14, y=number(middle), class_="title", text_anchor="middle", transform=turn))
        return join(parts)


def colour(index: int) -> str:
    """The class that colours the `index`-th arm."""
    return f"c{index % COLOURS}"


def dash(index: int) -> str | None:
    """Its dashes, so that colour alone tells nothing."""
    return DASHES[index % len(DASHES)]


def line(start: Point, end: Point, class_: str) -> Html:
    """A straight line."""
    return tag("line", x1=number(start[0]), y1=number(start[1]), x2=number(end[0]), y2=number(end[1]), class_=class_)


def words(x: float, y: float, said: str, class_: str, anchor: str = "start") -> Html:
    """Text at a place."""
    return tag("text", said, x=number(x), y=number(y), class_=class_, text_anchor=anchor)


def path(points: Iterable[Point], *, closed: bool = False) -> Html:
    """The data of a path through `points`."""
    data = "L".join(f"{number(x)},{number(y)}" for x, y in points)
    return Html(f"M{data}{'Z' if closed else ''}")


def band(xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> Html:
    """The data of a path around what lies between two lines."""
    return path([*zip(xs, low, strict=True), *zip(reversed(xs), reversed(high), strict=True)], closed=True)


def legend(names: Sequence[tuple[str, str]], kind: str = "line") -> Html:
    """Names beside their colours, as a list below a chart; each is (class, name). One without a name is left out."""
    items = []
    for index, (class_, name) in enumerate(names):
        if not name:
            continue
        if kind == "line":
            drawn = tag("line", x1=1, y1=6, x2=25, y2=6, class_=f"curve {class_}", stroke_dasharray=dash(index))
        else:
            drawn = tag("rect", x=6, y=0, width=12, height=12, class_=class_, rx=2)
        key = tag("svg", drawn, width=26, height=12, viewBox="0 0 26 12", aria_hidden="true", class_="key")
        items.append(tag("li", key, name))
    return tag("ul", join(items), class_="legend")
