"""Lists of runs and of recipes, and what all pages share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from mileage.errors import UsageError
from mileage.ledger import listing
from mileage.ledger.listing import SORTS, Asked, Recipe
from mileage.ledger.rows import Run
from mileage.ledger.runs import RUNNING, STATES, RecordedRun
from mileage.ledger.store import Store
from mileage.metrics import BY_NAME, dollars, duration
from mileage.report.markup import Child, Html, served_page, tag, theme_button
from mileage.tables import plain

# --- What all pages share: addresses with their state, the bar that leads to the others, a page of one sentence ---
Query = Mapping[str, str]


def address(path: str, /, **query: object) -> Html:
    """An address of ours with its state, safe as an attribute."""
    kept = {name: value for name, value in query.items() if value not in (None, "", False)}
    return Html((quote(path) + (f"?{urlencode(kept)}" if kept else "")).replace("&", "&amp;"))


def page(title: str, here: str, *content: Child) -> Html:
    """A page with the bar that leads to the others."""
    links = (("/", "Runs"), ("/recipes", "Recipes"), ("/compare", "Compare"), ("/builds", "Builds"))
    items = [tag("a", name, href=path, aria_current="page" if path == here else None) for path, name in links]
    bar = tag(
        "header",
        tag("a", "mileage", href="/", class_="brand"),
        tag("nav", *items, aria_label="Pages"),
        theme_button(),
        class_="bar",
    )
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


def state_mark(run: RecordedRun) -> Html:
    """How a run ended, in a colour that is not needed to read it."""
    mood = {"reached": "good", "finished": "good", RUNNING: "wait live", "claimed": "wait"}.get(str(run.state), "bad")
    said = str(run.state).replace("_", " ") + (", void" if run.voided else "")
    return tag("span", said, class_=f"state {mood}")


PAGE = 50
_HEADINGS = {
    "launched": "run",
    "name": "name",
    "seed": "seed",
    "state": "state",
    "steps": "steps",
    "wall": "wall",
    "to_target": "to target",
    "return": "return",
    "cost": "cost",
}


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
        "form",
        tag("label", "Search", search, class_="grow"),
        tag("label", "State", tag("select", *options, name="state")),
        tag("button", "Show", type="submit", class_="primary"),
        method="get",
        action=action,
        class_="filter",
        role="search",
    )


def _pages(path: str, wanted: Asked, total: int) -> Html:
    here, last = wanted.offset // wanted.limit + 1, max(1, math.ceil(total / wanted.limit))
    state = {
        "q": wanted.search,
        "state": wanted.state,
        "sort": wanted.sort if wanted.sort != "launched" else None,
        "order": "up" if wanted.ascending else None,
    }
    steps = [("Newer", here - 1, here > 1), ("Older", here + 1, here < last)]
    links = [tag("a", name, href=address(path, **state, page=to)) if there else None for name, to, there in steps]
    return tag(
        "nav",
        *links,
        tag("span", f"page {here} of {last}, {total:,} in all", class_="small"),
        class_="pages",
        aria_label="Pages of the list",
    )


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
        head.append(
            tag("th", tag("a", _HEADINGS[key] + arrow, href=there), aria_sort=direction, class_=kind, scope="col")
        )
    rows = [_run_row(run) for run in found] or [tag("tr", tag("td", "No run matches.", colspan=str(len(SORTS))))]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))
    box = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Runs")
    return page(
        "Runs", "/", tag("h1", "Runs"), _filter("/", wanted), tag("div", box, class_="card"), _pages("/", wanted, total)
    )


def _run_row(run: RecordedRun) -> Html:
    def cell(name: str) -> Html:
        metric = BY_NAME[name]
        value = None if metric.priced and not run.priced else run.metric(name)
        return tag("td", metric.spelled(value, absent="–"), class_="number")

    row = run.run
    return tag(
        "tr",
        tag("td", tag("a", row.run_id, href=address(f"/runs/{row.run_id}")), class_="id"),
        tag("td", plain(row.name, 80)),
        tag("td", "–" if row.seed is None else str(row.seed), class_="number"),
        tag("td", state_mark(run)),
        cell("env_steps"),
        cell("wall_seconds"),
        cell("wall_to_target"),
        cell("mean_return"),
        cell("cost_usd"),
    )


def recipes(store: Store, query: Query) -> Html:
    """Runs by recipe: seeds counted, failed ones included."""
    wanted = asked(query)
    found, total = store.read(listing.recipes, wanted)
    names = ("A", "B", "recipe", "trained", "target", "seeds", "reached", "failed", "to target", "return", "spent")
    left = names[:5]
    head = [tag("th", name, scope="col", class_=None if name in left else "number") for name in names]
    rows = [_recipe_row(recipe) for recipe in found] or [
        tag("tr", tag("td", "No run matches.", colspan=str(len(names))))
    ]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))
    box = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Recipes")
    go = tag("p", tag("button", "Compare A with B", type="submit", class_="primary"))
    form = tag("form", box, go, method="get", action="/compare")
    said = (
        "A recipe is everything but the seed. Failed: ended without reaching the target. To target: mean over seeds "
        "that reached it. Return: mean over seeds. Spent: all seeds."
    )
    return page(
        "Recipes",
        "/recipes",
        tag("h1", "Recipes"),
        tag("p", said, class_="lead"),
        _filter("/recipes", wanted),
        tag("div", form, class_="card"),
        _pages("/recipes", wanted, total),
    )


def _recipe_row(recipe: Recipe) -> Html:
    run = recipe.newest
    chosen = [
        tag(
            "td",
            tag(
                "input",
                type="radio",
                name=side,
                value=selection(run),
                aria_label=f"{side.upper()}: {plain(run.name, 60)}",
            ),
        )
        for side in ("a", "b")
    ]
    trained = (
        f"{plain(run.algorithm or run.framework, 40)} on {plain(run.env_id, 60)}"
        if run.env_id
        else plain(run.framework, 40)
    )
    words = (trained, plain(run.target or "none", 60))
    reach = "–" if recipe.mean_to_target is None else duration(recipe.mean_to_target)
    returned = "–" if recipe.mean_return is None else f"{recipe.mean_return:,.1f}"
    spent = dollars(recipe.cost_usd) if run.price_usd_per_hour > 0 else "no price"
    failed = recipe.runs - recipe.reached - recipe.running if run.target else 0
    seeds = f"{recipe.runs}" + (f" ({recipe.running} running)" if recipe.running else "")
    numbers = (seeds, str(recipe.reached), str(failed), reach, returned, spent)
    return tag(
        "tr",
        *chosen,
        tag("td", tag("a", plain(run.name or "run", 80), href=address(f"/recipes/{run.run_id}")), class_="wide"),
        *(tag("td", word, class_="wide") for word in words),
        *(tag("td", each, class_="number") for each in numbers),
    )


def selection(run: Run) -> str:
    """What selects the runs of a recipe by what can be written in a selection; otherwise the run alone."""
    fields = {"name": run.name, "algorithm": run.algorithm, "env_id": run.env_id}
    parts = [f"{name}={value}" for name, value in fields.items() if value]
    plain_ = all("," not in value and value == value.strip() and value.isprintable() for value in fields.values())
    return ",".join(parts) if plain_ and parts else run.run_id
