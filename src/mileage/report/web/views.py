"""The pages of a recipe, of a run, of a comparison and of builds. State is in the address, and nowhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence

from mileage.errors import MileageError, UnmatchedError, UsageError
from mileage.ledger import listing, queries
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.report import curves, extras, report, sections
from mileage.report.arms import Exam, exams
from mileage.report.bars import sparkline
from mileage.report.compare import compare_selections
from mileage.report.curves import evaluated
from mileage.report.document import Folded, Grid, Made, Section, Words
from mileage.report.markup import Html, join, tag
from mileage.report.seeds import progress_line
from mileage.report.web.lists import Query, address, page, selection, state_mark
from mileage.report.web.live import spelled
from mileage.tables import Table, plain

MOST_SHOWN = 200
"""Runs of a recipe that its page draws."""
MOST_DRAWN = 40
"""Runs whose curves a comparison draws without being asked."""


def chosen_curve(exam: Exam, path: str, query: Query) -> Section | None:
    """The learning curve against what the address says; the others are a click away."""
    if not any(evaluated(run) for run in exam.runs):
        return None
    ways = {way.key: way for way in curves.ways(exam)}
    chosen = query.get("x") or "steps"
    if chosen not in ways:
        raise UsageError(f"x must be one of {', '.join(ways)}, not {plain(chosen, 40)!r}")
    kept = {name: value for name, value in query.items() if name != "x"}
    links = [
        tag("a", key, href=address(path, **kept, x=key), aria_current="true" if key == chosen else None, class_="pill")
        for key in ways
    ]
    bar = Made(
        tag("nav", tag("span", "against ", class_="small"), *links, class_="pills", aria_label="Learning curve against")
    )
    return Section(sections.CURVES, (bar, sections.curve_picture(exam, ways[chosen])))


def recipe(store: Store, run_id: str, query: Query) -> Html:
    """The panel of a recipe: its curve with the band of its seeds, its costs, a row for each seed."""
    (found,) = _one(store, run_id)
    same = store.read(listing.of_recipe, found.run, most=MOST_SHOWN)
    (exam, *_) = exams(report.loaded(store, same))
    more = [sections.rules(exam), *_more(exam.runs)]
    full = f" The newest {MOST_SHOWN} runs are shown." if len(same) == MOST_SHOWN else ""
    links = tag(
        "p",
        "Runs: ",
        *(
            join((tag("a", run.seed_words.removeprefix(", ") or "run", href=address(f"/runs/{run.run_id}")), " "))
            for run in exam.runs[:MOST_SHOWN]
        ),
        class_="small",
    )
    arm = exam.arms[0]
    shown = sections.markup([*sections.exam_sections(exam, chosen_curve(exam, f"/recipes/{run_id}", query)), *more])
    return page(
        arm.label, "/recipes", tag("h1", arm.label), tag("p", f"{arm.seeds}.{full}", class_="lead"), links, shown
    )


def _more(runs_: Sequence[RecordedRun]) -> list[Section]:
    return [section for section in (extras.builds(runs_), extras.findings(runs_)) if section is not None]


def _one(store: Store, run_id: str) -> list[RecordedRun]:
    found = store.read(listing.by_ids, [run_id])
    if not found:
        raise LookupError(f"there is no run {plain(run_id, 80)}")
    return found


def known(store: Store, run_id: str) -> None:
    """LookupError if there is no such run."""
    _one(store, run_id)


def run(store: Store, run_id: str, version: Hashable) -> Html:
    """One run; while it goes on, the page follows it."""
    (found,) = _one(store, run_id)
    name = plain(found.run.name or run_id, 80)
    links = join(
        (
            tag("a", "all seeds of this recipe", href=address(f"/recipes/{run_id}")),
            " · ",
            tag("a", "JSON", href=address(f"/api/runs/{run_id}.json")),
        )
    )
    lead = tag(
        "p",
        f"{run_id} · {plain(found.algorithm or found.run.framework, 40)} on {plain(found.env or '–', 60)}"
        f"{found.seed_words} · ",
        links,
        class_="lead",
    )
    live: dict[str, str | None] = {}
    if found.end is None:
        since = spelled(version)
        live = {"data_live": address(f"/runs/{run_id}/live"), "data_events": address(f"/events/{run_id}", since=since)}
    box = tag("div", run_part(store, run_id), **live)
    return page(name, "", tag("h1", name), lead, box)


def run_part(store: Store, run_id: str) -> Html:
    """What changes on a run's page while it goes on."""
    (found,) = report.loaded(store, _one(store, run_id))
    (found,) = store.read(queries.with_notes, [found])
    (exam, *_) = exams([found])
    parts: list[Html] = [_status(found)]
    made = [] if found.kpis else sections.exam_sections(exam)
    made += [_panel(found)] if found.episodes else []
    made += [*([] if found.kpis else [sections.rules(exam)]), *_more([found]), *_notes(found)]
    return join((*parts, sections.markup(made)))


def _status(found: RecordedRun) -> Html:
    values = [value for _, value in evaluated(found)]
    last = f", last held-out value {values[-1]:,.4g} " if values else " "
    spark = tag("span", sparkline(values, 60), aria_hidden="true") if values else None
    return tag("p", state_mark(found), f" · {progress_line(found)}{last}", spark, role="status")


def _panel(found: RecordedRun) -> Section:
    """The held-out episodes by seed, worst first."""
    ordered = sorted(found.episodes, key=lambda e: -math.inf if e.episode_return is None else e.episode_return)
    rows = [
        (
            str(e.seed),
            "–" if e.episode_return is None else f"{e.episode_return:,.2f}",
            e.length,
            "–" if e.success is None else "yes" if e.success else "no",
        )
        for e in ordered
    ]
    table = Table.of(("held-out seed", "return", "steps", "success"), rows, left=("success",))
    said = f"{len(rows)} held-out episodes of the evaluation that the run is judged by, worst first."
    return Section("Held-out panel, seed by seed", (Words(said), Folded("Every episode", (Grid(table),))))


def _notes(found: RecordedRun) -> list[Section]:
    if not found.notes:
        return []
    said = [
        Words(
            f"{note.kind}: {plain(note.text, 500) or 'no reason given'} ({plain(note.noted_by, 40)}, "
            f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(note.noted_at))})"
        )
        for note in found.notes
    ]
    return [Section("Notes", tuple(said))]


def compare(store: Store, query: Query) -> tuple[Html, int]:
    """Two selections against each other, or in words why they may not be compared; and the status of the answer."""
    a, b = query.get("a", "").strip(), query.get("b", "").strip()
    sequential, target = query.get("sequential") == "1", query.get("target", "").strip()
    fields = [
        tag(
            "label",
            name,
            tag("input", type="text", name=key, value=value, placeholder=hint, list="names"),
            class_="grow",
        )
        for name, key, value, hint in (
            ("A", "a", a, "name=small"),
            ("B", "b", b, "name=wide"),
            ("Judge by target", "target", target, "the runs' own"),
        )
    ]
    newest = dict.fromkeys(selection(each) for each in store.read(listing.newest, 200))
    names = tag("datalist", *(tag("option", value=each) for each in list(newest)[:40]), id="names")
    check = tag(
        "label", "Planned looks", tag("input", type="checkbox", name="sequential", value="1", checked=sequential)
    )
    button = tag("button", "Compare", type="submit", class_="primary")
    form = tag("form", *fields, check, names, button, method="get", action="/compare", class_="filter")
    top = (
        tag("h1", "Compare"),
        tag("p", "Two sets of runs of one held-out test: ids, a name, or field=value with commas.", class_="lead"),
        form,
    )
    if not a or not b:
        return page("Compare", "/compare", *top), 200
    try:
        found = compare_selections(store, a, b, sequential=sequential, target=target or None)
    except UnmatchedError as error:
        return page("Compare", "/compare", *top, _refusal(str(error))), 409
    except MileageError as error:
        return page("Compare", "/compare", *top, tag("div", str(error), class_="refusal", role="alert")), 400
    shown = Section("A against B", extras.comparison_parts(found))
    drawn = _drawn_together(store, a, b, query)
    return page("Compare", "/compare", *top, shown.html(), drawn), 200


def _refusal(said: str) -> Html:
    first, _, rest = said.partition("\n")
    table, _, remedy = rest.rpartition("\n")
    lines = join(join((line, Html("\n"))) for line in table.split("\n"))
    return tag(
        "div",
        tag("p", tag("strong", "Not compared. "), first),
        tag("pre", lines, tabindex="0", role="region", aria_label="What differs"),
        tag("p", remedy, class_="small"),
        class_="refusal",
        role="alert",
    )


def _drawn_together(store: Store, a: str, b: str, query: Query) -> Html | None:
    """The curves of both sides in one picture, where they sat one exam; of many runs when they are asked for."""
    chosen = report.select(store, [a, b])
    if len(chosen) > MOST_DRAWN and not query.get("x"):
        there = address("/compare", **{**query, "x": "steps"})
        return tag("p", tag("a", f"Draw the learning curves of all {len(chosen)} runs", href=there))
    if len(chosen) > 2 * MOST_SHOWN:
        return tag("p", f"More than {2 * MOST_SHOWN} runs: no curves are drawn.", class_="small")
    found = exams(report.loaded(store, chosen, episodes=False))
    if len(found) != 1:
        return None
    made = (chosen_curve(found[0], "/compare", query), sections.phases(found[0]))
    return sections.markup([section for section in made if section is not None])


def builds(store: Store) -> Html:
    """The newest build benchmarks with their KPIs and raw samples."""
    ids = store.read(listing.build_runs, 10)
    runs_ = report.loaded(store, store.read(listing.by_ids, ids), episodes=False)
    found = extras.builds(runs_)
    said = (
        Words("No build benchmark is in this ledger: mileage rl-bench makes one.").html()
        if found is None
        else found.html()
    )
    return page("Builds", "/builds", tag("h1", "Builds as RL KPIs"), said)
