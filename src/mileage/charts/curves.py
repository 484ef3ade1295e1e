"""Learning curves: a recipe is a line, its seeds are a band, and the target is a line of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mileage.charts.markup import Html, join, number, tag
from mileage.charts.plot import Area, Point, band, colour, dash, line, path, words
from mileage.charts.scales import Scale, Spell, compact, padded


@dataclass(frozen=True)
class Curve:
    """One line with what lies around it."""

    name: str
    points: tuple[Point, ...]
    low: tuple[float, ...] = ()
    """Lower end of the band at each point; empty where there are too few runs for an interval."""
    high: tuple[float, ...] = ()
    seeds: tuple[tuple[Point, ...], ...] = ()
    """The runs it is made of, drawn thinly."""
    reached: tuple[Point, ...] = ()
    """First target-reaching evaluation of each run."""


@dataclass(frozen=True)
class Axis:
    """What an axis counts, and how its numbers are spelled."""

    title: str
    spell: Spell = compact


def curve_chart(
    curves: Sequence[Curve],
    x_axis: Axis,
    y_axis: Axis,
    *,
    target: float | None = None,
    area: Area | None = None,
    from_zero: bool = False,
) -> Html:
    """The curves over one axis, with the target line and the first target-reaching evaluation of every run."""
    area = area or Area()
    x, y = _scales(curves, target, area, from_zero=from_zero)
    parts = [area.axes(x, y, x_axis.title, y_axis.title, x_axis.spell, y_axis.spell)]
    if target is not None:
        parts.append(line((area.left, y(target)), (area.width - area.right, y(target)), "target"))
        parts.append(words(area.left + 5, y(target) - 5, f"target {y_axis.spell(target)}", "target-name"))
    for index, curve in enumerate(curves):
        parts.append(_drawn(curve, index, x, y, y_axis))
    names = ", ".join(curve.name for curve in curves)
    return area.svg(f"{y_axis.title} over {x_axis.title}: {names}", *parts)


def _scales(curves: Sequence[Curve], target: float | None, area: Area, *, from_zero: bool) -> tuple[Scale, Scale]:
    points = [point for curve in curves for line_ in (curve.points, curve.reached, *curve.seeds) for point in line_]
    ys = [y for _, y in points] + [y for curve in curves for y in (*curve.low, *curve.high)]
    low, high = padded([*ys, *([] if target is None else [target])])
    most = max((x for x, _ in points), default=1.0) or 1.0
    return area.x(0.0, most * 1.02), area.y(0.0 if from_zero else low, high)


def _drawn(curve: Curve, index: int, x: Scale, y: Scale, y_axis: Axis) -> Html:
    class_ = colour(index)
    parts = []
    if curve.low:
        places = [x(at) for at, _ in curve.points]
        around = band(places, [y(value) for value in curve.low], [y(value) for value in curve.high])
        parts.append(tag("path", d=around, class_=f"band {class_}"))
    thin = f"seed {class_}"
    parts += [tag("path", d=path((x(a), y(b)) for a, b in seed), class_=thin) for seed in curve.seeds]
    if len(curve.points) > 1:
        drawn = path((x(a), y(b)) for a, b in curve.points)
        parts.append(tag("path", d=drawn, class_=f"curve {class_}", stroke_dasharray=dash(index)))
    for a, b in curve.points if len(curve.points) <= 60 else ():
        said = tag("title", f"{curve.name}: {y_axis.spell(b)}")
        parts.append(tag("circle", said, cx=number(x(a)), cy=number(y(b)), r=2.6, class_=f"dot {class_}"))
    for a, b in curve.reached:
        said = tag("title", f"{curve.name}: first evaluation that met the target, {y_axis.spell(b)}")
        parts.append(tag("path", said, d=_diamond(x(a), y(b)), class_=f"reached {class_}"))
    return join(parts)


def _diamond(x: float, y: float, size: float = 5.5) -> Html:
    return path([(x, y - size), (x + size, y), (x, y + size), (x - size, y)], closed=True)


@dataclass(frozen=True)
class Steps:
    """A curve that goes down in steps: for every score, the share of episodes that got at least so much."""

    name: str
    scores: tuple[float, ...]
    shares: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def profile_chart(profiles: Sequence[Steps], x_axis: Axis, *, target: float | None = None) -> Html:
    """Performance profiles: the share of held-out episodes that returned at least what the axis says."""
    area = Area(height=280)
    scores = [score for profile in profiles for score in profile.scores]
    low, high = padded([*scores, *([] if target is None else [target])], 0.03)
    x, y = area.x(low, high), area.y(0.0, 1.04)
    parts = [area.axes(x, y, x_axis.title, "share of episodes", x_axis.spell, lambda share: f"{100 * share:.0f} %")]
    if target is not None:
        parts.append(line((x(target), area.top), (x(target), area.height - area.bottom), "target"))
    for index, profile in enumerate(profiles):
        if not profile.scores:
            continue
        places = [x(score) for score in profile.scores]
        if profile.low:
            around = band(places, [y(each) for each in profile.low], [y(each) for each in profile.high])
            parts.append(tag("path", d=around, class_=f"band {colour(index)}"))
        drawn = path(zip(places, [y(share) for share in profile.shares], strict=True))
        parts.append(tag("path", d=drawn, class_=f"curve {colour(index)}", stroke_dasharray=dash(index)))
    names = ", ".join(profile.name for profile in profiles if profile.scores)
    return area.svg(f"Share of held-out episodes by {x_axis.title}: {names}", *parts)
