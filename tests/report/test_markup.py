from __future__ import annotations

import xml.dom.minidom

from hypothesis import given
from hypothesis import strategies as st

from mileage.report.markup import Html, join, number, tag, text


def test_text_is_escaped_once_and_markup_not_again() -> None:
    assert text("a<b & c") == "a&lt;b &amp; c"
    assert text(text("a<b")) == "a&lt;b"
    assert tag("p", "x<y", Html("<b>z</b>"), None, 3) == "<p>x&lt;y<b>z</b>3</p>"


def test_attributes_are_escaped_renamed_and_left_out() -> None:
    assert tag("a", "x", href='"><script>', class_="k", data_live="1") == (
        '<a href="&quot;&gt;&lt;script&gt;" class="k" data-live="1">x</a>'
    )
    assert tag("input", checked=True, hidden=False, value=None, name="n") == '<input checked name="n"/>'
    assert tag("circle", r=2.5, cx=number(3.04), cy=number(-0.26)) == '<circle r="2.5" cx="3" cy="-0.3"/>'


def test_what_a_terminal_or_a_page_would_act_on_is_not_passed_on() -> None:
    assert text("a\x1b[31m\u202eb") == "a�[31m�b"


@given(st.text(), st.text())
def test_any_text_makes_one_element_that_a_parser_reads_back(inside: str, attribute: str) -> None:
    made = join((tag("p", inside, title=attribute),))
    element = xml.dom.minidom.parseString(made).documentElement
    assert element is not None
    assert [child.nodeType for child in element.childNodes] in ([], [element.TEXT_NODE])
    assert list(element.attributes.keys()) == ["title"]
