"""Markup, escaped once: what is not `Html` already is text of others and is shown, never acted on."""

from __future__ import annotations

import html
from collections.abc import Iterable

from mileage.text import plain

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
