"""A profile as one page that opens from disk: findings first, then the run over time, then what they stand on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mileage.charts.bars import phase_bars, phases_over_time
from mileage.charts.curves import Axis, Curve, curve_chart
from mileage.charts.document import file_page
from mileage.charts.markup import Html, join, tag
from mileage.charts.plot import Area
from mileage.charts.scales import seconds
from mileage.profiling.findings import Finding
from mileage.profiling.profile import Profile
from mileage.profiling.tables import tables
from mileage.profiling.trends import drifts, training
from mileage.text import plain

# Fewer looks at a run make no picture.
_FEWEST = 3


def page(profile: Profile, title: str, machine: str) -> str:
    """The whole page."""
    name = f"Profile: {plain(title, 300)}"
    work = profile.workload["config"]
    settings = ", ".join(f"{key} {value}" for key, value in work.items())
    return str(
        file_page(
            name,
            tag("h1", name),
            tag("p", machine, class_="lead"),
            tag("p", tag("strong", profile.verdict), class_="verdict"),
            _findings(profile),
            _pictures(profile),
            tag("section", tag("h2", "Configuration"), tag("p", settings or "none", class_="small"), class_="card"),
            join(_tables(profile)),
        )
    )


def _findings(profile: Profile) -> Html | None:
    if not profile.findings:
        return None
    items = join(_finding(each) for each in profile.findings)
    return tag("section", tag("h2", "Findings"), tag("ol", items), class_="card")


def _finding(each: Finding) -> Html:
    load = tag("span", " (seen under load)", class_="small") if each.under_load else None
    brings = f" ({each.estimate})" if each.estimate else ""
    advice = tag("p", f"Try {each.suggestion}{brings}.")
    return tag("li", tag("strong", each.bottleneck.label), load, f": {each.evidence}.", advice)


def _pictures(profile: Profile) -> Html:
    """The run's phases in all, and over time with its memory where it was looked at often enough."""
    label = str(profile.workload["algorithm"] or "run")
    parts = [tag("h2", "The run"), _box(phase_bars([(label, profile.run.phases)]))]
    moments = profile.run.moments
    if len(moments) >= _FEWEST:
        readings = [(each.times.wall_seconds, each.times.phases) for each in moments]
        points = tuple((each.times.wall_seconds, each.rss_mib) for each in moments)
        memory = curve_chart(
            [Curve("resident memory", points)], Axis("seconds since the start", seconds), Axis("MiB"),
            area=Area(height=200), from_zero=True,
        )  # fmt: skip
        parts += [tag("h3", "Phases over time"), _box(phases_over_time(readings))]
        parts += [tag("h3", "Memory over time"), _box(memory)]
        drifting = drifts(training(moments))
        said = [
            f"An entry of {each.phase} took {1e3 * each.first_each:.3g} ms at the start and "
            f"{1e3 * each.last_each:.3g} ms at the end."
            for each in drifting
        ] or ["No phase's entries took longer and longer."]
        parts += [tag("p", each, class_="small") for each in said]
    return tag("section", *parts, class_="card")


def _box(picture: Html) -> Html:
    return tag("div", picture, class_="chart-box", tabindex="0", role="group", aria_label="chart")


def _tables(profile: Profile) -> Iterator[Html]:
    for each in tables(profile):
        if each.key == "findings":
            continue
        table = Html(replace(each, key=f"profile-{each.key}").html())
        note = tag("p", each.note, class_="small") if each.note else None
        yield tag("section", tag("h2", each.title), tag("div", table, class_="scroll"), note, class_="card")
