"""A URL in its parts. The standard library's parser knows one host, and may quote a password."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from taskbull.errors import ConfigurationError

_SHAPE = re.compile(
    r"(?P<scheme>[a-z]+(\+[a-z]+)?)://"
    r"((?P<userinfo>[^/?#@\[\]\s]*)@)?"
    r"(?P<hosts>[^/?#@]*)"
    r"(?P<path>/[^?#@]*)?"  # an "@" here would be the end of a password
    r"(\?(?P<query>[^#@]*))?"
)

# A scheme, a host and a port, with a slip between them; nothing here is a password.
_HARMLESS = re.compile(
    r"\s*([a-z+]{4,16}:?/{1,2})?(localhost|[A-Za-z0-9.-]+:[0-9]{1,5})(/[0-9]{0,3})?\s*"
)


class Url(Struct, frozen=True):
    """What a URL says; escapes are resolved, but nothing else is."""

    text: str
    scheme: str
    username: str
    password: str
    hosts: tuple[str, ...]
    path: str
    options: dict[str, str]

    def __repr__(self) -> str:
        """Show where, never the password or the options."""
        return f"Url({masked(self.text)!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same in tracebacks of rich."""
        return [("text", masked(self.text))]

    def wrong(self, rule: str) -> ConfigurationError:
        """Return the error for a URL that breaks a rule."""
        return wrong(self.text, rule)


def read_url(text: str) -> Url:
    """Split a URL into its parts; refuse another form, and never show its password."""
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise wrong(
            text,
            "it has the form scheme://user:password@host:port/path?option=value, and characters "
            "such as / ? # @ [ ] in a user name or password are written as %2F and so on",
        )
    username, _, password = (shape["userinfo"] or "").partition(":")
    return Url(
        text,
        shape["scheme"],
        unquote(username),
        unquote(password),
        tuple(shape["hosts"].split(",")) if shape["hosts"] else (),
        shape["path"] or "",
        dict(parse_qsl(shape["query"] or "", keep_blank_values=True)),
    )


def wrong(text: str, rule: str) -> ConfigurationError:
    """Return the error for a URL that breaks a rule."""
    return ConfigurationError(f"Redis URL {masked(text)!r} is not valid: {rule}")


def masked(text: str) -> str:
    """Return a URL without password and options; of an unreadable one, only what is harmless."""
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        return text if _HARMLESS.fullmatch(text) else "***"
    username, colon, _ = (shape["userinfo"] or "").partition(":")
    login = "" if shape["userinfo"] is None else f"{username}{colon and ':***'}@"
    return f"{shape['scheme']}://{login}{shape['hosts']}{shape['path'] or ''}"
