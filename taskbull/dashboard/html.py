"""HTML as values: an element has attributes and children, and text is always text.

There is no way to write markup into a page as it is: `render` escapes all that is not an element,
or was rendered before. So whatever a job holds is shown, and never becomes part of the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from html import escape
from secrets import token_hex
from typing import TypeAlias
from urllib.parse import urlencode

from msgspec import Struct

Attribute: TypeAlias = str | int | bool | None
"""True: the attribute stands without a value; False or None: it is left out."""

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
_ADDRESSES = frozenset({"action", "formaction", "href", "src"})
_SENT = frozenset({"value", *_ADDRESSES})
_SHORT = 32
_SCHEME = re.compile(r"[^/?#]*:|//|[/\\]{2}")
_GAP = f"<!--{token_hex(16)}-->"
"""Stands where a gap is: nobody can know it, and have it in a job."""

_TIME = re.compile(r"(<time [^>]*>)[^<]*")
_TAG = re.compile(r"[a-zA-Z][a-zA-Z0-9]*")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")

# Control characters except tab and newline, what turns the direction of a text or cannot be seen,
# separators that look like spaces, and halves of characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000e0000-\U000e007f]"
)


class Element(Struct, frozen=True):
    """An element of a page."""

    tag: str
    attributes: Mapping[str, Attribute]
    children: tuple[Node, ...]

    def __post_init__(self) -> None:
        _check_tag(self.tag)
        for name, value in self.attributes.items():
            _check_attribute(name)
            if name in _ADDRESSES and isinstance(value, str) and _SCHEME.match(value):
                raise ValueError(f"{value!r} leads out of the dashboard")


@lru_cache(100)
def _check_tag(tag: str) -> None:
    if not _TAG.fullmatch(tag):
        raise ValueError(f"{tag!r} is not a tag")


@lru_cache(1000)
def _check_attribute(name: str) -> None:
    if not _NAME.fullmatch(name) or name.startswith("on") or name == "style":
        raise ValueError(f"{name!r} may not be an attribute")


class Drawn(Struct, frozen=True):
    """An element that was rendered already, to be shown again: `draw` makes it, and nobody else."""

    markup: str
    timeless: str
    """The same without the words of its times, which browsers keep up to date by themselves."""

    def at(self, words: str) -> Drawn:
        """Return the same with other words in its first time."""
        markup = self.timeless.replace("></time>", f">{_escaped(words)}</time>", 1)
        return Drawn(markup, self.timeless)


class Gap:
    """A place in a page where something is put when it is known."""


Node: TypeAlias = "Element | Drawn | Gap | str | int | float | Iterable[Node] | None"
"""What a page is made of; None is nothing."""


class Tag:
    """Makes elements: `div("text", class_="card", data_id="7")`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *children: Node, **attributes: Attribute) -> Element:
        named = {
            _spelled(name): value
            for name, value in attributes.items()
            if value is not None and value is not False
        }
        return Element(self._name, named, children)


@lru_cache(1000)
def _spelled(name: str) -> str:
    """Return the name of an attribute as HTML has it: `class` is written `class_`."""
    return name.rstrip("_").replace("_", "-")


a, article, aside, b, body, button = (
    Tag(name) for name in ("a", "article", "aside", "b", "body", "button")
)
code, dd, details, dialog, div, dl, dt = (
    Tag(name) for name in ("code", "dd", "details", "dialog", "div", "dl", "dt")
)
em, fieldset, footer, form, h1, h2, h3, head, header, html_ = (
    Tag(name)
    for name in ("em", "fieldset", "footer", "form", "h1", "h2", "h3", "head", "header", "html")
)
input_, kbd, label, legend, li, link, main, meta, nav, ol = (
    Tag(name)
    for name in ("input", "kbd", "label", "legend", "li", "link", "main", "meta", "nav", "ol")
)
option, p, pre, progress, script, section, select, small, span = (
    Tag(name)
    for name in (
        "option", "p", "pre", "progress", "script", "section", "select", "small", "span",
    )
)  # fmt: skip
strong, summary, table, tbody, td, textarea, th, thead, time_, title, tr, ul = (
    Tag(name)
    for name in (
        "strong", "summary", "table", "tbody", "td", "textarea", "th", "thead", "time", "title",
        "tr", "ul",
    )
)  # fmt: skip
caption = Tag("caption")


def visible(text: str) -> str:
    """Return a text with characters that cannot be seen, or deceive, written as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub(lambda found: _escape_of(found[0]), text)


def url(page: str, /, **parameters: str | int | None) -> str:
    """Return the address of a page, relative to all others: right under any mount or proxy."""
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    query = urlencode({k: v.encode("utf-8", "surrogatepass") for k, v in given.items()})
    return f"{page or './'}?{query}" if query else page or "./"


def draw(element: Element | Drawn) -> Drawn:
    """Return an element as it is to be shown more than once."""
    if isinstance(element, Drawn):
        return element
    markup = render(element)
    return Drawn(markup, _TIME.sub(r"\1", markup))


def render(node: Node) -> str:
    """Return a node as text."""
    out: list[str] = []
    _render(node, out)
    return "".join(out)


def render_page(root: Element) -> bytes:
    """Return a whole page."""
    return f"<!doctype html>\n{render(root)}\n".encode()


def render_pieces(root: Element) -> list[bytes]:
    """Return a whole page, cut at its gaps."""
    return render_page(root).split(_GAP.encode())


def _render(node: Node, out: list[str]) -> None:
    match node:
        case Element():
            _render_element(node, out)
        case None:
            pass
        case str():
            out.append(_escaped(node))
        case Drawn(markup):
            out.append(markup)
        case Gap():
            out.append(_GAP)
        case int() | float():
            out.append(_escaped(str(node)))
        case _:
            for child in node:
                _render(child, out)


def _render_element(element: Element, out: list[str]) -> None:
    out.append(f"<{element.tag}{''.join(map(_attribute, element.attributes.items()))}>")
    if element.tag in _VOID:
        return
    for child in element.children:
        if type(child) is str:  # as most are, of the thousands that a page has
            out.append(_escaped(child))
        else:
            _render(child, out)
    out.append(f"</{element.tag}>")


def _escaped(text: str) -> str:
    return text if text.isalnum() and text.isascii() else escape(visible(text))


def _attribute(pair: tuple[str, Attribute]) -> str:
    name, value = pair
    if value is True:
        return f" {name}"
    text = str(value)
    return _short(name, text) if len(text) < _SHORT else _written(name, text)


def _written(name: str, text: str) -> str:
    # What a form sends back must be what it was given; all else is for people to see.
    shown = text if name in _SENT else visible(text)
    return f' {name}="{escape(shown)}"'.replace("\n", "&#10;").replace("\r", "&#13;")


_short = lru_cache(2000)(_written)
"""Most attributes are the same in each row of a table."""


def _escape_of(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
