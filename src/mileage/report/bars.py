"""Charts: bars, intervals and learning curves as SVG; sparklines and a bar of phases in characters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mileage.metrics import Phase, duration, percent
from mileage.report.axes import (
    Area,
    Point,
    Scale,
    Spell,
    band,
    colour,
    compact,
    dash,
    line,
    padded,
    path,
    seconds,
    words,
)
from mileage.report.markup import Html, join, number, tag

_KNOWN = {str(phase) for phase in Phase}
_ROW = 40


def phase_class(name: str) -> str:
    """The class that colours a phase; one that users named themselves is coloured like the others of its kind."""
    return f"p-{name.replace('_', '-')}" if name in _KNOWN else "p-own"


def ordered_phases(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """All phases of `rows` in the order in which a run knows them, those of users after them, `other` last."""
    found = {name for row in rows for name, spent in row.items() if spent > 0}
    known = [str(phase) for phase in Phase]
    return sorted(found, key=lambda name: (name == Phase.OTHER, known.index(name) if name in known else 99, name))


def phase_bars(rows: Sequence[tuple[str, Mapping[str, float]]]) -> Html:
    """One bar per row, as long as its seconds, divided into its phases."""
    area = Area(height=len(rows) * _ROW + 52, left=150, top=8)
    most = max((sum(phases.values()) for _, phases in rows), default=0.0) or 1.0
    x, bottom = area.x(0.0, most), area.height - area.bottom
    parts = []
    for value in x.ticks(6):
        parts.append(line((x(value), area.top), (x(value), bottom), "grid"))
        parts.append(words(x(value), bottom + 17, seconds(value), "tick", "middle"))
    parts.append(words((x(0) + x(most)) / 2, area.height - 6, "seconds per run", "title", "middle"))
    order = ordered_phases([phases for _, phases in rows])
    for index, (label, phases) in enumerate(rows):
        top, start, total = area.top + index * _ROW + 6, 0.0, sum(phases.values())
        parts.append(words(area.left - 10, top + 18, _short(label), "name", "end"))
        for name in (name for name in order if phases.get(name, 0.0) > 0):
            spent = phases[name]
            share = spent / total if total else 0.0
            wide = x(start + spent) - x(start)
            hover = tag("title", f"{label}: {name} {duration(spent)}, {percent(share)}")
            parts.append(
                tag(
                    "rect",
                    hover,
                    x=number(x(start)),
                    y=number(top),
                    width=number(max(wide, 0.3)),
                    height=28,
                    class_=phase_class(name),
                )
            )
            if wide > 8 + 7 * len(name):
                parts.append(words(x(start) + wide / 2, top + 18, name, "inside", "middle"))
            start += spent
    said = "; ".join(f"{label}: {_spoken(phases)}" for label, phases in rows)
    return area.svg(f"Seconds per phase. {said}", *parts)


def _spoken(phases: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {duration(spent)}" for name, spent in sorted(phases.items(), key=lambda item: -item[1]))


def _short(label: str, most: int = 20) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"


def phases_over_time(readings: Sequence[tuple[float, Mapping[str, float]]]) -> Html:
    """The share of each phase between one reading of a run's clock, which are running totals, and the next."""
    area = Area(height=240)
    most = readings[-1][0] or 1.0
    x, y = area.x(0.0, most), area.y(0.0, 1.0)
    order = ordered_phases([phases for _, phases in readings])
    parts = [area.axes(x, y, "seconds since the start", "share of time", seconds, lambda share: f"{100 * share:.0f} %")]
    before_wall, before = 0.0, dict.fromkeys(order, 0.0)
    for wall, totals in readings:
        spent = {name: max(totals.get(name, before[name]) - before[name], 0.0) for name in order}
        whole, level = sum(spent.values()), 0.0
        for name in order if whole > 0 else ():
            share = spent[name] / whole
            if share > 0:
                parts.append(
                    tag(
                        "rect",
                        x=number(x(before_wall)),
                        y=number(y(level + share)),
                        width=number(max(x(wall) - x(before_wall), 0.4)),
                        height=number(y(level) - y(level + share)),
                        class_=phase_class(name),
                    )
                )
            level += share
        before_wall, before = wall, {name: totals.get(name, before[name]) for name in order}
    return area.svg("Share of each phase over the time of the run", *parts)


@dataclass(frozen=True)
class BarSpan:
    """A value with its interval, and what single runs add to it."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    samples: tuple[tuple[float, bool], ...] = ()
    """What each run used, and whether it reached the target."""
    said: str = ""
    """What stands beside it: the value in words, or why there is none."""


def interval_chart(spans: Sequence[BarSpan], title: str, spell: Spell) -> Html:
    """A dot with its interval for every arm, its runs as small marks; those that failed are crosses at the edge."""
    area = Area(height=len(spans) * 58 + 56, left=150, top=8)
    ends = [value for span in spans for value in (span.value, span.low, span.high) if value is not None]
    values = [*ends, *(cost for span in spans for cost, reached in span.samples if reached)]
    values = values or [cost for span in spans for cost, _ in span.samples]
    low, high = padded(values)
    log = bool(values) and min(values) > 0 and max(values) > 12 * min(values)
    x = area.x(min(values) / 1.3, max(values) * 1.3, log=True) if log else area.x(max(min(low, 0.0), 0.0), high)
    bottom = area.height - area.bottom
    parts = []
    for value in x.ticks(5):
        parts.append(line((x(value), area.top), (x(value), bottom), "grid"))
        parts.append(words(x(value), bottom + 17, spell(value), "tick", "middle"))
    scale = f"{title} (logarithmic)" if log else title
    parts.append(words((area.left + area.width - area.right) / 2, area.height - 6, scale, "title", "middle"))
    for index, span in enumerate(spans):
        parts.append(_span(span, index, area.top + index * 58 + 20, area, x))
    said = "; ".join(f"{span.name}: {span.said}" for span in spans)
    return area.svg(f"{title}. {said}", *parts)


def _span(span: BarSpan, index: int, middle: float, area: Area, x: Scale) -> Html:
    class_ = colour(index)
    parts = [words(area.left - 10, middle + 4, _short(span.name), "name", "end")]
    if span.low is not None:
        high = area.width - area.right if span.high is None else x(span.high)
        parts.append(line((x(span.low), middle), (high, middle), f"interval {class_}"))
        ends = [x(span.low), *([] if span.high is None else [high])]
        parts += [line((end, middle - 6), (end, middle + 6), f"interval {class_}") for end in ends]
    if span.value is not None:
        parts.append(
            tag(
                "circle",
                tag("title", f"{span.name}: {span.said}"),
                cx=number(x(span.value)),
                cy=number(middle),
                r=5.5,
                class_=f"dot {class_}",
            )
        )
    for cost in (cost for cost, reached in span.samples if reached):
        parts.append(tag("circle", cx=number(x(cost)), cy=number(middle + 19), r=3, class_=f"sample {class_}"))
    if failed := sum(not reached for _, reached in span.samples):  # not cheap for having spent little
        edge = area.width - area.right
        parts.append(tag("path", d=_cross((edge, middle + 19)), class_=f"failed {class_}"))
        parts.append(words(edge + 4, middle + 36, f"{failed} failed", "tick", "end"))
    return join(parts)


def _cross(at: Point) -> Html:
    x, y = at
    return Html(f"{path([(x - 3.5, y - 3.5), (x + 3.5, y + 3.5)])}{path([(x - 3.5, y + 3.5), (x + 3.5, y - 3.5)])}")


# --- Learning curves: a recipe is a line, its seeds are a band, and the target is a line of its own ---
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


# --- Charts of characters, for a terminal ---
_LEVELS = "▁▂▃▄▅▆▇█"
_FILLS = "█▓▒░▚▞▙▟▜▛▖▘"


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """Values as a line of characters, from lowest to highest; a value that is not there is a space."""
    thinned = _thinned(values, width)
    found = [value for value in thinned if value is not None and math.isfinite(value)]
    if not found:
        return ""
    low, high = min(found), max(found)
    top = len(_LEVELS) - 1

    def level(value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return " "
        return _LEVELS[round(top * (value - low) / (high - low)) if high > low else top]

    return "".join(level(value) for value in thinned)


def _thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` of the values at even distances, the last one included."""
    if len(values) <= width:
        return list(values)
    return [values[round((i + 1) * len(values) / width) - 1] for i in range(width)]


def phase_bar(phases: Mapping[str, float], width: int = 60) -> tuple[str, str]:
    """A bar divided in proportion to the phases' seconds, and a line that says which part is which.

    Cells are given by largest remainder, so that the bar is always as long as `width`.
    """
    total = math.fsum(phases.values())
    if total <= 0 or width < 1:
        return "", ""
    order = ordered_phases([phases])
    exact = {name: width * phases[name] / total for name in order}
    cells = {name: math.floor(share) for name, share in exact.items()}
    for name in sorted(order, key=lambda each: cells[each] - exact[each])[: width - sum(cells.values())]:
        cells[name] += 1
    fills = {name: _FILLS[index % len(_FILLS)] for index, name in enumerate(order)}
    said = (f"{fills[name]} {name} {percent(phases[name] / total)}" for name in order if cells[name])
    return "".join(fills[name] * cells[name] for name in order), "  ".join(said)
