"""The pages: what each shows, from the ledger to markup. State is in the address, and nowhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

from mileage._errors import MileageError, UnmatchedError, UsageError
from mileage.charts.markup import Child, Html, join, tag
from mileage.charts.text import sparkline
from mileage.ledger import listing, queries
from mileage.ledger.listing import SORTS, Asked, Recipe
from mileage.ledger.rows import Run
from mileage.ledger.runs import RUNNING, STATES, RecordedRun
from mileage.ledger.store import Store
from mileage.metrics import BY_NAME, dollars, duration
from mileage.pages import extras, loading, sections
from mileage.pages.arms import Exam, exams
from mileage.pages.document import served_page, theme_button
from mileage.pages.learning import evaluated
from mileage.pages.parts import Section, Words
from mileage.pages.web.live import spelled
from mileage.report.compare import compare_selections
from mileage.text import plain

PAGE = 50
MOST_SHOWN = 200
"""Runs of a recipe that its page draws."""
Query = Mapping[str, str]
_HEADINGS = {
    "launched": "run", "name": "name", "seed": "seed", "state": "state", "steps": "steps", "wall": "wall",
    "to_target": "to target", "return": "return", "cost": "cost",
}  # fmt: skip


def address(path: str, **query: object) -> Html:
    """An address of ours with its state, safe as an attribute."""
    kept = {name: value for name, value in query.items() if value not in (None, "", False)}
    return Html((quote(path) + (f"?{urlencode(kept)}" if kept else "")).replace("&", "&amp;"))


def page(title: str, here: str, *content: Child) -> Html:
    """A page with the bar that leads to the others."""
    links = (("/", "Runs"), ("/recipes", "Recipes"), ("/compare", "Compare"), ("/builds", "Builds"))
    items = [tag("a", name, href=path, aria_current="page" if path == here else None) for path, name in links]
    bar = tag("header", tag("a", "mileage", href="/", class_="brand"), tag("nav", *items, aria_label="Pages"),
              theme_button(), class_="bar")  # fmt: skip
    return served_page(title, bar, *content)


def message(title: str, said: str) -> Html:
    """A page that says one thing."""
    return page(title, "", tag("h1", title), tag("p", said, class_="refusal"), tag("p", tag("a", "All runs", href="/")))


def number(query: Query, name: str, default: int, most: int) -> int:
    """A whole number of the address."""
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text[:12]) > most:
        raise UsageError(f"{name} must be a whole number up to {most:,}, not {plain(text, 40)!r}")
    return int(text)


def asked(query: Query) -> Asked:
    """What part of a list an address wants."""
    state = query.get("state") or None
    if state is not None and state not in STATES:
        raise UsageError(f"state must be one of {', '.join(STATES)}, not {plain(state, 40)!r}")
    sort = query.get("sort") or "launched"
    if sort not in SORTS:
        raise UsageError(f"sort must be one of {', '.join(SORTS)}, not {plain(sort, 40)!r}")
    first = number(query, "page", 1, 1_000_000)
    return Asked(query.get("q", "")[:200], state, sort, query.get("order") == "up", PAGE, PAGE * (max(first, 1) - 1))


def _filter(action: str, wanted: Asked) -> Html:
    options = [tag("option", "any state", value="")]
    options += [tag("option", s.replace("_", " "), value=s, selected=wanted.state == s) for s in STATES]
    search = tag("input", type="search", name="q", value=wanted.search, placeholder="name, algorithm, environment, id")
    return tag(
        "form", tag("label", "Search", search, class_="grow"), tag("label", "State", tag("select", *options, name="state")),
        tag("button", "Show", type="submit", class_="primary"), method="get", action=action, class_="filter", role="search",
    )  # fmt: skip


def _pages(path: str, wanted: Asked, total: int) -> Html:
    here, last = wanted.offset // wanted.limit + 1, max(1, math.ceil(total / wanted.limit))
    state = {"q": wanted.search, "state": wanted.state, "sort": wanted.sort if wanted.sort != "launched" else None,
             "order": "up" if wanted.ascending else None}  # fmt: skip
    steps = [("Newer", here - 1, here > 1), ("Older", here + 1, here < last)]
    links = [tag("a", name, href=address(path, **state, page=to)) if there else None for name, to, there in steps]
    return tag("nav", *links, tag("span", f"page {here} of {last}, {total:,} in all", class_="small"), class_="pages",
               aria_label="Pages of the list")  # fmt: skip


def runs(store: Store, query: Query) -> Html:
    """All runs: filtered, sorted, one page at a time."""
    wanted = asked(query)
    found, total = store.read(listing.runs, wanted)
    head = []
    for key in SORTS:
        chosen = key == wanted.sort
        up = chosen and not wanted.ascending
        there = address("/", q=wanted.search, state=wanted.state, sort=key, order="up" if up else None)
        direction = ("ascending" if wanted.ascending else "descending") if chosen else None
        arrow = (" ▲" if wanted.ascending else " ▼") if chosen else ""
        kind = None if key in ("launched", "name", "state") else "number"
        head.append(tag("th", tag("a", _HEADINGS[key] + arrow, href=there), aria_sort=direction, class_=kind, scope="col"))
    rows = [_run_row(run) for run in found] or [tag("tr", tag("td", "No run matches.", colspan=str(len(SORTS))))]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))
    box = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Runs")
    return page("Runs", "/", tag("h1", "Runs"), _filter("/", wanted), tag("div", box, class_="card"),
                _pages("/", wanted, total))  # fmt: skip


def _run_row(run: RecordedRun) -> Html:
    def cell(name: str) -> Html:
        metric = BY_NAME[name]
        value = None if metric.priced and not run.priced else run.metric(name)
        return tag("td", metric.spelled(value, absent="–"), class_="number")

    row = run.run
    return tag(
        "tr", tag("td", tag("a", row.run_id, href=address(f"/runs/{row.run_id}")), class_="id"),
        tag("td", plain(row.name, 80)), tag("td", "–" if row.seed is None else str(row.seed), class_="number"),
        tag("td", state_mark(run)), cell("env_steps"), cell("wall_seconds"), cell("wall_to_target"), cell("mean_return"),
        cell("cost_usd"),
    )  # fmt: skip


def state_mark(run: RecordedRun) -> Html:
    """How a run ended, in a colour that is not needed to read it."""
    mood = {"reached": "good", "finished": "good", RUNNING: "wait live", "claimed": "wait"}.get(str(run.state), "bad")
    said = str(run.state).replace("_", " ") + (", void" if run.voided else "")
    return tag("span", said, class_=f"state {mood}")


def recipes(store: Store, query: Query) -> Html:
    """Runs by recipe: seeds counted, failed ones included."""
    wanted = asked(query)
    found, total = store.read(listing.recipes, wanted)
    names = ("A", "B", "recipe", "trained", "target", "seeds", "reached", "running", "mean to target", "best return",
             "spent")  # fmt: skip
    left = names[:5]
    head = [tag("th", name, scope="col", class_=None if name in left else "number") for name in names]
    rows = [_recipe_row(recipe) for recipe in found] or [tag("tr", tag("td", "No run matches.", colspan=str(len(names))))]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))
    box = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Recipes")
    go = tag("p", tag("button", "Compare A with B", type="submit", class_="primary"))
    form = tag("form", box, go, method="get", action="/compare")
    said = "A recipe is everything but the seed. Failed runs are counted: seeds less those that reached and run on."
    return page("Recipes", "/recipes", tag("h1", "Recipes"), tag("p", said, class_="lead"), _filter("/recipes", wanted),
                tag("div", form, class_="card"), _pages("/recipes", wanted, total))  # fmt: skip


def _recipe_row(recipe: Recipe) -> Html:
    run = recipe.newest
    chosen = [
        tag("td", tag("input", type="radio", name=side, value=selection(run), aria_label=f"{side.upper()}: {plain(run.name, 60)}"))
        for side in ("a", "b")
    ]
    trained = f"{plain(run.algorithm or run.framework, 40)} on {plain(run.env_id, 60)}" if run.env_id else plain(run.framework, 40)
    words = (trained, plain(run.target or "none", 60))
    reach = "–" if recipe.mean_to_target is None else duration(recipe.mean_to_target)
    best = "–" if recipe.best_return is None else f"{recipe.best_return:,.1f}"
    spent = dollars(recipe.cost_usd) if run.price_usd_per_hour > 0 else "no price"
    numbers = (str(recipe.runs), str(recipe.reached), str(recipe.running), reach, best, spent)
    return tag(
        "tr", *chosen, tag("td", tag("a", plain(run.name or "run", 80), href=address(f"/recipes/{run.run_id}")), class_="wide"),
        *(tag("td", word) for word in words), *(tag("td", each, class_="number") for each in numbers),
    )  # fmt: skip


def selection(run: Run) -> str:
    """What selects the runs of a recipe by what can be written in a selection; otherwise the run alone."""
    fields = {"name": run.name, "algorithm": run.algorithm, "env_id": run.env_id}
    parts = [f"{name}={value}" for name, value in fields.items() if value]
    plain_ = all("," not in value and value == value.strip() and value.isprintable() for value in fields.values())
    return ",".join(parts) if plain_ and parts else run.run_id


def recipe(store: Store, run_id: str) -> Html:
    """The panel of a recipe: its curve with the band of its seeds, its costs, a row for each seed."""
    (found,) = _one(store, run_id)
    same = store.read(listing.of_recipe, found.run, most=MOST_SHOWN)
    (exam, *_) = exams(loading.loaded(store, same))
    more = [sections.contract(exam), *_more(exam.runs)]
    full = f" The newest {MOST_SHOWN} runs are shown." if len(same) == MOST_SHOWN else ""
    links = tag("p", "Runs: ", *(join((tag("a", f"seed {run.seed}", href=address(f"/runs/{run.run_id}")), " "))
                                 for run in exam.runs[:MOST_SHOWN]), class_="small")  # fmt: skip
    arm = exam.arms[0]
    shown = sections.markup([*sections.exam_sections(exam), *more])
    return page(arm.label, "/recipes", tag("h1", arm.label), tag("p", f"{arm.seeds}.{full}", class_="lead"), links, shown)


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


def run(store: Store, run_id: str, version: object) -> Html:
    """One run; while it goes on, the page follows it."""
    (found,) = _one(store, run_id)
    name = plain(found.run.name or run_id, 80)
    links = join((
        tag("a", "all seeds of this recipe", href=address(f"/recipes/{run_id}")), " · ",
        tag("a", "JSON", href=address(f"/api/runs/{run_id}.json")),
    ))  # fmt: skip
    lead = tag("p", f"{run_id} · {plain(found.algorithm or found.run.framework, 40)} on {plain(found.env or '–', 60)}, "
               f"seed {found.seed} · ", links, class_="lead")  # fmt: skip
    live: dict[str, str | None] = {}
    if found.end is None:
        since = spelled(version)  # type: ignore[arg-type]
        live = {"data_live": address(f"/runs/{run_id}/live"), "data_events": address(f"/events/{run_id}", since=since)}
    box = tag("div", run_part(store, run_id), **live)
    return page(name, "", tag("h1", name), lead, box)


def run_part(store: Store, run_id: str) -> Html:
    """What changes on a run's page while it goes on."""
    (found,) = loading.loaded(store, _one(store, run_id))
    (found,) = store.read(queries.with_notes, [found])
    (exam, *_) = exams([found])
    parts: list[Html] = [_status(found)]
    made = [] if found.kpis else sections.exam_sections(exam)
    made += [_panel(found)] if found.episodes else []
    made += [*([] if found.kpis else [sections.contract(exam)]), *_more([found]), *_notes(found)]
    return join((*parts, sections.markup(made)))


def _status(found: RecordedRun) -> Html:
    values = [value for _, value in evaluated(found)]
    last = "" if not values else f", last held-out value {values[-1]:,.4g}"
    cost = f", {dollars(found.metric('cost_usd') or 0.0)} so far" if found.end is None and found.priced else ""
    said = f" · {found.steps:,} steps in {duration(found.wall_seconds)}{cost}{last}"
    spark = sparkline(values, 60)
    return tag("p", state_mark(found), said, " ", tag("span", spark, aria_hidden="true") if spark else None,
               tag("span", _left(found), class_="small"), role="status")  # fmt: skip


def _left(found: RecordedRun) -> str:
    """How long a run that goes on has left at most, if it keeps its pace."""
    budget = found.run.step_budget
    if found.end is not None or not budget or found.totals.env_steps <= 0:
        return ""
    share = min(found.totals.env_steps / budget, 1.0)
    left = found.wall_seconds * (1.0 - share) / share
    return f" {100 * share:.0f} % of its step budget; at most {duration(left)} left at this pace"


def _panel(found: RecordedRun) -> Section:
    """The held-out episodes by seed, worst first."""
    from mileage.pages.parts import Folded, Grid
    from mileage.tables import Table

    ordered = sorted(found.episodes, key=lambda e: -math.inf if e.episode_return is None else e.episode_return)
    rows = [
        (str(e.seed), "–" if e.episode_return is None else f"{e.episode_return:,.2f}", e.length,
         "–" if e.success is None else "yes" if e.success else "no")
        for e in ordered
    ]  # fmt: skip
    table = Table.of(("held-out seed", "return", "steps", "success"), rows, left=("success",))
    said = f"{len(rows)} held-out episodes of the evaluation that the run is judged by, worst first."
    return Section("Held-out panel, seed by seed", (Words(said), Folded("Every episode", (Grid(table),))))


def _notes(found: RecordedRun) -> list[Section]:
    if not found.notes:
        return []
    said = [Words(f"{note.kind}: {plain(note.text, 500) or 'no reason given'} ({plain(note.noted_by, 40)}, "
                  f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(note.noted_at))})") for note in found.notes]  # fmt: skip
    return [Section("Notes", tuple(said))]


def compare(store: Store, query: Query) -> tuple[Html, int]:
    """Two selections against each other, or in words why they may not be compared; and the status of the answer."""
    a, b = query.get("a", "").strip(), query.get("b", "").strip()
    sequential, target = query.get("sequential") == "1", query.get("target", "").strip()
    fields = [
        tag("label", name, tag("input", type="text", name=key, value=value, placeholder=hint, list="names"), class_="grow")
        for name, key, value, hint in (("A", "a", a, "name=small"), ("B", "b", b, "name=wide"),
                                       ("Judge by target", "target", target, "the runs' own"))
    ]  # fmt: skip
    newest, _ = store.read(listing.recipes, Asked(limit=40))
    names = tag("datalist", *(tag("option", value=selection(each.newest)) for each in newest), id="names")
    check = tag("label", "Planned looks", tag("input", type="checkbox", name="sequential", value="1", checked=sequential))
    button = tag("button", "Compare", type="submit", class_="primary")
    form = tag("form", *fields, check, names, button, method="get", action="/compare", class_="filter")
    top = (tag("h1", "Compare"), tag("p", "Two sets of runs that sat the same exam: ids, a name, or field=value with "
                                     "commas.", class_="lead"), form)  # fmt: skip
    if not a or not b:
        return page("Compare", "/compare", *top), 200
    try:
        found = compare_selections(store, a, b, sequential=sequential, target=target or None)
    except UnmatchedError as error:
        return page("Compare", "/compare", *top, _refusal(str(error))), 409
    except MileageError as error:
        return page("Compare", "/compare", *top, tag("div", str(error), class_="refusal", role="alert")), 400
    shown = Section("A against B", extras.comparison_parts(found))
    drawn = _drawn_together(store, a, b)
    return page("Compare", "/compare", *top, shown.html(), drawn), 200


def _refusal(said: str) -> Html:
    first, _, rest = said.partition("\n")
    table, _, remedy = rest.rpartition("\n")
    lines = join(join((line, Html("\n"))) for line in table.split("\n"))
    return tag("div", tag("p", tag("strong", "Not compared. "), first), tag("pre", lines),
               tag("p", remedy, class_="small"), class_="refusal", role="alert")  # fmt: skip


def _drawn_together(store: Store, a: str, b: str) -> Html | None:
    """The curves of both sides in one picture, where they sat one exam."""
    chosen = loading.select(store, [a, b])
    if len(chosen) > MOST_SHOWN:
        return tag("p", f"More than {MOST_SHOWN} runs: no curves are drawn.", class_="small")
    found = exams(loading.loaded(store, chosen, episodes=False))
    made = [sections.curves(exam) for exam in found[:1]] if len(found) == 1 else []
    made += [sections.phases(Exam(found[0].arms))] if len(found) == 1 else []
    return sections.markup([section for section in made if section is not None])


def builds(store: Store) -> Html:
    """The newest build benchmarks with their KPIs and raw samples."""
    ids = store.read(listing.build_runs, 10)
    runs_ = loading.loaded(store, store.read(listing.by_ids, ids), episodes=False)
    found = extras.builds(runs_)
    said = Words("No build benchmark is in this ledger: mileage rl-bench makes one.").html() if found is None else found.html()
    return page("Builds", "/builds", tag("h1", "Builds as RL KPIs"), said)
