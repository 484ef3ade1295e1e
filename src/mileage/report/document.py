"""The parts that pages are put together from, each as markup and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mileage.report.markup import Html, join, tag
from mileage.tables import Table, markdown


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    said: str
    kind: str | None = None
    """Its class: `lead`, `small`, `verdict` or `refusal`."""

    def html(self) -> Html:
        """As markup."""
        return tag("p", self.said, class_=self.kind)

    def markdown(self) -> str:
        """As Markdown."""
        said = markdown(self.said, 4000)
        return f"> {said}" if self.kind in ("verdict", "refusal") else said


@dataclass(frozen=True)
class Picture:
    """A chart with its legend and a sentence on how to read it."""

    svg: Html
    caption: str = ""
    legend: Html | None = None

    def html(self) -> Html:
        """As markup."""
        box = tag("div", self.svg, class_="chart-box", tabindex="0", role="group", aria_label="chart")
        note = tag("p", self.caption, class_="small") if self.caption else None
        return join((box, self.legend, note))

    def markdown(self) -> str:
        """What it would say; the picture itself is in the page and in `--figures`."""
        return f"*{markdown(self.caption, 2000)}*" if self.caption else ""


@dataclass(frozen=True)
class Tabs:
    """Several parts of which one is shown at a time, all of them on paper; works without a script."""

    key: str
    question: str
    tabs: tuple[tuple[str, Part], ...]

    def html(self) -> Html:
        """As markup."""
        buttons = []
        for index, (name, _) in enumerate(self.tabs):
            key = f"{self.key}-{index}"
            chosen = index == 0
            buttons.append(tag("input", type="radio", name=self.key, id=key, checked=chosen))
            buttons.append(tag("label", name, for_=key))
        shown = [tag("div", part.html(), class_="tab") for _, part in self.tabs]
        said = tag("span", self.question, class_="legend-text")
        return tag("div", said, *buttons, *shown, class_="tabs", role="group", aria_label=self.question)

    def markdown(self) -> str:
        """As Markdown."""
        return "\n\n".join(f"**{markdown(name)}**\n\n{part.markdown()}" for name, part in self.tabs)


@dataclass(frozen=True)
class Grid:
    """A table, in a box that scrolls where it is too wide."""

    table: Table

    def html(self) -> Html:
        """As markup."""
        title = tag("h3", self.table.title) if self.table.title else None
        label = self.table.title or "table"
        box = tag("div", Html(self.table.html()), class_="scroll", tabindex="0", role="region", aria_label=label)
        return join((title, box))

    def markdown(self) -> str:
        """As Markdown."""
        title = f"### {markdown(self.table.title)}\n\n" if self.table.title else ""
        return title + self.table.markdown()


@dataclass(frozen=True)
class PageFigure:
    """A number that stands out, with what it is counted in and why it is so."""

    label: str
    value: str
    note: str = ""
    mood: str | None = None
    """Its colour: `good`, `bad` or `wait`."""


@dataclass(frozen=True)
class Figures:
    """Numbers side by side."""

    figures: tuple[PageFigure, ...]

    def html(self) -> Html:
        """As markup."""
        items = [
            tag(
                "li",
                tag("span", each.label, class_="label"),
                tag("span", each.value, class_=f"value {each.mood or ''}".strip()),
                tag("span", each.note, class_="note") if each.note else None,
            )
            for each in self.figures
        ]
        return tag("ul", *items, class_="figures")

    def markdown(self) -> str:
        """As Markdown."""
        rows = [(each.label, each.value, each.note) for each in self.figures]
        return Table.of(("", "value", "note"), rows, left=("", "note")).markdown()


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    facts: Mapping[str, str]

    def html(self) -> Html:
        """As markup."""
        pairs = [join((tag("dt", name), tag("dd", value))) for name, value in self.facts.items()]
        return tag("dl", *pairs, class_="facts")

    def markdown(self) -> str:
        """As Markdown."""
        return "\n".join(f"- {markdown(name)}: {markdown(value, 2000)}" for name, value in self.facts.items())


@dataclass(frozen=True)
class Folded:
    """Parts that are shown when they are asked for; on paper, always."""

    summary: str
    parts: tuple[Part, ...]

    def html(self) -> Html:
        """As markup."""
        return tag("details", tag("summary", self.summary), *(part.html() for part in self.parts))

    def markdown(self) -> str:
        """As Markdown."""
        return "\n\n".join((f"**{markdown(self.summary)}**", *(part.markdown() for part in self.parts)))


@dataclass(frozen=True)
class Made:
    """Markup that has no other form."""

    markup: Html
    said: str = ""

    def html(self) -> Html:
        """As markup."""
        return self.markup

    def markdown(self) -> str:
        """What it says, if anything."""
        return markdown(self.said, 4000)


Part = Words | Picture | Tabs | Grid | Figures | Facts | Folded | Made


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading."""

    title: str
    parts: Sequence[Part] = field(default_factory=tuple)

    def html(self) -> Html:
        """As markup, a card of its own."""
        return tag("section", tag("h2", self.title), *(part.html() for part in self.parts), class_="card")

    def markdown(self) -> str:
        """As Markdown."""
        shown = [text for part in self.parts if (text := part.markdown())]
        return "\n\n".join((f"## {markdown(self.title)}", *shown))
