"""What others wrote, made harmless for a terminal: a job may hold anything, escape codes too."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

# Control characters and those that turn the direction of a text, line separators, surrogates. In
# JSON they stand within strings only, where an escape means the same.
_HOSTILE_IN_JSON = re.compile(
    "[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


def printable(text: str) -> str:
    """Give a text on one line, with all that a terminal would obey or hide shown as an escape."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def printable_lines(text: str) -> list[str]:
    """Give the lines of a text, each made printable; tabs become spaces."""
    return [printable(line.expandtabs(4)) for line in text.split("\n")]


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Give a value as JSON that is safe to print, and still means the same."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _HOSTILE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()
