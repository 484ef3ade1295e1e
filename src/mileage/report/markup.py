"""HTML that cannot be broken by text: tags, escaping, colours, and whole documents with their policy."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mileage.tables import plain
from mileage.version import __version__

_LONGEST = 4000
_EMPTY = frozenset({"input", "link", "meta", "br", "line", "rect", "circle", "path", "polyline", "polygon", "animate"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | int | float | None
"""What an element may hold: markup, text to be escaped, a number, or nothing."""
Attribute = str | int | float | bool | None
"""False and None leave an attribute out, True writes its name alone."""


def text(value: Child) -> Html:
    """`value` as markup; text of others loses what a page would act on."""
    if isinstance(value, Html):
        return value
    return Html("" if value is None else html.escape(plain(str(value), _LONGEST)))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element; `class_` and `for_` lose their underscore, other underscores become hyphens."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[Child]) -> Html:
    """All parts, one after the other."""
    return Html("".join(text(part) for part in parts))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    if isinstance(value, float):
        value = f"{value:.6g}"
    shown = value if isinstance(value, Html) else html.escape(plain(str(value), _LONGEST))
    return f' {name}="{shown}"'


def number(value: float) -> str:
    """A coordinate with at most one digit after the point, as short as it can be written."""
    return f"{value:.1f}".removesuffix(".0")


# --- The colours of every picture, for light and dark paper; arms are told apart by people who see few colours too ---
ARMS = ("#0b62a8", "#c2410c", "#00775a", "#93328a", "#8a6100", "#4b5a6b", "#0e7490", "#a3294d")
"""Of arms on white paper, each with a contrast of at least 4.5 to it."""
_ARMS_DARK = ("#6cb6ff", "#ff9e64", "#4fd6ac", "#e39ad9", "#e6c34a", "#a9b4c0", "#5fd4e6", "#ff8fae")
PHASES = {
    "init": "#a4afba", "compile": "#c3b1de", "env-step": "#5fa9dd", "inference": "#8cc8ee", "rollout": "#5fa9dd",
    "advantage": "#e6c34a", "learn": "#ec8a57", "transfer": "#9cc766", "sync": "#c09a7a", "eval": "#5fc0a0",
    "checkpoint": "#dd94bb", "log": "#98a5e4", "own": "#7fd0c0", "other": "#ced4da",
}  # fmt: skip
"""Of phases, by the end of their class; dark words can be read on all of them."""
_LIGHT = {
    "ink": "#1c2430", "soft": "#55606e", "line": "#dfe4ea", "paper": "#ffffff", "back": "#f6f8fa", "accent": "#0b62a8",
    "good": "#00693f", "bad": "#b42318", "wait": "#7a5400", "grid": "#e3e7ec", "axis": "#8b96a2", "target": "#b42318",
}  # fmt: skip
_DARK = {
    "ink": "#e6ebf1", "soft": "#a3afbc", "line": "#2f3945", "paper": "#161c24", "back": "#0e1319", "accent": "#78bbff",
    "good": "#58d39b", "bad": "#ff8f85", "wait": "#f0c04c", "grid": "#28323d", "axis": "#6d7a88", "target": "#ff8f85",
}  # fmt: skip


def _variables(colours: dict[str, str], arms: tuple[str, ...], scheme: str) -> str:
    named = colours | {f"c{index}": value for index, value in enumerate(arms)}
    return f"color-scheme:{scheme};" + ";".join(f"--{name}:{value}" for name, value in named.items())


@cache
def theme(root: str = ":root") -> str:
    """Style sheet: the colours as variables of `root`, dark where the reader's screen or `data-theme` says so."""
    light, dark = _variables(_LIGHT, ARMS, "light"), _variables(_DARK, _ARMS_DARK, "dark")
    phases = ";".join(f"--p-{name}:{value}" for name, value in PHASES.items())
    return (
        f"{root}{{{light};{phases}}}\n{root}[data-theme=dark]{{{dark}}}\n"
        f"@media (prefers-color-scheme:dark){{{root}:not([data-theme=light]){{{dark}}}}}\n"
        f"@media print{{{root}{{{light}}}}}\n"
    )


@cache
def chart_style() -> str:
    """Style sheet of the charts themselves."""
    return (Path(__file__).parent / "chart.css").read_text(encoding="utf-8")


# --- A whole page: head, style, script, and the policy that keeps it from asking anybody for anything ---
# A picture in the address itself: a browser would ask for one otherwise.
_ICON = Html(
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M1 14 6 6l4 4 5-8' "
    "fill='none' stroke='%230b62a8' stroke-width='2.4'/%3E%3C/svg%3E"
)
_ASSETS = Path(__file__).parent / "assets"


@cache
def style() -> str:
    """The one style sheet of all pages."""
    return theme() + chart_style() + (_ASSETS / "page.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """The one script of all pages."""
    return (_ASSETS / "page.js").read_text(encoding="utf-8")


def digest(content: str) -> str:
    """What a policy calls a script or a style sheet by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


@cache
def file_policy(*, scripted: bool = True) -> str:
    """The content security policy of a page in a file: its own style, its own script if it has one, and no request."""
    scripts = f" script-src '{digest(script())}';" if scripted else ""
    own = f"style-src '{digest(style())}';{scripts}"
    return f"default-src 'none'; {own} img-src data:; base-uri 'none'; form-action 'none'"


SERVED_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy of pages that `mileage serve` sends."""


def file_page(title: str, *content: Child, scripted: bool = True) -> Html:
    """A page that is one file: it opens from disk and asks nobody for anything; without a script it is text alone."""
    head = join(
        (
            Html('<meta http-equiv="Content-Security-Policy" content="'),
            Html(file_policy(scripted=scripted)),
            Html('"/>'),
            tag("style", Html(style())),
        )
    )
    bar = tag(
        "header",
        tag("span", "mileage", class_="brand"),
        tag("span", title, class_="small"),
        theme_button() if scripted else None,
        class_="bar",
    )
    return _page(title, head, bar, join(content), tag("script", Html(script())) if scripted else Html(""))


def served_page(title: str, bar: Html, *content: Child) -> Html:
    """A page that `mileage serve` sends, with style and script beside it."""
    head = join(
        (tag("link", rel="stylesheet", href="/static/page.css"), tag("script", src="/static/page.js", defer=True))
    )
    return _page(title, head, bar, join(content), Html(""))


def theme_button() -> Html:
    """Turns the page dark or light."""
    return tag("button", "Dark", type="button", class_="theme end", hidden=True, title="Change between light and dark")


def _page(title: str, head: Html, bar: Html, content: Html, end: Html) -> Html:
    first = join(
        (
            Html('<meta charset="utf-8"/>'),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{title} · mileage"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("link", rel="icon", href=_ICON),
            head,
        )
    )
    skip = tag("a", "Skip to the content", href="#content", class_="skip")
    foot = tag("footer", f"mileage {__version__}. Every number has its denominator; failed runs are counted.")
    body = tag("body", skip, bar, tag("main", content, foot, id="content"), end)
    return Html(f"<!doctype html>\n{tag('html', tag('head', first), body, lang='en')}\n")
