"""Pieces of stacks that were cut out of JSON, without the rest of it."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def unescape(piece: str) -> str:
    """Return the text of a piece of a JSON string; what is cut in half stays as it is."""

    def text(found: re.Match[str]) -> str:
        code, plain = found.groups()
        if code is None:
            return _PLAIN.get(plain, plain)
        return chr(int(code, 16))

    return _ESCAPE.sub(text, piece).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
