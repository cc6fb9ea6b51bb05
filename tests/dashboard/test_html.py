"""HTML by construction: whatever a job holds is text, and is seen as what it is."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.dashboard.html import (
    Element,
    a,
    div,
    input_,
    li,
    p,
    prerender,
    render,
    ul,
    url,
    visible,
)
from taskbull.dashboard.layout import ago, prose, sparkline

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "a\x00b\x1b[31m",
    "\ud800",
    "&lt;b&gt;",
]


class _Reader(HTMLParser):
    """Reads markup as a browser does: its tags, and its text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> _Reader:
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    return reader


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    found = read(render(div(p(text), title=text)))
    assert [tag for tag, _ in found.tags] == ["div", "p"]
    assert found.text == visible(text)
    assert found.tags[0][1] == {"title": visible(text)}


@given(st.text())
def test_any_text_stays_text(text: str) -> None:
    found = read(render(div(text, data_x=text)))
    assert [tag for tag, _ in found.tags] == ["div"]
    assert found.text.replace("\r", "\n") == visible(text).replace("\r", "\n")


def test_what_cannot_be_seen_is_written_as_an_escape() -> None:
    assert visible("a\u202eb\x1b\x00\u200b\ud800") == "a\\u202eb\\x1b\\x00\\u200b\\ud800"
    assert visible("line\n\ttext – “ok” 漢字 🐂") == "line\n\ttext – “ok” 漢字 🐂"


def test_a_form_gives_back_what_it_was_given() -> None:
    value = "a\u200b\"<'&\n"
    [(_, attributes)] = read(render(input_(name="id", value=value))).tags
    assert attributes["value"] == value


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "//evil.example", "https://evil.example", "data:text/html,x"]
)
def test_an_address_never_leads_out(address: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        a("x", href=address)


@pytest.mark.parametrize("name", ["onclick", "style", "x y", "a>b"])
def test_what_could_carry_code_is_not_an_attribute(name: str) -> None:
    with pytest.raises(ValueError, match="may not be"):
        Element("div", {name: "x"}, ())


@pytest.mark.parametrize("name", ["a b", "javascript:x", "//x", "ü?&=#", "\ud800", "../x"])
def test_any_name_can_stand_in_an_address(name: str) -> None:
    address = url("queue", q=name, state=None)
    assert address.startswith("queue?q=")
    assert all(character.isascii() for character in address)
    a("x", href=address)


def test_what_was_drawn_is_shown_as_it_is_and_as_text_only_once() -> None:
    row = prerender(li("a < b", ago(datetime.now(UTC)), id="x"))
    assert render(ul(row, row)) == f"<ul>{row.markup * 2}</ul>"
    assert "a &lt; b" in row.markup
    assert "0 s ago" in row.markup
    assert "0 s ago" not in row.timeless
    assert prerender(row) is row


def test_a_sparkline_is_one_path_with_a_line_where_nothing_was() -> None:
    rendered = render(sparkline([None, 0, 0, 0, 5, 10, 10], "seven"))
    assert re.findall(r' d="([^"]*)"', rendered) == [
        "M3 20v-.5h8v.5zM12 20v-10.0h2v10.0zM15 20v-20.0h2v20.0zM18 20v-20.0h2v20.0z"
    ]


def test_words_between_backticks_are_code() -> None:
    shown = render(p(prose("Start one with `taskbull worker`. <b>")))
    assert shown == "<p>Start one with <code>taskbull worker</code>. &lt;b&gt;</p>"
    assert render(p(prose("an odd ` is kept"))) == "<p>an odd ` is kept</p>"
