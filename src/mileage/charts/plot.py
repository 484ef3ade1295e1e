"""The plotting area that all charts share: its margins, axes, grid and legend, as SVG that a style sheet colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mileage.charts.markup import Html, join, number, tag
from mileage.charts.scales import Scale, Spell

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
