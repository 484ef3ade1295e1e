"""What all pages share: addresses with their state, the bar that leads to the others, a page of one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from mileage._errors import UsageError
from mileage.charts.document import served_page, theme_button
from mileage.charts.markup import Child, Html, tag
from mileage.ledger.runs import RUNNING, RecordedRun
from mileage.text import plain

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
