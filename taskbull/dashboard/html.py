"""HTML elements as values, and JSON for display with secrets masked.

Raw markup cannot be inserted into a page: `render` escapes everything except elements and
previously rendered elements. So job data is always shown as text and never becomes markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from secrets import token_hex
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

# Elements.


Attribute: TypeAlias = str | int | bool | None
"""Value of an attribute. `True` renders the bare name; `False` and `None` omit the attribute."""

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
_ADDRESSES = frozenset({"action", "formaction", "href", "src"})
_SENT = frozenset({"value", *_ADDRESSES})
_SHORT = 32
_SCHEME = re.compile(r"[^/?#]*:|//|[/\\]{2}")
_PLACEHOLDER = f"<!--{token_hex(16)}-->"
"""Marker for a gap. It is random, so job data cannot contain it."""

_TIME = re.compile(r"(<time [^>]*>)[^<]*")
_TAG = re.compile(r"[a-zA-Z][a-zA-Z0-9]*")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")

# Control characters except tab and newline, characters that are invisible or change the text
# direction, separators that look like spaces, and lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000e0000-\U000e007f]"
)


class Element(Struct, frozen=True):
    """An HTML element.

    Raises `ValueError` for event handlers, `style`, and addresses outside the dashboard.
    """

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


class Rendered(Struct, frozen=True):
    """A rendered element that can be reused. Only `prerender` creates instances."""

    markup: str
    timeless: str
    """The markup without the text of its times, which browsers keep up to date."""


class Placeholder:
    """A placeholder in a page for content that is sent later."""


Node: TypeAlias = "Element | Rendered | Placeholder | str | int | float | Iterable[Node] | None"
"""Content of a page. `None` renders nothing."""


class Tag:
    """A factory for elements of one tag: `div("text", class_="card", data_id="7")`."""

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
    """Return the HTML name of a keyword argument, such as `class` for `class_`."""
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
    """Return a text with invisible and misleading characters replaced by escapes."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub(lambda found: _escape_of(found[0]), text)


def url(page: str, /, **parameters: str | int | None) -> str:
    """Return the relative address of a page, which works under any mount point or proxy."""
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    query = urlencode({k: v.encode("utf-8", "surrogatepass") for k, v in given.items()})
    return f"{page or './'}?{query}" if query else page or "./"


def prerender(element: Element | Rendered) -> Rendered:
    """Render an element for repeated use."""
    if isinstance(element, Rendered):
        return element
    markup = render(element)
    return Rendered(markup, _TIME.sub(r"\1", markup))


def render(node: Node) -> str:
    """Return a node as HTML."""
    out: list[str] = []
    _render(node, out)
    return "".join(out)


def render_page(root: Element) -> bytes:
    """Return a complete HTML document."""
    return f"<!doctype html>\n{render(root)}\n".encode()


def render_chunks(root: Element) -> list[bytes]:
    """Return a complete HTML document, split at its gaps."""
    return render_page(root).split(_PLACEHOLDER.encode())


def _render(node: Node, out: list[str]) -> None:
    match node:
        case Element():
            _render_element(node, out)
        case None:
            pass
        case str():
            out.append(_escaped(node))
        case Rendered(markup):
            out.append(markup)
        case Placeholder():
            out.append(_PLACEHOLDER)
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
        if type(child) is str:  # Fast path: most of the thousands of children are strings.
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
    # Forms and links must send values back unchanged. Other attributes are only displayed.
    shown = text if name in _SENT else visible(text)
    return f' {name}="{escape(shown)}"'.replace("\n", "&#10;").replace("\r", "&#13;")


_short = lru_cache(2000)(_written)
"""Cached version of `_written`, because the rows of a table repeat most attributes."""


def _escape_of(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


# JSON as stored, indented, with secrets masked.
#
# It is tokenized and never parsed, so numbers, spellings and repeated keys look as they do in
# Redis. Invalid or truncated JSON is shown as far as possible.


MASK: Final = "•••"
"""Replacement for a masked value."""

SECRET: Final = (
    *("password", "passwd", "passphrase", "secret", "token", "authorization", "credential"),
    *("apikey", "accesskey", "privatekey", "cookie", "sessionid", "cardnumber", "databaseurl"),
    *("connectionstring", "authheader", "authkey"),
)
"""Parts of the names whose values are masked. Case and punctuation are ignored."""

_WORDS: Final = frozenset({"pwd", "bearer", "jwt", "otp", "totp", "ssn", "cvc", "cvv", "dsn"})
"""Whole words in the names whose values are masked by default."""

_LAST_WORDS: Final = frozenset({"pass", "auth", "pin", "session", "signature"})
"""Like `_WORDS`, but only at the end of a name: `user_session`, not `session_count`."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*+(?:"|\\?$))
    | (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<colon>:) | (?P<comma>,)
    | (?P<space>[\ \t\n\r]+)
    | (?P<other>[^\[\]{}:,"\s]+|\S)
    """,
    re.VERBOSE | re.DOTALL,
)
_DEEPEST = 30
"""Maximum indentation level. Deeper levels are indented no further."""

_MOST_GROWTH = 4
"""Maximum size of the indentation, relative to the text."""

_NAMES: Final = frozenset({"name", "key", "header", "field", "signal"})
_VALUES: Final = frozenset({"value", "values", "val", "content"})
"""Value keys of objects such as `{"name": "Authorization", "value": "…"}`."""

_URL = re.compile(r"([A-Za-z][\w+.-]*:(?:\\?/){2}[^\s/:@\"]*:)([^\s@\"]+)(?=@)")
"""A URL with a password. Its slashes may be escaped, as JSON allows."""

_CUT_URL = re.compile(r"([A-Za-z][\w+.-]*:(?:\\?/){2}[^\s/:@\"]*:)([^\s@\"/]+)$")
_AUTH_HEADER = re.compile(r"(?:Bearer|Basic)\s+\S{6,}", re.IGNORECASE)
_NESTED = 3
"""Maximum number of nested levels of JSON in JSON strings to search."""


class Redactor:
    """Masks secret values in JSON, which it recognizes by their names or their form."""

    def __init__(self, words: Collection[str] = SECRET) -> None:
        self._parts = tuple(_plain(word) for word in words)
        self._is_default = words is SECRET

    @property
    def masks_nothing(self) -> bool:
        """True if no names are configured as secret."""
        return not self._parts

    def hides(self, name: str) -> bool:
        """Return True if the value with this name is secret."""
        plain = _plain(name)
        if any(part in plain for part in self._parts):
            return True
        words = [word.lower() for word in _WORD.findall(name)] if self._is_default else []
        return bool(words) and (words[-1] in _LAST_WORDS or not _WORDS.isdisjoint(words))

    def mask(self, text: str) -> str:
        """Return stored JSON with its secrets masked and its layout unchanged."""
        if self.masks_nothing or '"' not in text:
            return text
        return _Masking(self, _NESTED).of(text)

    def show(self, text: str) -> str:
        """Return JSON indented, with its secrets masked.

        Indentation adds at most about four times the length of the text.
        """
        return _Layout().of(self.mask(text))

    def mask_string(self, word: str, nested: int = 0) -> str:
        """Return a quoted JSON string with passwords in it masked.

        `nested` is the number of levels of JSON within the string to search.
        """
        if "://" not in word and ":\\/" not in word and word[1:2] not in "BbTt{[ \\":
            return word
        word = _URL.sub(rf"\1{MASK}", word)
        if word.endswith('"') and len(word) > 1:
            inner = _decoded(word)
        else:  # The text is truncated.
            word = _CUT_URL.sub(rf"\1{MASK}", word)
            inner = _decoded(f'{word.rstrip(chr(92))}"')
        if _AUTH_HEADER.fullmatch(inner.strip()):
            return f'"{MASK}"'
        if nested and inner.lstrip()[:1] in {"{", "["}:
            masked = _Masking(self, nested - 1).of(inner)
            return word if masked == inner else json.dumps(masked, ensure_ascii=False)
        return word

    def restore(self, edited: Any, original: Any) -> Any:
        """Return edited data with its masks replaced by the original values."""
        if edited == MASK:
            return original
        if isinstance(edited, str) and isinstance(original, str) and MASK in edited:
            # Restore only if the text around the password, such as the host, is unchanged.
            shown = _decoded(self.mask_string(json.dumps(original), _NESTED))
            return original if edited == shown else edited
        if isinstance(edited, dict) and isinstance(original, dict):
            old = cast("dict[str, Any]", original)
            new = cast("dict[str, Any]", edited)
            # The name next to a value caused the mask. Restore only if the name is unchanged.
            is_same = all(new.get(key) == old.get(key) for key in old if key.lower() in _NAMES)
            return {
                key: value
                if value == MASK and key.lower() in _VALUES and not is_same
                else self.restore(value, old.get(key, value))
                for key, value in new.items()
            }
        if isinstance(edited, list) and isinstance(original, list):
            return self._restore_items(
                cast("Sequence[Any]", edited), cast("Sequence[Any]", original)
            )
        return cast("Any", edited)

    def _restore_items(self, edited: Sequence[Any], original: Sequence[Any]) -> list[Any]:
        """Restore a list by position. If its length has changed, items cannot be matched."""
        if len(edited) != len(original):
            return list(edited)
        return [self.restore(*pair) for pair in zip(edited, original, strict=True)]


class _Members(Struct, eq=False):
    """Parser state for one object or array."""

    start: int
    key: str | None = None
    """Name of the current member."""
    value_at: int | None = None
    """Start of the current value."""
    is_secret: bool = False
    """True if a name member marks the values as secret."""
    values: list[tuple[int, int]] = []
    """Ranges of the value members."""


class _Masking:
    """One pass over a text that replaces secret values and leaves the rest unchanged."""

    def __init__(self, redactor: Redactor, nested: int) -> None:
        self._redactor = redactor
        self._nested = nested
        self._cuts: list[tuple[int, int, str]] = []
        self._stack = [_Members(0)]
        self._hidden_at: int | None = None
        """Depth of the secret value being read, or `None` outside of secrets."""
        self._hidden_from = 0

    def of(self, text: str) -> str:  # noqa: C901 - a branch for each kind of token
        pending: tuple[int, int, str] | None = None
        for token in _TOKEN.finditer(text):
            kind, start, end = token.lastgroup, token.start(), token.end()
            if kind == "space":
                continue
            if pending is not None and kind != "colon":
                self._string(*pending)
                pending = None
            if kind == "string":
                self._begin(start)
                pending = (start, end, token[0])
            elif kind == "colon":
                if pending is not None:
                    self._name(pending[2], end)
                pending = None
            elif kind == "open":
                self._begin(start)
                self._stack.append(_Members(start))
            elif kind == "comma":
                self._end_value(start)
            elif kind == "close":
                self._end_value(start)
                self._close()
            else:
                self._begin(start)
        if pending is not None:
            self._string(*pending)
        self._end_value(len(text))
        while len(self._stack) > 1:  # The text is truncated.
            self._close()
            self._end_value(len(text))
        self._close()
        return self._cut(text)

    def _begin(self, start: int) -> None:
        members = self._stack[-1]
        if members.value_at is None:
            members.value_at = start

    def _name(self, word: str, end: int) -> None:
        members = self._stack[-1]
        members.key, members.value_at = _decoded(word), None
        if self._hidden_at is None and self._redactor.hides(members.key):
            self._hidden_at, self._hidden_from = len(self._stack), end

    def _string(self, start: int, end: int, word: str) -> None:
        if self._hidden_at is not None:
            return
        members = self._stack[-1]
        if members.key is not None and members.key.lower() in _NAMES:
            members.is_secret = members.is_secret or self._redactor.hides(_decoded(word))
        masked = self._redactor.mask_string(word, self._nested)
        if masked != word:
            self._cuts.append((start, end, masked))

    def _end_value(self, end: int) -> None:
        members = self._stack[-1]
        if self._hidden_at == len(self._stack):
            self._hidden_at = None
            self._cuts.append((self._hidden_from, end, f'"{MASK}"'))
        elif members.value_at is not None and (members.key or "").lower() in _VALUES:
            members.values.append((members.value_at, end))
        members.key = members.value_at = None

    def _close(self) -> None:
        members = self._stack.pop() if len(self._stack) > 1 else self._stack[-1]
        if members.is_secret:
            self._cuts += [(start, end, f'"{MASK}"') for start, end in members.values]

    def _cut(self, text: str) -> str:
        parts: list[str] = []
        done = 0
        # If cuts are nested, only the outermost one counts. It is sorted first.
        for start, end, instead in sorted(self._cuts, key=lambda cut: (cut[0], -cut[1])):
            if start < done:
                continue
            # Keep the whitespace around the value.
            value = text[start:end]
            lead = len(value) - len(value.lstrip(_SPACE))
            trail = len(value.rstrip(_SPACE))
            parts += [text[done : start + lead], instead, value[trail:] if trail > lead else ""]
            done = end
        return "".join([*parts, text[done:]])


_SPACE: Final = " \t\n\r"


class _Layout:
    """One pass over a text that indents it."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._depth = 0
        self._room = 0
        """Number of indentation characters left."""
        self._after_open = False
        self._after_word = False
        """True after a value. Invalid JSON can have adjacent values, which get a space."""

    def of(self, text: str) -> str:
        self._room = _MOST_GROWTH * len(text) + 1000
        for token in _TOKEN.finditer(text):
            kind, word = token.lastgroup, token[0]
            if kind == "space":
                continue
            if kind == "close":
                self._close(word)
            elif kind == "colon":
                self._out.append(": ")
            elif kind == "comma":
                self._out.append(word)
                self._line()
            else:
                self._begin()
                self._out.append(word)
                if kind == "open":
                    self._depth += 1
                    self._after_open = True
            self._after_word = kind in {"string", "other"}
        return "".join(self._out)

    def _close(self, word: str) -> None:
        self._depth = max(0, self._depth - 1)
        if not self._after_open:
            self._line()
        self._after_open = False
        self._out.append(word)

    def _begin(self) -> None:
        if self._after_open:
            self._after_open = False
            self._line()
        elif self._after_word:
            self._out.append(" ")

    def _line(self) -> None:
        line = "\n" + "  " * min(self._depth, _DEEPEST)
        if len(line) > self._room:  # Many deep levels used up the room.
            line = ""
        self._room -= len(line)
        self._out.append(line)


def _decoded(key: str) -> str:
    try:
        return msgspec.json.decode(key.encode("utf-8", "replace"), type=str)
    except ValueError:
        return key


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
